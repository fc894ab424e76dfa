// How the kernels read the compressed balanced sparse rows of an edge's heads, and how heads are
// cut into blocks.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "common/sparse_attention.h"
#include "cpu/attention/edge_chunks.h"
#include "cpu/maxk/cbsr.h"

namespace jaxgnn::attention {
namespace {

// Sums of a block of heads, which lie on the stack: at most these many.
constexpr int64_t kMaxSums = maxk::kMaxWidth;

// The heads are taken in blocks whose features are at most kMaxSums.
struct HeadBlocks {
  int64_t heads, size, count;

  JAXGNN_INLINE HeadBlocks(int64_t heads, int64_t head_width)
      : heads(heads),
        size(min_of(max_of(kMaxSums / max_of(head_width, 1), 1), kMaxHeads)),
        count((heads + size - 1) / size) {}
  JAXGNN_INLINE int64_t first(int64_t block) const { return block * size; }
  JAXGNN_INLINE int64_t last(int64_t block) const { return min_of((block + 1) * size, heads); }
};

// Calls body(c, h, values, indices, weight index) for the edges c of a chunk and the block's heads,
// whose CBSR rows lie at the columns.
template <class T, class Index, class Body>
JAXGNN_INLINE void over_cbsr_rows(const AttentionArgs& args, const maxk::Cbsr& cbsr,
                                  const Chunk& chunk, const Heads<Accumulator<T>>& heads,
                                  const Body& body) {
  constexpr int64_t kAhead = 16;  // edges
  const int64_t k = cbsr.k, value_bytes = heads.count * k * static_cast<int64_t>(sizeof(T));
  const int64_t index_bytes = heads.count * k * static_cast<int64_t>(sizeof(Index));
  for (int c = 0; c < chunk.count; ++c) {
    const int64_t ahead = min_of(chunk.place + c + kAhead, args.rows.num_edges - 1);
    if (ahead >= 0) {
      const int64_t next = column_of(args.rows, ahead) * args.heads + heads.first;
      const char* values = reinterpret_cast<const char*>(maxk::values_of<T>(cbsr, next));
      const char* indices = reinterpret_cast<const char*>(maxk::indices_of<Index>(cbsr, next));
      for (int64_t b = 0; b < value_bytes; b += 64) __builtin_prefetch(values + b);
      for (int64_t b = 0; b < index_bytes; b += 64) __builtin_prefetch(indices + b);
    }
    const int64_t row = chunk.columns[c] * args.heads + heads.first;
    for (int64_t h = 0; h < heads.count; ++h) {
      body(c, h, maxk::values_of<T>(cbsr, row + h), maxk::indices_of<Index>(cbsr, row + h),
           c * heads.stride + h);
    }
  }
}

// Bytes that an edge reads of a block of heads.
template <class T, class Index>
JAXGNN_INLINE int64_t cbsr_bytes(const maxk::Cbsr& cbsr, const HeadBlocks& blocks) {
  return min_of(blocks.size, blocks.heads) * cbsr.k *
         static_cast<int64_t>(sizeof(T) + sizeof(Index));
}

}  // namespace
}  // namespace jaxgnn::attention
