// What each family adds to the module.
#pragma once

#include "cuda/core/ffi.h"
#include "ffi/binding.h"

namespace jaxgnn {

using CudaTargets = Targets<StreamLaunch>;

// The handlers of a family that are not for either platform alike, and the loading of all its
// kernels.
namespace maxk {
void add_cuda_targets(CudaTargets& targets);
cudaError_t load_kernels(const Launch& load);
}  // namespace maxk
namespace attention {
void add_cuda_targets(CudaTargets& targets);
void add_window_targets(CudaTargets& targets);
cudaError_t load_kernels(const Launch& load);
}  // namespace attention
namespace sampling {
void add_cuda_targets(CudaTargets& targets);
cudaError_t load_kernels(const Launch& load);
}  // namespace sampling
namespace tiles {
void add_cuda_targets(CudaTargets& targets);
void add_cosine_targets(CudaTargets& targets);
cudaError_t load_kernels(const Launch& load);
}  // namespace tiles

}  // namespace jaxgnn
