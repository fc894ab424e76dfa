// The launch of the gradient of a projection's weights.
#pragma once

#include "common/projection.h"
#include "cuda/core/launch.h"

namespace jaxgnn::projection {

cudaError_t launch_weight_gradient(const WeightGradientArgs& args, const Launch& launch);

// The blocks' sums for Hopper, of `num_blocks` of them or, where fewer keep all `processors` busy,
// of so many, which `num_blocks` then is.
cudaError_t launch_products_wgmma(const WeightGradientArgs& args, const Launch& launch,
                                  int processors, int64_t& num_blocks);

}  // namespace jaxgnn::projection
