// What every row-wise kernel takes: a compressed row structure, and the split of its long rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace jaxgnn {

enum class Type { kF32, kBF16, kF16, kF64 };

// Offsets and columns are int32, or int64 where the edge count needs it.
struct Rows {
  const void* offsets;   // [num_rows + 1]
  const void* columns;   // [num_edges]; null: edge e reads entry e
  const int2* splits;    // [num_splits] of (row, part); row -1 is padding
  const int32_t* order;  // [num_rows]: which row comes when; null: by number
  bool wide_offsets;
  bool wide_columns;
  int num_splits;
  int64_t num_rows;
  int64_t num_edges;
  int64_t split_length;
};

}  // namespace jaxgnn
