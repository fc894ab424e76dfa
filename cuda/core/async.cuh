// Copies to shared memory that a thread does not wait for.
#pragma once

#include "cuda/core/shared.cuh"

namespace jaxgnn {

__device__ inline void copy16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same, or zeros.
__device__ inline void copy16(unsigned to, const void* from, bool there) {
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void copy4(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy8(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// kBytes bytes, 16, 8 or 4, or zeros.
template <int kBytes>
__device__ inline void copy_or_zeros(unsigned to, const void* from, bool there) {
  if constexpr (kBytes == 16) {
    copy16(to, from, there);
  } else {
    const int bytes = there ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ inline void wait_for_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace jaxgnn
