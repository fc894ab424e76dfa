// NumPy bindings of translate.h and layout.h. They release the GIL while they work.
#include "cpu/bindings.h"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpu/host/check_rows.h"
#include "cpu/host/numpy.h"
#include "cpu/tiles/communities.h"
#include "cpu/tiles/layout.h"
#include "cpu/tiles/translate.h"

namespace jaxgnn::host {
namespace {

template <class Index>
nb::tuple translate_graph(const In<Index>& row_offsets, const In<int32_t>& edge_columns,
                          int32_t rows, int32_t columns) {
  // The Python side checks all of this, with better messages: here, only what would be unsafe.
  if (rows < 1 || columns < 1) throw std::invalid_argument("translate: inconsistent arguments");
  Translation<Index> result;
  {
    nb::gil_scoped_release release;
    const int64_t num_rows = check_rows(row_offsets, edge_columns, INT32_MAX);
    result = translate(row_offsets.data(), edge_columns.data(), num_rows, rows, columns);
  }
  return nb::make_tuple(
      to_numpy(std::move(result.window_blocks)), to_numpy(std::move(result.window_blocks_before)),
      to_numpy(std::move(result.edge_columns)), to_numpy(std::move(result.column_offsets)),
      to_numpy(std::move(result.columns)), to_numpy(std::move(result.edge_histogram)),
      result.num_entries);
}

// The number of rows, of arguments that are safe to use: `order` has each row once.
int32_t num_rows_of(const In<int32_t>& row_offsets, const In<int32_t>& columns,
                    const In<int32_t>& order, int32_t num_columns) {
  const int64_t num_rows = static_cast<int64_t>(order.shape(0));
  bool fits = num_rows < INT32_MAX && num_columns >= 0 &&
              static_cast<int64_t>(row_offsets.shape(0)) == num_rows + 1;
  if (fits) check_rows(row_offsets, columns, num_columns);
  std::vector<bool> seen(fits ? static_cast<std::size_t>(num_rows) : 0);
  for (int64_t i = 0; fits && i < num_rows; ++i) {
    const int32_t row = order.data()[i];
    fits = row >= 0 && row < num_rows && !seen[static_cast<std::size_t>(row)];
    if (fits) seen[static_cast<std::size_t>(row)] = true;
  }
  if (!fits) throw std::invalid_argument("tiles: inconsistent arguments");
  return static_cast<int32_t>(num_rows);
}

nb::tuple lay_out(const In<int32_t>& row_offsets, const In<int32_t>& columns,
                  const In<int32_t>& order, int32_t num_columns, int32_t min_edges) {
  TileLayout result;
  {
    nb::gil_scoped_release release;
    const int32_t num_rows = num_rows_of(row_offsets, columns, order, num_columns);
    result = lay_out_tiles(row_offsets.data(), columns.data(), order.data(), num_rows, num_columns,
                           min_edges);
  }
  return nb::make_tuple(
      to_numpy(std::move(result.columns)), to_matrix(std::move(result.masks), kBatchWords),
      to_matrix(std::move(result.parts), 4), to_numpy(std::move(result.slot_offsets)),
      to_numpy(std::move(result.rest_offsets)), to_numpy(std::move(result.rest_columns)),
      to_numpy(std::move(result.rest_edges)), to_numpy(std::move(result.stage_offsets)),
      to_matrix(std::move(result.edge_counts), kTileRows), to_numpy(std::move(result.edge_offsets)),
      to_numpy(std::move(result.edge_entries)), to_numpy(std::move(result.edges)),
      result.num_entries, result.num_columns);
}

int64_t window_columns(const In<int32_t>& row_offsets, const In<int32_t>& columns,
                       const In<int32_t>& order, int32_t num_columns) {
  nb::gil_scoped_release release;
  const int32_t num_rows = num_rows_of(row_offsets, columns, order, num_columns);
  return count_window_columns(row_offsets.data(), columns.data(), order.data(), num_rows,
                              num_columns);
}

nb::object community_order(const In<int32_t>& row_offsets, const In<int32_t>& columns) {
  if (row_offsets.shape(0) > INT32_MAX) {
    throw std::invalid_argument("order_by_communities: expected fewer than 2^31 rows");
  }
  const int32_t num_rows = static_cast<int32_t>(row_offsets.shape(0)) - 1;
  Buffer<int32_t> result;
  {
    nb::gil_scoped_release release;
    check_rows(row_offsets, columns, num_rows);
    result = order_by_communities(row_offsets.data(), columns.data(), num_rows);
  }
  return nb::cast(to_numpy(std::move(result)));
}

template <class Index>
void bind(nb::module_& m) {
  m.def("translate", &translate_graph<Index>, nb::arg("row_offsets").noconvert(),
        nb::arg("edge_columns").noconvert(), nb::arg("rows"), nb::arg("columns"),
        "Sparse graph translation: blocks of each window, before too, the edges' ranks, the "
        "windows' column offsets and columns, columns by number of edges, distinct entries.");
}

}  // namespace

void bind_tiles(nb::module_& m) {
  bind<int32_t>(m);
  bind<int64_t>(m);
  m.def("lay_out_tiles", &lay_out, nb::arg("row_offsets").noconvert(),
        nb::arg("columns").noconvert(), nb::arg("order").noconvert(), nb::arg("num_columns"),
        nb::arg("min_edges"),
        "Tiles of rows in this order: columns, masks, parts, slot offsets, the rest's offsets and "
        "columns and edges, stage offsets, edge counts, edge offsets, the edges' entries, edges; "
        "the number of entries and of distinct columns of the windows.");
  m.def("order_by_communities", &community_order, nb::arg("row_offsets").noconvert(),
        nb::arg("columns").noconvert(),
        "The rows of a square matrix by communities of communities, then by falling number of "
        "edges; windows of 64 by falling number of edges.");
  m.def("count_window_columns", &window_columns, nb::arg("row_offsets").noconvert(),
        nb::arg("columns").noconvert(), nb::arg("order").noconvert(), nb::arg("num_columns"),
        "The distinct columns of each window of 64 rows of this order, summed.");
}

}  // namespace jaxgnn::host
