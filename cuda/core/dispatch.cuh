// From what is known at run time to kernels: a function called for a dtype or for all of them, and
// the loading of a kernel into the context.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/core/rows.h"

namespace jaxgnn {

// Returns the error of a CUDA call from the function, if there is one.
#define JAXGNN_TRY(expression)                \
  do {                                        \
    const cudaError_t error_ = (expression);  \
    if (error_ != cudaSuccess) return error_; \
  } while (0)

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

// f(Tag<T>{}) for the T of `type`; an error if the list has none.
template <typename F, typename... T>
cudaError_t with_type(Types<T...>, Type type, F f) {
  cudaError_t error = cudaErrorInvalidValue;
  (void)((type == kTypeOf<T> && (error = f(Tag<T>{}), true)) || ...);
  return error;
}
template <typename F>
cudaError_t with_type(Type type, F f) {
  return with_type(AllTypes{}, type, f);
}

// f(Tag<T>{}) for each T of the list, up to the first error.
template <typename F, typename... T>
cudaError_t with_each_type(Types<T...>, F f) {
  cudaError_t error = cudaSuccess;
  (void)(((error = f(Tag<T>{})) == cudaSuccess) && ...);
  return error;
}
template <typename F>
cudaError_t with_each_type(F f) {
  return with_each_type(AllTypes{}, f);
}

// Loads a kernel into the current device's context: that allocates, which a stream capture does
// not permit.
template <typename Kernel>
cudaError_t load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

}  // namespace jaxgnn
