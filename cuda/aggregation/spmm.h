// Row-wise reduction: out[r, f] = reduce over the edges e of row r of w[e, h(f)] * x[c(e), f].
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::aggregation {

enum class Reduce { kSum, kMean, kMax, kMin };

struct SpmmArgs {
  Rows rows;
  Type type;
  Reduce reduce;
  const void* x;        // [*, width]
  const void* weights;  // [num_edges, heads] in the accumulation type, or null
  void* out;            // [num_rows, width]
  void* ties;           // [num_rows, width], the edges that attained a maximum or minimum, or null
  void* partials;       // [num_splits, width] in the accumulation type; as many more with ties
  int64_t width;
  int64_t heads;  // divides width
};

// Enqueues the kernels; allocates nothing and reads nothing on the host.
cudaError_t launch_spmm(const SpmmArgs& args, cudaStream_t stream);

// Loads the kernels into the current device's context (needed before a stream capture).
cudaError_t load_spmm();

}  // namespace jaxgnn::aggregation
