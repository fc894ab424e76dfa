// Products of a graph with compressed balanced sparse rows, row by row.
#pragma once

#include "rows.h"

namespace jaxgnn {

struct MaxkSpmmArgs {
  Type type;
  Rows rows;
  const void* values;     // [num_columns, k]
  const void* columns;    // [num_columns, k], uint8 for widths to 256, else uint16
  const float* weights;   // [num_edges], or null
  void* out;              // [num_rows, width]
  float* partials;        // [num_splits, width]
  const uint32_t* range;  // see launch_range; null: never in fixed point
  const float* largest;   // magnitudes of the records, with range
  bool fallback;          // another kernel has done this in fixed point where there is a scale,
  const uint32_t* flags;  // but for the rows flagged here, if records are not alike
  int64_t width;
  int64_t k;
  bool mean;
};

// out_i = sum over the row's edges of w_e times the record of the edge's column.
cudaError_t launch_maxk_spmm(const MaxkSpmmArgs& args, cudaStream_t stream);
cudaError_t load_maxk_spmm();

// The magnitudes of [num_rows, width] values that decide about fixed point (see fixed_point.cuh),
// into range[0] and range[1], and of each row into `largest` unless that is null.
cudaError_t launch_range(Type type, const void* values, int64_t num_rows, int64_t width,
                         uint32_t* range, float* largest, cudaStream_t stream);

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
  bool mean;              // scatter: divide by the rows' degrees
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

}  // namespace jaxgnn
