#include "cpu/dropout/mask.h"

#include "cpu/core/philox.h"
#include "cpu/core/rows.h"

namespace jaxgnn::dropout {
namespace {

// The columns whose words one call draws: a block of four in each lane.
constexpr int kDrawn = static_cast<int>(kColumnsPerBlock) * kCounters;
static_assert(kColumnsPerWord % kDrawn == 0, "a word of the mask is drawn by whole calls");

// Blocks in the order that makes bits_from cheap: the first half in the even lanes.
JAXGNN_INLINE Wide block_lanes() {
  Wide lane;
  for (int i = 0; i < kCounters; ++i) {
    lane[i] = static_cast<uint64_t>(i / 2 + i % 2 * kCounters / 2);
  }
  return lane;
}

// A bit for each drawn word that is at least `below`, in the order of the columns.
JAXGNN_INLINE uint32_t bits_from(const PhiloxPairs& drawn, uint32_t below) {
#if defined(__AVX512F__)
  const __m512i first = (__m512i)drawn.first, second = (__m512i)drawn.second;
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(below));
  const __m512i low = _mm512_maskz_unpacklo_epi64(0xff, first, second);
  const __m512i high = _mm512_maskz_unpackhi_epi64(0xff, first, second);
  return static_cast<uint32_t>(_mm512_cmpge_epu32_mask(low, bound)) |
         static_cast<uint32_t>(_mm512_cmpge_epu32_mask(high, bound)) << 16;
#elif defined(__AVX2__)
  const __m256i first = (__m256i)drawn.first, second = (__m256i)drawn.second;
  const __m256i bound = _mm256_set1_epi32(static_cast<int>(below));
  const auto kept = [bound](__m256i words) {
    const __m256i is_kept = _mm256_cmpeq_epi32(_mm256_max_epu32(words, bound), words);
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_kept)));
  };
  return kept(_mm256_unpacklo_epi64(first, second)) | kept(_mm256_unpackhi_epi64(first, second))
                                                          << 8;
#else
  uint32_t bits = 0;
  for (int i = 0; i < kCounters; ++i) {
    const int lane = i % (kCounters / 2) * 2 + i / (kCounters / 2);  // the inverse of block_lanes
    const uint64_t pairs[2] = {drawn.first[lane], drawn.second[lane]};
    for (int j = 0; j < 4; ++j) {
      const uint32_t word = static_cast<uint32_t>(pairs[j / 2] >> (32 * (j % 2)));
      bits |= static_cast<uint32_t>(word >= below) << (4 * i + j);
    }
  }
  return bits;
#endif
}

void fill_words(const MaskArgs& args, int64_t first, int64_t last) {
  const int64_t words = words_of(args.width);
  const int64_t spare = words * kColumnsPerWord - args.width;
  const Wide lane = block_lanes();
  int64_t row = first / words, word = first % words;
  for (int64_t i = first; i < last; ++row, word = 0) {
    const uint32_t* key = args.keys + 2 * (row / args.num_rows);
    const uint32_t key0 = key[0], key1 = key[1];
    const Wide number = Wide{} + static_cast<uint64_t>(row % args.num_rows);
    const int64_t end = min_of(words, word + last - i);
    for (; word < end; ++word, ++i) {
      uint32_t bits = 0;
      JAXGNN_UNROLL
      for (int c = 0; c < kColumnsPerWord; c += kDrawn) {
        const int64_t column = word * kColumnsPerWord + c;
        const Wide block = lane + static_cast<uint64_t>(column / kColumnsPerBlock);
        bits |= bits_from(philox_pairs(number, block, key0, key1), args.drop_below) << c;
      }
      args.mask[i] = bits;
    }
    if (end == words) args.mask[i - 1] &= ~uint32_t{0} >> spare;
  }
}

}  // namespace

namespace JAXGNN_ISA {

void mask(const MaskArgs& args, const Executor& executor) {
  const int64_t words = args.num_keys * args.num_rows * words_of(args.width);
  if (words == 0) return;
  // A word costs about as much as 256 bytes that are copied.
  const int64_t items = item_count(executor, words, 256);
  parallel_for(executor, items, [&](int64_t item) {
    fill_words(args, words * item / items, words * (item + 1) / items);
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::dropout
