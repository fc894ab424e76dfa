// Additions to memory that no one reads meanwhile: done in L2, without waiting, in any order.
#pragma once

namespace jaxgnn::maxk {

// address[i] += v[i]; four or two at a time are one reduction where the GPU has those.
template <int kCount>
__device__ inline void reduce_to(float* address, const float (&v)[kCount]) {
#if __CUDA_ARCH__ >= 900
  constexpr bool kVector = kCount == 4 || kCount == 2;
#else
  constexpr bool kVector = false;
#endif
  if constexpr (kVector && kCount == 2) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};"
                 :
                 : "l"(address), "f"(v[0]), "f"(v[1])
                 : "memory");
  } else if constexpr (kVector) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) atomicAdd(address + i, v[i]);
  }
}

}  // namespace jaxgnn::maxk
