// The arguments of the gradient of a projection's weights.
#pragma once

#include "common/rows.h"

namespace jaxgnn::projection {

// out = x^T g: a sum over the rows, by `num_blocks` blocks of them that are summed in order.
struct WeightGradientArgs {
  Type type;
  int64_t num_rows;
  int64_t in_features;
  int64_t out_features;
  int64_t num_blocks;
  bool warpgroups;  // whether a Hopper GPU runs its own kernels
  const void* x;    // T[R, F]
  const void* g;    // T[R, G]
  void* out;        // T[F, G]
  void* partials;   // A[num_blocks, F G], scratch
};

}  // namespace jaxgnn::projection
