// NumPy bindings of partition.h. They release the GIL while they work.
#include "cpu/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cpu/host/numpy.h"
#include "cpu/partition/partition.h"

namespace jaxgnn::host {
namespace {

template <class Index>
Rows<Index> rows_of(const In<int64_t>& offsets, const In<Index>& senders) {
  const int64_t nodes = static_cast<int64_t>(offsets.shape(0)) - 1;
  if (nodes < 0 || offsets.data()[0] != 0 ||
      offsets.data()[nodes] != static_cast<int64_t>(senders.shape(0))) {
    throw std::invalid_argument("offsets: expected them to run from 0 to the number of senders");
  }
  return {offsets.data(), senders.data(), nodes};
}

template <class Index>
nb::object bound_stream(const In<int64_t>& offsets, const In<Index>& senders, int parts,
                        int64_t max_nodes, int64_t max_edges, int passes, uint64_t seed,
                        int num_threads) {
  const Rows<Index> rows = rows_of(offsets, senders);
  if (parts < 1 || max_nodes < 1) throw std::invalid_argument("parts: expected 1 or more");
  Buffer<int32_t> owner(rows.num_nodes);
  {
    nb::gil_scoped_release release;
    stream_partition(rows, {parts, max_nodes, max_edges}, passes, seed, num_threads, owner.data());
  }
  return to_numpy(std::move(owner));
}

template <class Index>
nb::tuple bound_halo(const In<int64_t>& offsets, const In<Index>& senders, const In<int32_t>& owner,
                     int parts, int num_threads) {
  const Rows<Index> rows = rows_of(offsets, senders);
  if (static_cast<int64_t>(owner.shape(0)) != rows.num_nodes) {
    throw std::invalid_argument("owner: expected one for each node");
  }
  for (int64_t i = 0; i < rows.num_nodes; ++i) {
    if (owner.data()[i] < 0 || owner.data()[i] >= parts) {
      throw std::invalid_argument("owner: expected parts from 0 to parts - 1");
    }
  }
  Buffer<int64_t> halo(static_cast<int64_t>(parts) * parts);
  std::fill_n(halo.data(), halo.size(), 0);
  int64_t cut = 0;
  {
    nb::gil_scoped_release release;
    cut = count_halo(rows, owner.data(), parts, num_threads, halo.data());
  }
  return nb::make_tuple(cut, to_matrix(std::move(halo), static_cast<std::size_t>(parts)));
}

template <class Index>
void bind(nb::module_& m) {
  using namespace nb::literals;
  m.def("stream_partition", &bound_stream<Index>, "offsets"_a.noconvert(), "senders"_a.noconvert(),
        "parts"_a, "max_nodes"_a, "max_edges"_a, "passes"_a, "seed"_a, "num_threads"_a,
        "The part of each node, by restreaming greedy.");
  m.def("count_halo", &bound_halo<Index>, "offsets"_a.noconvert(), "senders"_a.noconvert(),
        "owner"_a.noconvert(), "parts"_a, "num_threads"_a,
        "Edges between parts, and the nodes that each part reads of each other.");
}

}  // namespace

void bind_partition(nb::module_& m) {
  bind<int32_t>(m);
  bind<int64_t>(m);
}

}  // namespace jaxgnn::host
