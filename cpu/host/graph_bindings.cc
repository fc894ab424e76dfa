// NumPy bindings of graph.h. They release the GIL while they work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu/bindings.h"
#include "cpu/host/check_rows.h"
#include "cpu/host/graph.h"
#include "cpu/host/numpy.h"
#include "cpu/host/windows.h"

namespace jaxgnn::host {
namespace {

template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class Index, class T>
nb::tuple build(const In<T>& senders, const In<T>& receivers, const BuildOptions& options) {
  Csr<Index> csr;
  {
    nb::gil_scoped_release release;
    csr = build_csr<Index>(senders.data(), receivers.data(), static_cast<int64_t>(senders.shape(0)),
                           options);
  }
  nb::object offsets = to_numpy(std::move(csr.row_offsets));
  nb::object columns = to_numpy(std::move(csr.senders));
  nb::object transpose_offsets =
      csr.symmetric ? offsets : to_numpy(std::move(csr.transpose_row_offsets));
  nb::object transpose_columns =
      csr.symmetric ? columns : to_numpy(std::move(csr.transpose_receivers));
  return nb::make_tuple(offsets, columns, transpose_offsets, transpose_columns,
                        to_numpy(std::move(csr.transpose_permutation)),
                        to_numpy(std::move(csr.edge_permutation)),
                        options.square ? to_numpy(std::move(csr.self_loops)) : nb::none());
}

template <class T>
nb::tuple build_any(const In<T>& senders, const In<T>& receivers, int32_t num_senders,
                    int32_t num_receivers, bool square, bool undirected, bool deduplicate,
                    int self_loops, bool wide) {
  // The Python side checks all of this, with better messages: here, only what would be unsafe.
  if (senders.shape(0) != receivers.shape(0) || num_senders < 0 || num_receivers < 0 ||
      (num_senders != num_receivers && (square || undirected || self_loops != 0)) ||
      self_loops < 0 || self_loops > 3) {
    throw std::invalid_argument("build_csr: inconsistent arguments");
  }
  BuildOptions options;
  options.num_senders = num_senders;
  options.num_receivers = num_receivers;
  options.square = square;
  options.undirected = undirected;
  options.deduplicate = deduplicate;
  options.self_loops = static_cast<SelfLoops>(self_loops);
  return wide ? build<int64_t>(senders, receivers, options)
              : build<int32_t>(senders, receivers, options);
}

template <class T>
std::pair<T, T> extent_of(const In<T>& values) {
  nb::gil_scoped_release release;
  return extent(values.data(), static_cast<int64_t>(values.shape(0)));
}

template <class Index, class T>
nb::object normalize(const In<Index>& row_offsets, const In<int32_t>& senders,
                     const In<T>& weights) {
  const std::size_t num_edges = senders.shape(0);
  if (row_offsets.shape(0) > INT32_MAX ||
      (weights.shape(0) != num_edges && weights.shape(0) != 0)) {
    throw std::invalid_argument("gcn_normalize: inconsistent arguments");
  }
  Buffer<T> normalized(static_cast<int64_t>(num_edges));
  {
    nb::gil_scoped_release release;
    const int64_t num_nodes =
        check_rows(row_offsets, senders, static_cast<int32_t>(row_offsets.shape(0)) - 1);
    gcn_normalize(row_offsets.data(), senders.data(),
                  weights.shape(0) == num_edges ? weights.data() : nullptr, num_nodes,
                  normalized.data());
  }
  return to_numpy(std::move(normalized));
}

// The number of receivers, of consistent arguments.
template <class Index>
int32_t num_receivers_of(const In<Index>& row_offsets, const In<int32_t>& senders,
                         int32_t num_senders, const char* what) {
  if (row_offsets.shape(0) > INT32_MAX || num_senders < 0) {
    throw std::invalid_argument(std::string(what) + ": inconsistent arguments");
  }
  const nb::gil_scoped_release release;
  return static_cast<int32_t>(check_rows(row_offsets, senders, num_senders));
}

bool is_permutation(const In<int32_t>& order, int32_t size) {
  if (order.shape(0) != static_cast<std::size_t>(size)) return false;
  std::vector<bool> seen(order.shape(0), false);
  for (std::size_t i = 0; i < order.shape(0); ++i) {
    const int32_t at = order.data()[i];
    if (at < 0 || at >= size || seen[static_cast<std::size_t>(at)]) return false;
    seen[static_cast<std::size_t>(at)] = true;
  }
  return true;
}

template <class Index>
nb::tuple windows(const In<Index>& row_offsets, const In<int32_t>& senders, int32_t num_senders,
                  bool with_edges, int window_rows, std::optional<In<int32_t>> order) {
  const int32_t num_receivers =
      num_receivers_of(row_offsets, senders, num_senders, "build_windows");
  if (window_rows < 1 || window_rows > kWindowRows) {
    throw std::invalid_argument("build_windows: window_rows must be from 1 to 64");
  }
  if (order && !is_permutation(*order, num_receivers)) {
    throw std::invalid_argument("build_windows: order must have each receiver once");
  }
  Windows result;
  {
    nb::gil_scoped_release release;
    result = build_windows(row_offsets.data(), senders.data(), num_receivers, num_senders,
                           with_edges, window_rows, order ? order->data() : nullptr);
  }
  return nb::make_tuple(to_matrix(std::move(result.rows), window_rows),
                        to_matrix(std::move(result.parts), 4), to_numpy(std::move(result.senders)),
                        to_matrix(std::move(result.masks), 2), to_numpy(std::move(result.edges)),
                        to_matrix(std::move(result.slots), window_rows + 1), result.num_partials);
}

template <class Index>
nb::object row_order(const In<Index>& row_offsets, const In<int32_t>& senders,
                     int32_t num_senders) {
  const int32_t num_receivers = num_receivers_of(row_offsets, senders, num_senders, "order_rows");
  Buffer<int32_t> result;
  {
    nb::gil_scoped_release release;
    result = order_rows(row_offsets.data(), senders.data(), num_receivers, num_senders);
  }
  return to_numpy(std::move(result));
}

template <class Index>
void bind_windows(nb::module_& m) {
  m.def("build_windows", &windows<Index>, nb::arg("row_offsets").noconvert(),
        nb::arg("senders").noconvert(), nb::arg("num_senders"), nb::arg("with_edges") = false,
        nb::arg("window_rows") = kWindowRows, nb::arg("order") = nb::none(),
        "Receivers in windows that share senders: rows, parts, senders, masks, edges and slots "
        "(without elements unless `with_edges`), partial results.");
  m.def("order_rows", &row_order<Index>, nb::arg("row_offsets").noconvert(),
        nb::arg("senders").noconvert(), nb::arg("num_senders"),
        "The receivers in an order in which neighbours share senders.");
}

template <class T>
void bind_edges(nb::module_& m) {
  m.def("extent", &extent_of<T>, nb::arg("values").noconvert(),
        "Smallest and largest element; (0, -1) of nothing.");
  m.def("build_csr", &build_any<T>, nb::arg("senders").noconvert(),
        nb::arg("receivers").noconvert(), nb::arg("num_senders"), nb::arg("num_receivers"),
        nb::arg("square"), nb::arg("undirected"), nb::arg("deduplicate"), nb::arg("self_loops"),
        nb::arg("wide"), "Edges sorted by (receiver, sender) and their transpose.");
}

template <class Index, class T>
void bind_normalize(nb::module_& m) {
  m.def("gcn_normalize", &normalize<Index, T>, nb::arg("row_offsets").noconvert(),
        nb::arg("senders").noconvert(), nb::arg("weights").noconvert(),
        "Symmetric normalization by the weighted in-degree; no weights: ones.");
}

}  // namespace

void bind_graph(nb::module_& m) {
  bind_edges<int32_t>(m);
  bind_edges<int64_t>(m);
  bind_windows<int32_t>(m);
  bind_windows<int64_t>(m);
  bind_normalize<int32_t, float>(m);
  bind_normalize<int32_t, double>(m);
  bind_normalize<int64_t, float>(m);
  bind_normalize<int64_t, double>(m);
}

}  // namespace jaxgnn::host
