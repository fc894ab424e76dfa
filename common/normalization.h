// The arguments of normalization and of its gradients.
#pragma once

#include "common/rows.h"

namespace jaxgnn::normalization {

// out = scale n(x) + bias, with n(x) = (x - mean) / sqrt(variance + epsilon) of each row.
struct LayerNormArgs {
  Type type;
  int64_t num_rows;
  int64_t width;
  const void* x;      // T[num_rows, width]
  const void* scale;  // A[width]
  const void* bias;   // A[width]
  double epsilon;
  void* out;  // T[num_rows, width]
};

struct LayerNormGradientArgs {
  Type type;
  int64_t num_rows;
  int64_t width;
  const void* x;         // T[num_rows, width]
  const void* scale;     // A[width]
  const void* gradient;  // T[num_rows, width], of the result
  double epsilon;
  int64_t num_blocks;  // of rows, at least 1
  void* dx;            // T[num_rows, width]
  void* sums;          // A[2, width]: the gradients of the scale and of the bias
  void* partials;      // A[num_blocks, 2 width], scratch
};

// Of the rows that count, of batch normalization: sums[0] = sum_i a_i and sums[1] = sum_i a_i c_i
// with the centered rows c = x - shift, and a = gradient, or c without one. A gradient of 0 adds
// nothing, whatever the row.
struct CenteredSumsArgs {
  Type type;
  int64_t num_rows;
  int64_t width;
  const void* x;         // T[num_rows, width]
  const void* shift;     // A[width]
  const void* gradient;  // T[num_rows, width], or null
  const bool* mask;      // [num_rows], the rows that count; null if all do
  int64_t num_blocks;    // of rows, at least 1
  void* sums;            // A[2, width]
  void* partials;        // A[num_blocks, 2 width], scratch
};

}  // namespace jaxgnn::normalization
