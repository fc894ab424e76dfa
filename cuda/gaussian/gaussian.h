// The launches of Gaussian weights.
#pragma once

#include "common/gaussian.h"
#include "cuda/core/launch.h"

namespace jaxgnn::gaussian {

cudaError_t launch_gaussian_spmm(const GaussianSumArgs& args, const Launch& launch);
cudaError_t launch_gaussian_coordinates(const GaussianGradientArgs& args, const Launch& launch);

}  // namespace jaxgnn::gaussian
