// Products of Hopper's warpgroups (wgmma, for sm_90a): four consecutive warps multiply 64 rows of A
// by 32, 64 or 128 rows of B, 32 bytes of each at a time, summed in float32. Both are in shared
// memory.
//
// In shared memory rows lie in panels of 128 bytes of each, of which the 16-byte pieces of a row
// are exchanged (`swizzled`). Of the result a thread has, with w its warp in the group, g = lane
// div 4 and t = lane mod 4, in c[4 j + 2 h + i] the product of A's row 16 w + g + 8 h and B's row
// 8 j + 2 t + i.
#pragma once

#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"

namespace jaxgnn::warpgroup {

constexpr int kThreads = 128;
constexpr int kRows = 64;         // of A
constexpr int kPanelBytes = 128;  // of a row
constexpr int kStepBytes = 32;    // of a row, which an instruction multiplies
constexpr int kSteps = kPanelBytes / kStepBytes;
constexpr int kAtomRows = 8;  // the exchange repeats after so many
constexpr int kAtomBytes = kAtomRows * kPanelBytes;

// Where a 16-byte piece of a row is in a panel, which begins at a multiple of kAtomBytes.
__host__ __device__ constexpr int swizzled(int row, int piece) {
  return row * kPanelBytes + ((piece ^ (row % kAtomRows)) << 4);
}

// What an instruction takes of a panel: its address, kAtomBytes from eight rows to the next eight,
// and the exchange of 128 bytes. So many bytes further it is `bytes / 16` more.
__device__ inline uint64_t describe(unsigned address) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{kAtomBytes / 16} << 32 |
         uint64_t{1} << 62;
}

// After a thread's stores to shared memory, before the barrier behind which they are multiplied.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before the first product whose registers were written otherwise.
__device__ inline void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits for all products of the group; only then may their registers be read.
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Keeps the compiler from reading them earlier.
template <int kValues>
__device__ inline void after_products(float (&c)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

#define JAXGNN_VALUES4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define JAXGNN_VALUES16(i) \
  JAXGNN_VALUES4(i), JAXGNN_VALUES4(i + 4), JAXGNN_VALUES4(i + 8), JAXGNN_VALUES4(i + 12)
#define JAXGNN_NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define JAXGNN_NAMES32 \
  JAXGNN_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define JAXGNN_VALUES32(i) JAXGNN_VALUES16(i), JAXGNN_VALUES16(i + 16)
#define JAXGNN_NAMES64                                                                    \
  JAXGNN_NAMES32                                                                          \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
  "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define JAXGNN_WGMMA(add, shape, c_and_operands, flags)                                   \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned." shape \
  " {" c_and_operands ", add, 1, 1" flags ";\n}"

// c = a b, or with `add` c += a b. The flags say that nothing is transposed, which only 16-bit
// values in shared memory could be.
#define JAXGNN_PRODUCTS(T, types, flags)                                                      \
  __device__ inline void multiply(float (&c)[16], uint64_t a, uint64_t b, bool add, Tag<T>) { \
    asm volatile(JAXGNN_WGMMA("%18", "m64n32" types, JAXGNN_NAMES16 "}, %16, %17", flags)     \
                 : JAXGNN_VALUES16(0)                                                         \
                 : "l"(a), "l"(b), "r"(add ? 1 : 0));                                         \
  }                                                                                           \
  __device__ inline void multiply(float (&c)[32], uint64_t a, uint64_t b, bool add, Tag<T>) { \
    asm volatile(JAXGNN_WGMMA("%34", "m64n64" types, JAXGNN_NAMES32 "}, %32, %33", flags)     \
                 : JAXGNN_VALUES32(0)                                                         \
                 : "l"(a), "l"(b), "r"(add ? 1 : 0));                                         \
  }                                                                                           \
  __device__ inline void multiply(float (&c)[64], uint64_t a, uint64_t b, bool add, Tag<T>) { \
    asm volatile(JAXGNN_WGMMA("%66", "m64n128" types, JAXGNN_NAMES64 "}, %64, %65", flags)    \
                 : JAXGNN_VALUES32(0), JAXGNN_VALUES32(32)                                    \
                 : "l"(a), "l"(b), "r"(add ? 1 : 0));                                         \
  }
JAXGNN_PRODUCTS(float, "k8.f32.tf32.tf32", "")
JAXGNN_PRODUCTS(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
JAXGNN_PRODUCTS(__half, "k16.f32.f16.f16", ", 0, 0")
#undef JAXGNN_PRODUCTS
#undef JAXGNN_WGMMA
#undef JAXGNN_NAMES64
#undef JAXGNN_NAMES32
#undef JAXGNN_NAMES16
#undef JAXGNN_VALUES32
#undef JAXGNN_VALUES16
#undef JAXGNN_VALUES4

}  // namespace jaxgnn::warpgroup
