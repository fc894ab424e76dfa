// What a selection draws for a row before it chooses.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/core/philox.h"

namespace jaxgnn::maxk {
namespace {

// Writes the even lanes of both, in pairs, and then the odd ones.
JAXGNN_INLINE void store_pairs(uint32_t* to, Wide first, Wide second) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(to, _mm512_maskz_unpacklo_epi64(0xff, (__m512i)first, (__m512i)second));
  _mm512_storeu_si512(to + 16, _mm512_maskz_unpackhi_epi64(0xff, (__m512i)first, (__m512i)second));
#elif defined(__AVX2__)
  __m256i* const at = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(at, _mm256_unpacklo_epi64((__m256i)first, (__m256i)second));
  _mm256_storeu_si256(at + 1, _mm256_unpackhi_epi64((__m256i)first, (__m256i)second));
#else
  const uint64_t pairs[4] = {first[0], second[0], first[1], second[1]};
  std::memcpy(to, pairs, sizeof(pairs));
#endif
}

// Dropout's words of a row, rounded up to whole vectors: a block of four columns in each lane.
constexpr int64_t kDrawn = kColumnsPerBlock * kCounters;

void draw_words(uint64_t row, const uint32_t* key, int64_t width, uint32_t* words) {
  Wide lane;  // the first half of the blocks in the even lanes: the order of store_pairs
  for (int i = 0; i < kCounters; ++i) {
    lane[i] = static_cast<uint64_t>(i / 2 + i % 2 * kCounters / 2);
  }
  for (int64_t f = 0; f < width; f += kDrawn) {
    const Wide block = lane + static_cast<uint64_t>(f / kColumnsPerBlock);
    const PhiloxPairs drawn = philox_pairs(Wide{} + row, block, key[0], key[1]);
    store_pairs(words + f, drawn.first, drawn.second);
  }
}

}  // namespace
}  // namespace jaxgnn::maxk
