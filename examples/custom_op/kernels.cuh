// What cuda.cc calls of kernels.cu: enqueued on a stream.
#pragma once

#include <cuda_runtime.h>

#include "dirichlet.h"

namespace dirichlet {

cudaError_t enqueue(const EnergyArgs& args, cudaStream_t stream);
cudaError_t enqueue(const GradientArgs& args, cudaStream_t stream);

}  // namespace dirichlet
