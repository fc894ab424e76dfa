// The arguments of MaxK and its products.
#pragma once

#include "common/rows.h"

namespace jaxgnn::maxk {

constexpr int64_t kMaxWidth = 4096;  // columns of the dense form, at most

// Compressed balanced sparse rows: k entries in each, their columns distinct and ascending.
struct Cbsr {
  int64_t num_rows;
  int64_t k;
  int64_t width;        // columns of the dense form
  const void* values;   // T[num_rows, k], or null where only the positions count
  const void* indices;  // [num_rows, k], uint8 for widths to 256, else uint16
};

// The k largest entries of each row of x: NaN first, +0 = -0, the lower column at a tie.
struct MaxkArgs {
  Type type;
  int64_t num_rows;
  int64_t width;
  int64_t k;
  const void* x;  // T[num_rows, width]
  void* values;   // T[num_rows, k]
  void* indices;  // [num_rows, k]
  // What x is before: (scale n(x) + bias) times dropout's mask and scale, in A, rounded to T, with
  // n(x) = (x - mean) / sqrt(variance + epsilon) of the row; or (x + bias) times them. Example i
  // has the rows from i rows_per_example on, which dropout counts from 0.
  const void* scale;     // A[1 or examples, width]; null: no normalization
  const void* bias;      // A[1 or examples, width]; null: none
  const uint32_t* keys;  // [1 or examples, 2]; null: no dropout
  bool scale_of_each;    // a scale for each example
  bool bias_of_each;
  bool key_of_each;
  int64_t rows_per_example;
  uint32_t drop_below;
  double epsilon;
};

// The gradients of a selection of normalized rows, by those of the values that it kept.
struct MaxkNormalizedGradientArgs {
  Type type;
  Cbsr cbsr;            // the values' gradients, and the columns
  const void* x;        // T[num_rows, width]
  const void* scale;    // A[width]
  const uint32_t* key;  // [2]; null: no dropout
  uint32_t drop_below;
  double epsilon;
  int64_t num_blocks;  // of rows, at least 1
  void* dx;            // T[num_rows, width]
  void* sums;          // A[2, width]: the gradients of the scale and of the bias
  void* partials;      // A[num_blocks, 2 width], scratch
};

struct CbsrScatterArgs {
  Type type;
  Cbsr cbsr;
  void* out;  // T[num_rows, width]: zeros elsewhere
};

// With S(v) the dense form of a sparse row, v its values and I its columns:
//   maxk_spmm:   out[r] = reduce over the edges e of row r of weights[e] S(v[column(e)])
//   maxk_sspmm:  out[r, c] = sum over the edges e of row r of weights[e] dense[column(e), I[r, c]]
//   maxk_sddmm:  out[e] = sum over c of v[column(e), c] dense[r(e), I[column(e), c]]
struct MaxkProductArgs {
  Rows rows;
  Type type;
  Reduce reduce;  // sum or mean, of maxk_spmm
  Cbsr cbsr;
  const void* dense;    // T[., width]
  const void* weights;  // A[E], or null for ones
  void* out;            // T[R, width], T[R, k] or A[E]
  void* partials;       // A[num_chunks, the width of out], scratch
};

}  // namespace jaxgnn::maxk
