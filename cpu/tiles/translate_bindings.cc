// NumPy bindings of translate.h. They release the GIL while they work.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <utility>

#include "cpu/bindings.h"
#include "cpu/host/numpy.h"
#include "cpu/tiles/translate.h"

namespace jaxgnn::host {
namespace {

template <class Index>
nb::tuple translate_graph(const In<Index>& row_offsets, const In<int32_t>& edge_columns,
                          int32_t rows, int32_t columns) {
  const int64_t num_rows = static_cast<int64_t>(row_offsets.shape(0)) - 1;
  // The Python side checks all of this, with better messages: here, only what would be unsafe.
  if (num_rows < 0 || rows < 1 || columns < 1 ||
      static_cast<std::size_t>(row_offsets.data()[num_rows]) != edge_columns.shape(0)) {
    throw std::invalid_argument("translate: inconsistent arguments");
  }
  Translation<Index> result;
  {
    nb::gil_scoped_release release;
    result = translate(row_offsets.data(), edge_columns.data(), num_rows, rows, columns);
  }
  return nb::make_tuple(
      to_numpy(std::move(result.window_blocks)), to_numpy(std::move(result.window_blocks_before)),
      to_numpy(std::move(result.edge_columns)), to_numpy(std::move(result.column_offsets)),
      to_numpy(std::move(result.columns)), to_numpy(std::move(result.edge_histogram)),
      result.num_entries);
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
}

}  // namespace jaxgnn::host
