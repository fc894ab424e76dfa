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

// What the current device has.
struct DeviceLimits {
  int processors;
  int shared_bytes;  // of a block, at most
  int capability;    // 90 is Hopper
};

inline cudaError_t find_limits(DeviceLimits& limits) {
  int device = 0;
  JAXGNN_TRY(cudaGetDevice(&device));
  JAXGNN_TRY(cudaDeviceGetAttribute(&limits.processors, cudaDevAttrMultiProcessorCount, device));
  int major = 0, minor = 0;
  JAXGNN_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  JAXGNN_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  limits.capability = 10 * major + minor;
  return cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                device);
}

}  // namespace jaxgnn
