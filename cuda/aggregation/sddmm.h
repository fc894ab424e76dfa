// Dot products on edges: out[e, h] = sum over d of a[r(e), h, d] * b[c(e), h, d].
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::aggregation {

struct SddmmArgs {
  Rows rows;
  Type type;
  const void* a;  // [num_rows, heads * width]
  const void* b;  // [*, heads * width]
  void* out;      // [num_edges, heads] in the accumulation type
  int64_t heads;
  int64_t width;        // of a head
  int64_t num_columns;  // rows of b
  // For the derivative of an extremum (x is null otherwise): only those terms count where the
  // product of weight and x, rounded to the type, equals y.
  const void* x;        // [*, heads * width]
  const void* y;        // [num_rows, heads * width]
  const void* weights;  // [num_edges, heads] in the accumulation type, or null
};

cudaError_t launch_sddmm(const SddmmArgs& args, cudaStream_t stream);
cudaError_t load_sddmm();

}  // namespace jaxgnn::aggregation
