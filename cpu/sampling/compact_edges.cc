// Bits of edges: set from a list or drawn, brought into another order, and made into rows.
#include "cpu/core/rows.h"
#include "cpu/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

int64_t number_at(const void* numbers, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(numbers)[i] : static_cast<const int32_t*>(numbers)[i];
}

int ones(uint32_t word) { return __builtin_popcount(word); }

// How many bits are before edge e.
int32_t rank_of(const CompactArgs& args, int64_t e) {
  int32_t rank = args.ranks[e / kEdgesPerGroup];
  const int64_t word = e / kEdgesPerWord;
  for (int64_t w = e / kEdgesPerGroup * kWordsPerGroup; w < word; ++w) rank += ones(args.bits[w]);
  const int64_t inside = e % kEdgesPerWord;
  if (inside > 0) rank += ones(args.bits[word] & ((1u << inside) - 1));
  return rank;
}

void put(const CompactArgs& args, int64_t place, int64_t edge, int32_t column) {
  args.columns[place] = column;
  if (args.edges == nullptr) return;
  if (args.wide_edges) {
    static_cast<int64_t*>(args.edges)[place] = edge;
  } else {
    static_cast<int32_t*>(args.edges)[place] = static_cast<int32_t>(edge);
  }
}

}  // namespace

void mark_edges(const MarkArgs& args, const Executor& executor) {
  const int64_t words = words_of(args.num_edges);
  const int64_t cleared = item_count(executor, words, 4);
  parallel_for(executor, cleared, [&](int64_t item) {
    const int64_t last = words * (item + 1) / cleared;
    for (int64_t w = words * item / cleared; w < last; ++w) args.bits[w] = 0;
  });
  const int64_t items = item_count(executor, args.count, 64);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = args.count * (item + 1) / items;
    for (int64_t i = args.count * item / items; i < last; ++i) {
      int64_t e = number_at(args.edges, args.wide_edges, i);
      if (e < 0 || e >= args.num_edges) continue;
      if (args.permutation != nullptr) {
        e = number_at(args.permutation, args.wide_permutation, e);
        if (e < 0 || e >= args.num_edges) continue;
      }
      const uint32_t bit = 1u << (e % kEdgesPerWord);
      __atomic_fetch_or(args.bits + e / kEdgesPerWord, bit, __ATOMIC_RELAXED);
    }
  });
}

void drop_edges(const DropArgs& args, const Executor& executor) {
  const Rows& rows = args.rows;
  const int64_t words = words_of(rows.num_edges);
  const int64_t items = item_count(executor, words, 2048);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = words * (item + 1) / items;
    int64_t w = words * item / items;
    if (w >= last) return;
    int64_t row = row_of(rows, w * kEdgesPerWord);
    for (; w < last; ++w) {
      uint32_t word = 0;
      for (int64_t i = 0; i < kEdgesPerWord; ++i) {
        const int64_t e = w * kEdgesPerWord + i;
        if (e >= rows.num_edges) break;
        while (row + 1 < rows.num_rows && row_begin(rows, row + 1) <= e) ++row;
        const uint32_t at = static_cast<uint32_t>(e - row_begin(rows, row));
        const int64_t drawn = draw_word(static_cast<uint32_t>(row), at, args.key);
        if (drawn < args.rate) word |= 1u << i;
      }
      args.bits[w] = word;
    }
  });
}

void permute_bits(const PermuteArgs& args, const Executor& executor) {
  const int64_t words = words_of(args.num_edges), groups = groups_of(args.num_edges);
  const int64_t items = item_count(executor, groups, args.permutation == nullptr ? 128 : 65536);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = groups * (item + 1) / items;
    for (int64_t group = groups * item / items; group < last; ++group) {
      int32_t count = 0;
      const int64_t end = min_of((group + 1) * kWordsPerGroup, words);
      for (int64_t w = group * kWordsPerGroup; w < end; ++w) {
        uint32_t word = 0;
        if (args.permutation == nullptr) {
          word = args.bits[w];
        } else {
          for (int64_t i = 0; i < kEdgesPerWord && w * kEdgesPerWord + i < args.num_edges; ++i) {
            const int64_t t = w * kEdgesPerWord + i;
            const int64_t e = number_at(args.permutation, args.wide_permutation, t);
            if (e < 0 || e >= args.num_edges) continue;
            word |= (args.bits[e / kEdgesPerWord] >> (e % kEdgesPerWord) & 1u) << i;
          }
        }
        args.out[w] = word;
        count += ones(word);
      }
      args.counts[group] = count;
    }
  });
}

void compact_edges(const CompactArgs& args, const Executor& executor) {
  const Rows& rows = args.rows;
  const int64_t groups = groups_of(rows.num_edges), words = words_of(rows.num_edges);
  const int64_t items = item_count(executor, groups, 16384);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = min_of(groups * (item + 1) / items * kWordsPerGroup, words);
    for (int64_t w = groups * item / items * kWordsPerGroup; w < last; ++w) {
      int64_t place = rank_of(args, w * kEdgesPerWord);
      for (uint32_t word = args.bits[w]; word != 0; word &= word - 1, ++place) {
        const int64_t t = w * kEdgesPerWord + __builtin_ctz(word);
        if (place < 0 || place >= args.capacity || t >= rows.num_edges) break;
        const bool same = args.permutation == nullptr || args.edges == nullptr;
        const int64_t edge = same ? t : number_at(args.permutation, args.wide_permutation, t);
        put(args, place, edge, static_cast<int32_t>(column_of(rows, t)));
      }
    }
  });
  const int64_t used = min_of(max_of(args.ranks[groups], 0), args.capacity);
  for (int64_t place = used; place < args.capacity; ++place) put(args, place, rows.num_edges, 0);
  const int64_t blocks = item_count(executor, rows.num_rows + 1, 64);
  parallel_for(executor, blocks, [&](int64_t block) {
    const int64_t last = (rows.num_rows + 1) * (block + 1) / blocks;
    for (int64_t row = (rows.num_rows + 1) * block / blocks; row < last; ++row) {
      const int64_t begin = row_begin(rows, row);
      const int64_t rank = begin < rows.num_edges ? rank_of(args, begin) : args.ranks[groups];
      args.offsets[row] = static_cast<int32_t>(min_of(max_of(rank, 0), args.capacity));
    }
  });
}

}  // namespace jaxgnn::sampling
