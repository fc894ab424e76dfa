// NumPy bindings of alias_table.h. They release the GIL while they work.
#include "cpu/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cpu/host/host_parallel.h"
#include "cpu/host/numpy.h"
#include "cpu/sampling/alias_table.h"

namespace jaxgnn::host {
namespace {

template <class Index>
nb::tuple alias_table(const In<Index>& row_offsets, const In<float>& weights, int num_threads) {
  const int64_t rows = static_cast<int64_t>(row_offsets.shape(0)) - 1;
  const int64_t edges = static_cast<int64_t>(weights.shape(0));
  const Index* offsets = row_offsets.data();
  if (rows < 0 || offsets[0] != 0 || offsets[rows] != edges ||
      !std::is_sorted(offsets, offsets + rows + 1)) {
    throw std::invalid_argument("alias_table: inconsistent arguments");
  }
  Buffer<uint32_t> table(2 * edges);
  Buffer<int32_t> counts(rows);
  {
    nb::gil_scoped_release release;
    const int threads = num_threads > 0 ? std::min(num_threads, kMaxThreads) : num_chunks(edges);
    build_alias_table(offsets, rows, weights.data(), threads, table.data(), counts.data());
  }
  return nb::make_tuple(to_numpy(std::move(table)), to_numpy(std::move(counts)));
}

template <class Index>
void bind_alias_table(nb::module_& m) {
  m.def("alias_table", &alias_table<Index>, nb::arg("row_offsets").noconvert(),
        nb::arg("weights").noconvert(), nb::arg("num_threads") = 0,
        "The thresholds and aliases of all cells, and how many edges of each row have a weight.");
}

}  // namespace

void bind_sampling(nb::module_& m) {
  bind_alias_table<int32_t>(m);
  bind_alias_table<int64_t>(m);
}

}  // namespace jaxgnn::host
