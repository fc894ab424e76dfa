// From what is known at run time to kernels: a function called for a dtype or, to load kernels, for
// all of them; and the launch of a kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/rows.h"
#include "cuda/core/launch.h"

namespace jaxgnn {

template <typename T>
constexpr Type kTypeOf = Type::kF32;
template <>
inline constexpr Type kTypeOf<__nv_bfloat16> = Type::kBF16;
template <>
inline constexpr Type kTypeOf<__half> = Type::kF16;
template <>
inline constexpr Type kTypeOf<double> = Type::kF64;

template <typename... T>
struct Types {};
using AllTypes = Types<float, __nv_bfloat16, __half, double>;
using NarrowTypes = Types<float, __nv_bfloat16, __half>;  // those that accumulate in float

// What a generic lambda is told its type with: `using T = typename decltype(tag)::type`.
template <typename T>
struct Tag {
  using type = T;
};

// f(Tag<T>{}) for the T of `type`, an error if the list has none; to load, for each T of the list,
// up to the first error.
template <typename F, typename... T>
cudaError_t with_type(Types<T...>, const Launch& launch, Type type, F f) {
  if (launch.load) {
    cudaError_t error = cudaSuccess;
    (void)(((error = f(Tag<T>{})) == cudaSuccess) && ...);
    return error;
  }
  cudaError_t error = cudaErrorInvalidValue;
  (void)((type == kTypeOf<T> && (error = f(Tag<T>{}), true)) || ...);
  return error;
}
template <typename F>
cudaError_t with_type(const Launch& launch, Type type, F f) {
  return with_type(AllTypes{}, launch, type, f);
}

// Loads a kernel into the current device's context.
template <typename Kernel>
cudaError_t load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(const Launch& launch, void (*kernel)(Parameters...), dim3 grid,
                          dim3 threads, size_t shared_bytes, const Arguments&... arguments) {
  if (launch.load) return load_kernel(kernel);
  kernel<<<grid, threads, shared_bytes, launch.stream>>>(arguments...);
  return cudaGetLastError();
}

// The same for a kernel that may need more shared memory than the 48 KB that a block has without
// being asked for, up to `kMostShared`.
template <int kMostShared = 64 * 1024, typename... Parameters, typename... Arguments>
cudaError_t launch_large_kernel(const Launch& launch, void (*kernel)(Parameters...), dim3 grid,
                                dim3 threads, size_t shared_bytes, const Arguments&... arguments) {
  JAXGNN_TRY(launch_kernel(launch, kernel, grid, threads, shared_bytes, arguments...));
  if (!launch.load) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
}

}  // namespace jaxgnn
