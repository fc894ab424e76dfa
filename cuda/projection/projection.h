// The launch of the gradient of a projection's weights.
#pragma once

#include "common/projection.h"
#include "cuda/core/launch.h"

namespace jaxgnn::projection {

cudaError_t launch_weight_gradient(const WeightGradientArgs& args, const Launch& launch);

}  // namespace jaxgnn::projection
