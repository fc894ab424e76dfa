// Philox (common/philox.h) for several counters at once.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "common/philox.h"
#include "cpu/core/simd.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace jaxgnn {
namespace {

// A counter in each lane, or a word of it in the low half.
constexpr int kCounters = kVectorBytes / 8;
using Wide = Vector<uint64_t, kCounters>;

// The low halves of 64-bit lanes times a 32-bit number.
JAXGNN_INLINE Wide multiply_low(Wide v, uint32_t by) {
#if defined(__AVX512F__)
  return (Wide)_mm512_maskz_mul_epu32(0xff, (__m512i)v, _mm512_set1_epi64(by));
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)v, _mm256_set1_epi64x(by));
#elif defined(__SSE2__)
  return (Wide)_mm_mul_epu32((__m128i)v, _mm_set1_epi64x(by));
#else
  return (v & 0xffffffffu) * uint64_t{by};
#endif
}

// Words 0 and 1, and words 2 and 3, of each counter's four: the even one in the low half.
struct PhiloxPairs {
  Wide first, second;
};

// The words of the counters (number, block, 0): `number` is the first two words.
JAXGNN_INLINE PhiloxPairs philox_pairs(Wide number, Wide block, uint32_t key0, uint32_t key1) {
  Wide c0 = number, c1 = number >> 32, c2 = block, c3 = {};
  for (int round = 0; round < 10; ++round) {
    const Wide product0 = multiply_low(c0, 0xD2511F53u);
    const Wide product1 = multiply_low(c2, 0xCD9E8D57u);
    c0 = (product1 >> 32) ^ c1 ^ key0;
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ key1;
    c3 = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  constexpr uint64_t kLow = 0xffffffff;
  return {(c0 & kLow) | (c1 << 32), (c2 & kLow) | (c3 << 32)};
}

}  // namespace
}  // namespace jaxgnn
