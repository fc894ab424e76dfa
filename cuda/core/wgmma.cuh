// Products of Hopper's warpgroups (wgmma, for sm_90a): four consecutive warps multiply 64 rows of A
// by 32, 64, 128 or 256 rows of B, 32 bytes of each at a time, summed in float32. Both are in
// shared memory; float32's A may be in registers.
//
// In shared memory rows lie in panels of 128 bytes of each, of which the 16-byte pieces of a row
// are exchanged (`swizzled`). Of the result a thread has, with w its warp in the group, g = lane
// div 4 and t = lane mod 4, in c[4 j + 2 h + i] the product of A's row 16 w + g + 8 h and B's row
// 8 j + 2 t + i.
//
// Matrices of 16-bit values may also lie by columns (`describe_columns`): a panel then has 128
// bytes of each column, the values of 64 rows, and columns are exchanged as rows are.
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

// The same of 16-bit values by columns: of more than 64 rows the next panel is `panel_bytes` on,
// and kAtomBytes go from eight columns to the next eight.
__device__ inline uint64_t describe_columns(unsigned address, unsigned panel_bytes) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{panel_bytes / 16} << 16 |
         uint64_t{kAtomBytes / 16} << 32 | uint64_t{1} << 62;
}

// After a thread's stores to shared memory, before the barrier behind which they are multiplied.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before the first product whose registers were written otherwise.
__device__ inline void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits for the products of the group but those of the last kLeft commits; only then may their
// registers be read.
template <int kLeft = 0>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
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
#define JAXGNN_VALUES32(i) JAXGNN_VALUES16(i), JAXGNN_VALUES16(i + 16)
#define JAXGNN_VALUES64(i) JAXGNN_VALUES32(i), JAXGNN_VALUES32(i + 32)
#define JAXGNN_VALUES128(i) JAXGNN_VALUES64(i), JAXGNN_VALUES64(i + 64)
#define JAXGNN_NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define JAXGNN_NAMES32 \
  JAXGNN_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define JAXGNN_NAMES64                                                                    \
  JAXGNN_NAMES32                                                                          \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
  "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define JAXGNN_NAMES128                                                                         \
  JAXGNN_NAMES64                                                                                \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"   \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106," \
  "%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,"  \
  "%125,%126,%127"
#define JAXGNN_WGMMA(add, shape, c_and_operands, flags)                                   \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned." shape \
  " {" c_and_operands ", add, 1, 1" flags ";\n}"

// c = a b, or with `add` c += a b, of both in shared memory. The flags say whether they lie by
// columns, which only 16-bit values can.
#define JAXGNN_PRODUCT(name, T, values, shape, operands, add_at, flags)                       \
  __device__ inline void name(float (&c)[values], uint64_t a, uint64_t b, bool add, Tag<T>) { \
    asm volatile(JAXGNN_WGMMA(add_at, shape, JAXGNN_NAMES##values "}, " operands, flags)      \
                 : JAXGNN_VALUES##values(0)                                                   \
                 : "l"(a), "l"(b), "r"(add ? 1 : 0));                                         \
  }
#define JAXGNN_PRODUCTS(name, T, types, flags)                           \
  JAXGNN_PRODUCT(name, T, 16, "m64n32" types, "%16, %17", "%18", flags)  \
  JAXGNN_PRODUCT(name, T, 32, "m64n64" types, "%32, %33", "%34", flags)  \
  JAXGNN_PRODUCT(name, T, 64, "m64n128" types, "%64, %65", "%66", flags) \
  JAXGNN_PRODUCT(name, T, 128, "m64n256" types, "%128, %129", "%130", flags)
JAXGNN_PRODUCTS(multiply, float, "k8.f32.tf32.tf32", "")
JAXGNN_PRODUCTS(multiply, __nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
JAXGNN_PRODUCTS(multiply, __half, "k16.f32.f16.f16", ", 0, 0")
JAXGNN_PRODUCTS(multiply_columns, __nv_bfloat16, "k16.f32.bf16.bf16", ", 1, 1")
JAXGNN_PRODUCTS(multiply_columns, __half, "k16.f32.f16.f16", ", 1, 1")

// The same of TF32's A in registers, which hold values until the products are waited for: a thread
// has a[2 k + h], of row 16 w + g + 8 h the value t + 4 k of a step's eight.
#define JAXGNN_PRODUCT_OF_REGISTERS(values, shape, operands, add_at)                      \
  __device__ inline void multiply(float (&c)[values], const uint32_t (&a)[4], uint64_t b, \
                                  bool add) {                                             \
    asm volatile(JAXGNN_WGMMA(add_at, shape, JAXGNN_NAMES##values "}, " operands, "")     \
                 : JAXGNN_VALUES##values(0)                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0)); \
  }
JAXGNN_PRODUCT_OF_REGISTERS(32, "m64n64k8.f32.tf32.tf32", "{%32,%33,%34,%35}, %36", "%37")
JAXGNN_PRODUCT_OF_REGISTERS(64, "m64n128k8.f32.tf32.tf32", "{%64,%65,%66,%67}, %68", "%69")
JAXGNN_PRODUCT_OF_REGISTERS(128, "m64n256k8.f32.tf32.tf32", "{%128,%129,%130,%131}, %132", "%133")
#undef JAXGNN_PRODUCT_OF_REGISTERS
#undef JAXGNN_PRODUCTS
#undef JAXGNN_PRODUCT
#undef JAXGNN_WGMMA
#undef JAXGNN_NAMES128
#undef JAXGNN_NAMES64
#undef JAXGNN_NAMES32
#undef JAXGNN_NAMES16
#undef JAXGNN_VALUES128
#undef JAXGNN_VALUES64
#undef JAXGNN_VALUES32
#undef JAXGNN_VALUES16
#undef JAXGNN_VALUES4

}  // namespace jaxgnn::warpgroup
