// Products of a graph with compressed balanced sparse rows, row by row.
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::maxk {

struct MaxkSpmmArgs {
  Type type;
  Rows rows;
  const void* values;     // [num_columns, k]
  const void* columns;    // [num_columns, k], uint8 for widths to 256, else uint16
  const float* weights;   // [num_edges], or null
  void* out;              // [num_rows, width]
  float* partials;        // [num_splits, width]
  const uint32_t* range;  // see launch_range; null: never in fixed point
  const float* sizes;     // of the records (see fixed_point.cuh), with range
  uint32_t* flags;        // [num_splits + num_rows], zeros before, with range
  bool fallback;          // another kernel has done this in fixed point but for what is flagged
  int64_t width;
  int64_t k;
  bool mean;
};

// out_i = sum over the row's edges of w_e times the record of the edge's column.
cudaError_t launch_maxk_spmm(const MaxkSpmmArgs& args, cudaStream_t stream);
cudaError_t load_maxk_spmm();

struct RangeArgs {
  Type type;
  const void* values;  // [num_rows, width]
  int64_t num_rows;
  int64_t width;
  uint32_t* range;         // [2]
  float* sizes;            // [num_rows], or null
  const uint8_t* columns;  // [num_rows, width], with words
  uint32_t* words;         // [num_rows, width], or null; then the width is a multiple of 4
  uint32_t* flags;         // [num_flags]
  int64_t num_flags;
};

// What decides about fixed point: the sizes of rows of values, and their range (fixed_point.cuh).
// Beside that, each value and its column in one word (cbsr.cuh), and flags set to 0.
cudaError_t launch_range(const RangeArgs& args, cudaStream_t stream);

struct MaxkSspmmArgs {
  Type type;
  Rows rows;             // gather: rows are those of the record; scatter: those of `dense`
  const void* dense;     // [.., width]
  const void* columns;   // [.., k]
  const float* weights;  // [num_edges], or null
  void* out;             // gather: [num_rows, k] of the type; scatter: float sums, zeroed here
  float* partials;       // gather: [num_splits, k]
  int64_t width;
  int64_t k;
  int64_t num_records;
  const uint32_t* range;  // gather: do nothing where 64-bit fixed point holds (see
                          // fixed_point.cuh), for another kernel has done it; or null
};

// out_jc = sum over edges of w_e dense_i at column c of the record: gathered over the rows of the
// transpose, always in the same order,
cudaError_t launch_maxk_sspmm(const MaxkSspmmArgs& args, cudaStream_t stream);
// or scattered from the rows of the graph by float reductions in L2, in any order.
cudaError_t launch_maxk_sspmm_scatter(const MaxkSspmmArgs& args, cudaStream_t stream);
cudaError_t load_maxk_sspmm();

// Float sums rounded to the type.
cudaError_t launch_round(Type type, const float* sums, void* out, int64_t size,
                         cudaStream_t stream);

struct MaxkSddmmArgs {
  Type type;
  Rows rows;           // those of `dense`
  const void* values;  // [num_columns, k]
  const void* columns;
  const void* dense;  // [num_rows, width]
  float* out;         // [num_edges]
  int64_t width;
  int64_t k;
};

// out_e = sum over c of the record's value times dense_i at its column.
cudaError_t launch_maxk_sddmm(const MaxkSddmmArgs& args, cudaStream_t stream);
cudaError_t load_maxk_sddmm();

}  // namespace jaxgnn::maxk
