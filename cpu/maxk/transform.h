// What a selection does to a row before it chooses, and how rows are shared out.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <cmath>

#include "cpu/core/dot.h"
#include "cpu/core/philox.h"

namespace jaxgnn::maxk {
namespace {

// Calls body(first, last) for all rows, each of which costs `row_bytes`.
template <class F>
void over_blocks(const Executor& executor, int64_t rows, int64_t row_bytes, const F& body) {
  const int64_t items = item_count(executor, rows, row_bytes);
  parallel_for(executor, items,
               [&](int64_t item) { body(rows * item / items, rows * (item + 1) / items); });
}

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

// What a row is normalized by.
template <class A>
struct Moments {
  A mean;
  A inverse_deviation;
};

// The variance is that of the differences from the mean: E[x^2] - E[x]^2 would cancel.
template <class T>
Moments<Accumulator<T>> moments_of(const T* x, int64_t width, double epsilon) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<T>;
  const A count = static_cast<A>(width);
  const A mean =
      sum_terms<A, N>(0, width,
                      [&](auto lanes, int64_t f) { return load<decltype(lanes)::value>(x + f); }) /
      count;
  const A squares = sum_terms<A, N>(0, width, [&](auto lanes, int64_t f) {
    const auto centered = load<decltype(lanes)::value>(x + f) - mean;
    return centered * centered;
  });
  return {mean, A{1} / std::sqrt(squares / count + static_cast<A>(epsilon))};
}

}  // namespace
}  // namespace jaxgnn::maxk
