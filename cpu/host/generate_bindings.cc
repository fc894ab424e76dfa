// NumPy bindings of generate.h. They release the GIL while they work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "cpu/bindings.h"
#include "cpu/host/generate.h"
#include "cpu/host/numpy.h"

namespace jaxgnn::host {
namespace {

template <class Generator>
nb::tuple generate(const Generator& generator) {
  Edges edges;
  {
    nb::gil_scoped_release release;
    edges = generator();
  }
  return nb::make_tuple(to_numpy(std::move(edges.row_offsets)), to_numpy(std::move(edges.senders)));
}

Sampling make_sampling(int64_t num_nodes, int64_t num_edges, bool undirected, uint64_t seed,
                       const std::optional<In<int32_t>>& relabel, int num_threads) {
  Sampling sampling{num_nodes, num_edges, undirected, seed, nullptr, num_threads};
  if (relabel) {
    if (static_cast<int64_t>(relabel->shape(0)) != num_nodes) {
      throw std::invalid_argument("relabel: expected num_nodes entries");
    }
    for (int64_t i = 0; i < num_nodes; ++i) {
      if (relabel->data()[i] < 0 || relabel->data()[i] >= num_nodes) {
        throw std::invalid_argument("relabel: expected ids below num_nodes");
      }
    }
    sampling.relabel = relabel->data();
  }
  return sampling;
}

nb::tuple bound_chung_lu(const In<int64_t>& weights, const In<int64_t>& community_offsets,
                         double intra_share, int64_t num_edges, bool undirected, uint64_t seed,
                         const std::optional<In<int32_t>>& relabel, int num_threads) {
  const Sampling sampling = make_sampling(static_cast<int64_t>(weights.shape(0)), num_edges,
                                          undirected, seed, relabel, num_threads);
  return generate([&] {
    return chung_lu(weights.data(), community_offsets.data(),
                    static_cast<int64_t>(community_offsets.shape(0)) - 1, intra_share, sampling);
  });
}

nb::tuple bound_configuration(const In<int64_t>& degrees, int64_t num_edges, uint64_t seed,
                              const std::optional<In<int32_t>>& relabel, int num_threads) {
  const Sampling sampling = make_sampling(static_cast<int64_t>(degrees.shape(0)), num_edges, true,
                                          seed, relabel, num_threads);
  return generate([&] { return configuration(degrees.data(), sampling); });
}

nb::tuple bound_roads(int64_t num_nodes, double junction_share, int64_t num_edges, uint64_t seed,
                      int num_threads) {
  const Sampling sampling =
      make_sampling(num_nodes, num_edges, true, seed, std::nullopt, num_threads);
  return generate([&] { return roads(junction_share, sampling); });
}

nb::tuple bound_rmat(int scale, double a, double b, double c, int64_t num_edges, bool undirected,
                     uint64_t seed, const std::optional<In<int32_t>>& relabel, int num_threads) {
  if (scale < 1 || scale > 30) throw std::invalid_argument("scale: expected 1 to 30");
  const Sampling sampling =
      make_sampling(int64_t{1} << scale, num_edges, undirected, seed, relabel, num_threads);
  return generate([&] { return rmat(scale, a, b, c, sampling); });
}

nb::tuple bound_chains(const In<int64_t>& chain_offsets, int64_t num_edges, uint64_t seed,
                       int num_threads) {
  const int64_t count = static_cast<int64_t>(chain_offsets.shape(0)) - 1;
  if (count < 1) throw std::invalid_argument("chain_offsets: expected at least one chain");
  const Sampling sampling =
      make_sampling(chain_offsets.data()[count], num_edges, true, seed, std::nullopt, num_threads);
  return generate([&] { return chains(chain_offsets.data(), count, sampling); });
}

nb::tuple bound_block_model(
    const In<int64_t>& block_offsets,
    const nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>& p, bool undirected,
    uint64_t seed, int num_threads) {
  const int64_t blocks = static_cast<int64_t>(block_offsets.shape(0)) - 1;
  if (static_cast<int64_t>(p.shape(0)) != blocks || static_cast<int64_t>(p.shape(1)) != blocks) {
    throw std::invalid_argument("p: expected one row and one column a block");
  }
  return generate([&] {
    return block_model(block_offsets.data(), blocks, p.data(), undirected, seed, num_threads);
  });
}

nb::object bound_permutation(int64_t size, uint64_t seed) {
  if (size < 0) throw std::invalid_argument("size: expected 0 or more");
  Buffer<int32_t> order(size);
  {
    nb::gil_scoped_release release;
    permutation(size, seed, order.data());
  }
  return to_numpy(std::move(order));
}

}  // namespace

void bind_generate(nb::module_& m) {
  using namespace nb::literals;
  m.def("chung_lu", &bound_chung_lu, "weights"_a.noconvert(), "community_offsets"_a.noconvert(),
        "intra_share"_a, "num_edges"_a, "undirected"_a, "seed"_a, "relabel"_a.none(),
        "num_threads"_a, "Edges between nodes drawn by weight, some within communities.");
  m.def("configuration", &bound_configuration, "degrees"_a.noconvert(), "num_edges"_a, "seed"_a,
        "relabel"_a.none(), "num_threads"_a, "Edges that join nodes of given degrees.");
  m.def("roads", &bound_roads, "num_nodes"_a, "junction_share"_a, "num_edges"_a, "seed"_a,
        "num_threads"_a, "Edges along roads and between their ends.");
  m.def("rmat", &bound_rmat, "scale"_a, "a"_a, "b"_a, "c"_a, "num_edges"_a, "undirected"_a,
        "seed"_a, "relabel"_a.none(), "num_threads"_a, "Edges of a recursive matrix.");
  m.def("chains", &bound_chains, "chain_offsets"_a.noconvert(), "num_edges"_a, "seed"_a,
        "num_threads"_a, "Edges along many chains.");
  m.def("block_model", &bound_block_model, "block_offsets"_a.noconvert(), "p"_a.noconvert(),
        "undirected"_a, "seed"_a, "num_threads"_a, "Edges of a stochastic block model.");
  m.def("permutation", &bound_permutation, "size"_a, "seed"_a, "A random permutation.");
}

}  // namespace jaxgnn::host
