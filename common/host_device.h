// For functions that the kernels of a CPU and of CUDA share.
#pragma once

#if defined(__CUDACC__)
#define JAXGNN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define JAXGNN_HOST_DEVICE inline __attribute__((always_inline))
#endif
