// The linear maps of the derivative of max and min over neighbours.
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::aggregation {

// An edge between r (its end in y) and j (its end in x) attained the extremum at feature f if
// T(w[e, h] * x[j, f]) == y[r, f]. Along (transpose false): rows are r, columns j,
//   out[r, f] = sum over attaining edges of scale[e, h] * values[j, f];
// transpose: rows are j, columns r, and values lie at r. Null weights and scale count as 1; there
// are both or neither.
struct ExtremumArgs {
  Rows rows;
  Type type;
  bool transpose;
  const void* x;
  const void* y;
  const void* weights;  // [num_edges, heads] in the accumulation type
  const void* values;   // [columns, width]
  const void* scale;    // [num_edges, heads] in the accumulation type
  void* out;            // [num_rows, width]
  void* partials;       // [num_splits, width] in the accumulation type
  int64_t width;
  int64_t heads;
};

cudaError_t launch_extremum(const ExtremumArgs& args, cudaStream_t stream);
cudaError_t load_extremum();

}  // namespace jaxgnn::aggregation
