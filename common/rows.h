// What the kernels of either platform take: plain structs of raw pointers, and types by name.
#pragma once

#include <cstdint>

namespace jaxgnn {

// T, the type of features. Sums are of the accumulation type A: float, or double for kF64.
enum class Type { kF32, kBF16, kF16, kF64 };

// By their FFI attribute.
enum class Reduce : int64_t { kSum, kMean, kMax, kMin };

// One chunk of a long row. Row -1 is padding.
struct alignas(8) RowPart {
  int32_t row;
  int32_t part;
};

// A compressed row structure, and the chunks of its long rows. Edge e of row r has
// offsets[r] <= e < offsets[r + 1]. Offsets and columns are int32, or int64 (`wide`).
struct Rows {
  const void* offsets;    // [num_rows + 1]
  const void* columns;    // [num_edges]; null: edge e reads entry e
  const RowPart* chunks;  // [num_chunks], ascending: the parts of rows longer than chunk_length
  const int32_t* order;   // [num_rows]: which row comes when; null: by number
  bool wide_offsets;
  bool wide_columns;
  int num_chunks;
  int64_t num_rows;
  int64_t num_edges;
  int64_t chunk_length;
};

}  // namespace jaxgnn
