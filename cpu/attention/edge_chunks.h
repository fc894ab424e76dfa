// What the attention kernels share: how they walk a row's edges in chunks, and the scores, their
// slopes and the dropout of a chunk.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "common/philox.h"
#include "cpu/core/exp.h"
#include "cpu/core/rows.h"

namespace jaxgnn::attention {
namespace {

// Edges whose weights are computed together: a multiple of every vector width.
constexpr int kChunk = 32;

// Heads whose weights are held at a time.
constexpr int kMaxHeads = 64;

template <class A>
constexpr A kInfinity = static_cast<A>(__builtin_inf());

// Some edges of a row.
struct Chunk {
  int count;
  int64_t place;              // of the first, in the order of the rows
  int64_t columns[kChunk];    // the other end's row
  int64_t edges[kChunk];      // in the graph's order
  uint32_t low[kChunk] = {};  // the halves of the numbers that dropout counts by
  uint32_t high[kChunk] = {};
  bool loop;  // the one added self-loop: its bias lies at the row

  JAXGNN_INLINE void add(int64_t column, int64_t edge, int64_t number) {
    columns[count] = column;
    edges[count] = edge;
    low[count] = static_cast<uint32_t>(number);
    high[count] = static_cast<uint32_t>(static_cast<uint64_t>(number) >> 32);
    ++count;
  }
};

// What is left of a row's edges; `loop` if its self-loop is, too.
struct Rest {
  int64_t row;
  int64_t begin;
  int64_t end;
  bool loop;
};

// Takes the next chunk: the self-loop by itself, then edges. False at the end of the row. pass(e)
// is called for each of the graph's self-loops that is skipped.
template <class Pass>
JAXGNN_OUTLINE bool next_chunk(const AttentionArgs& args, Rest& rest, Chunk& chunk,
                               const Pass& pass) {
  const Rows& csr = args.rows;
  chunk.count = 0;
  chunk.place = rest.begin;
  chunk.loop = rest.loop;
  if (rest.loop) {
    chunk.add(rest.row, rest.row, csr.num_edges + rest.row);
    rest.loop = false;
    return true;
  }
  int64_t e = rest.begin;
  for (; e < rest.end && chunk.count < kChunk; ++e) {
    const int64_t column = column_of(csr, e), edge = edge_number(args, e);
    if (args.self_loops && column == rest.row) {
      pass(edge);
    } else {
      chunk.add(column, edge, edge);
    }
  }
  rest.begin = e;
  return chunk.count > 0;
}

// The default action for a skipped self-loop of the graph: none.
struct Ignore {
  JAXGNN_INLINE void operator()(int64_t) const {}
};

// Calls body(chunk) for the edges [begin, end) of a row, and before them, at the row's beginning,
// for the self-loop that it gets if the row is one of those.
template <class Body, class Pass>
JAXGNN_INLINE void over_chunks(const AttentionArgs& args, int64_t row, int64_t begin, int64_t end,
                               const Body& body, const Pass& pass) {
  const bool first = begin == row_begin(args.rows, row);
  Rest rest{row, begin, end, args.self_loops && row < args.num_columns && first};
  Chunk chunk;
  while (next_chunk(args, rest, chunk, pass)) body(chunk);
}

// Adds the biases of a chunk, of one head, and fills up with -inf beyond the chunk.
template <class A>
JAXGNN_INLINE void add_biases(const AttentionArgs& args, const Chunk& chunk, int64_t head, A* out) {
  const A* bias = static_cast<const A*>(chunk.loop ? args.loop_bias : args.edge_bias);
  if (bias != nullptr) {
    for (int c = 0; c < chunk.count; ++c) out[c] += bias[chunk.edges[c] * args.heads + head];
  }
  for (int c = chunk.count; c < kChunk; ++c) out[c] = -kInfinity<A>;
}

// out[c] = columns[c's column] + own + bias: the scores before the LeakyReLU, of one head, and -inf
// beyond the chunk.
template <class A>
JAXGNN_INLINE void sum_scores(const AttentionArgs& args, const Chunk& chunk, int64_t head,
                              const A* columns, int64_t stride, A own, A* out) {
  for (int c = 0; c < chunk.count; ++c) out[c] = columns[chunk.columns[c] * stride + head] + own;
  add_biases(args, chunk, head, out);
}

// The derivative of the LeakyReLU.
template <class V, class A>
JAXGNN_INLINE V slopes_of(V sums, A slope) {
  return sums > A{0} ? V{} + A{1} : V{} + slope;
}

// The LeakyReLU, which keeps -inf for any slope.
template <class V, class A>
JAXGNN_INLINE V leaky_relu(V sums, A slope) {
  return sums == -kInfinity<A> ? sums : sums * slopes_of(sums, slope);
}

// Multiplies the weights of a head by 0 where dropout drops, else by its scale.
template <class A>
JAXGNN_INLINE void drop(const AttentionArgs& args, const Chunk& chunk, int64_t head, A* weights) {
  if (args.streams == nullptr) return;
  const uint32_t key0 = args.streams[head], key1 = args.streams[args.heads + head];
  const uint32_t number = args.streams[2 * args.heads + head];
  const uint32_t block = number / kHeadsPerBlock, which = number % kHeadsPerBlock;
  const uint32_t below = args.drop_below;
  const A scale = static_cast<A>(keep_scale(below));
  uint32_t words[kHeadsPerBlock][kChunk];
  for (int c = 0; c < kChunk; ++c) {
    const PhiloxWords drawn = dropout_block(chunk.low[c], chunk.high[c], block, key0, key1);
    for (uint32_t i = 0; i < kHeadsPerBlock; ++i) words[i][c] = drawn.words[i];
  }
  const uint32_t* own = words[which];
  for (int c = 0; c < kChunk; ++c) weights[c] *= own[c] >= below ? scale : A{0};
}

}  // namespace
}  // namespace jaxgnn::attention
