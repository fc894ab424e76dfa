// Where kernels go.
#pragma once

#include <cuda_runtime.h>

namespace jaxgnn {

// Kernels are launched on `stream`; or with `load` every kernel that a call could choose is loaded
// into the current device's context, and none launched: loading allocates, which the capture of a
// CUDA graph does not permit. Launching allocates nothing and reads nothing on the host.
struct Launch {
  cudaStream_t stream;
  bool load;
};

// Returns the error of a CUDA call from the function, if there is one.
#define JAXGNN_TRY(expression)                \
  do {                                        \
    const cudaError_t error_ = (expression);  \
    if (error_ != cudaSuccess) return error_; \
  } while (0)

}  // namespace jaxgnn
