// Sparse graph translation: the columns that each window of rows reads, condensed to ranks.
//
// Algorithm 1 of TC-GNN (Wang et al., USENIX ATC 2023). Plain pointers in, owned buffers out; the
// same result for any number of threads.
#pragma once

#include <cstdint>

#include "cpu/host/graph.h"

namespace jaxgnn::host {

// `Index` counts edges. A window is `rows` consecutive rows; num_windows = ceil(num_rows / rows).
template <class Index>
struct Translation {
  Buffer<int32_t> window_blocks;         // [num_windows]: ceil(distinct columns / columns)
  Buffer<int32_t> window_blocks_before;  // [num_windows]: blocks that cover the columns in place
  Buffer<int32_t> edge_columns;          // [num_edges]: the rank of the edge's column
  Buffer<Index> column_offsets;          // [num_windows + 1]: where a window's columns begin
  Buffer<int32_t> columns;               // the distinct columns of each window, ascending
  Buffer<Index> edge_histogram;          // [rows + 1]: columns by edges; the last: rows or more
  int64_t num_entries = 0;               // distinct pairs of row and column
};

// Blocks before: each begins at the first column that the blocks to its left do not cover.
//
// `edge_columns_in` are the columns of the rows' edges, below 2^31. Fast where rows are sorted,
// correct if they are not. Throws std::length_error for a window of 2^32 edges or more.
template <class Index>
Translation<Index> translate(const Index* row_offsets, const int32_t* edge_columns_in,
                             int64_t num_rows, int32_t rows, int32_t columns);

}  // namespace jaxgnn::host
