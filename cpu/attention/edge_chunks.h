// What the attention kernels share: how they walk a row's edges in chunks, and the scores, their
// slopes and the dropout of a chunk, for some heads.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <type_traits>

#include "common/attention.h"
#include "cpu/core/lanes.h"
#include "cpu/core/philox.h"
#include "cpu/core/rows.h"
#include "cpu/core/softmax.h"

namespace jaxgnn::attention {
namespace {

// Edges whose weights are computed together: a multiple of every vector width.
constexpr int kChunk = 32;

// Heads whose weights are held at a time.
constexpr int kMaxHeads = 64;

// Some edges of a row; the first is the added self-loop, where `loops` is 1.
struct Chunk {
  int count;
  int loops;
  int64_t place;            // of the first edge, in the order of the rows, less `loops`
  int64_t columns[kChunk];  // the other end's row
  int64_t edges[kChunk];    // in the graph's order; of a self-loop, its row
  Wide numbers[kChunk / kCounters] = {};  // that dropout counts by

  JAXGNN_INLINE void add(int64_t column, int64_t edge, int64_t number) {
    columns[count] = column;
    edges[count] = edge;
    numbers[count / kCounters][count % kCounters] = static_cast<uint64_t>(number);
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

// Takes the next chunk: the self-loop, then edges. False at the end of the row. pass(e) is called
// for each of the graph's self-loops that is skipped.
template <class Pass>
JAXGNN_OUTLINE bool next_chunk(const AttentionArgs& args, Rest& rest, Chunk& chunk,
                               const Pass& pass) {
  const Rows& csr = args.rows;
  chunk.count = 0;
  chunk.loops = rest.loop ? 1 : 0;
  chunk.place = rest.begin - chunk.loops;
  if (rest.loop) chunk.add(rest.row, rest.row, csr.num_edges + rest.row);
  rest.loop = false;
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

// How the values of some heads lie, [edges, stride]: the stride is a power of two or a multiple of
// the vector, so that a lane belongs to one head, in all vectors that are a period apart.
template <class A>
struct Heads {
  static constexpr int N = kLanes<A>;
  int64_t first, count;
  int64_t stride = 1, period = N;

  JAXGNN_INLINE Heads(int64_t first, int64_t count) : first(first), count(count) {
    if (count > N) {
      stride = period = (count + N - 1) / N * N;
    } else {
      while (stride < count) stride *= 2;
    }
  }
  // The values of so many edges, in whole vectors.
  JAXGNN_INLINE int64_t padded(int64_t edges) const { return (edges * stride + N - 1) / N * N; }
};

// Adds up the lanes of each head.
template <class A>
JAXGNN_INLINE void add_lanes(const Heads<A>& heads, A* sums) {
  constexpr int N = kLanes<A>;
  for (int64_t j = 0; j < heads.period; j += N) {
    const auto plus = [](auto a, auto b) { return a + b; };
    store<N>(sums + j, over_lanes<A, N>(load<N>(sums + j), heads.stride, plus));
  }
}

// out[c] = of(the values at an edge's other end, the first's head), and `fill` where there is no
// edge or head. `x` has rows of `width` values.
template <class A, class Of>
JAXGNN_INLINE void gather(const Chunk& chunk, const Heads<A>& heads, const A* x, int64_t width,
                          A fill, A* out, const Of& of) {
  constexpr int N = kLanes<A>, M = N < 4 ? N : 4;
  const bool one = heads.stride == 1;
  for (int c = 0; one && c < chunk.count; ++c) {
    store<1>(out + c, of(load<1>(x + chunk.columns[c] * width + heads.first), 0));
  }
  for (int c = 0; !one && c < chunk.count; ++c) {
    const A* from = x + chunk.columns[c] * width + heads.first;
    A* to = out + c * heads.stride;
    int64_t h = 0;
    for (; h + N <= heads.count; h += N) store<N>(to + h, of(load<N>(from + h), h));
    for (; h + M <= heads.count; h += M) store<M>(to + h, of(load<M>(from + h), h));
    for (; h < heads.count; ++h) store<1>(to + h, of(load<1>(from + h), h));
    for (; h < heads.stride; ++h) to[h] = fill;
  }
  for (int64_t i = chunk.count * heads.stride; i < heads.padded(chunk.count); ++i) out[i] = fill;
}

template <class A>
JAXGNN_INLINE void gather(const Chunk& chunk, const Heads<A>& heads, const A* x, int64_t width,
                          A fill, A* out) {
  gather(chunk, heads, x, width, fill, out, [](auto v, int64_t) { return v; });
}

template <class A>
JAXGNN_INLINE void add_biases(const AttentionArgs& args, const Chunk& chunk, const Heads<A>& heads,
                              A* out) {
  for (int c = 0; c < chunk.count; ++c) {
    const A* bias = static_cast<const A*>(c < chunk.loops ? args.loop_bias : args.edge_bias);
    if (bias == nullptr) continue;
    const A* own = bias + chunk.edges[c] * args.heads + heads.first;
    for (int64_t h = 0; h < heads.count; ++h) out[c * heads.stride + h] += own[h];
  }
}

// out[c] = columns[c's column] + own + bias: the scores before the LeakyReLU, and -inf where there
// is no edge or head.
template <class A>
JAXGNN_INLINE void sum_scores(const AttentionArgs& args, const Chunk& chunk, const Heads<A>& heads,
                              const A* columns, int64_t width, const A* own, A* out) {
  gather(chunk, heads, columns, width, -kInfinity<A>, out,
         [&](auto v, int64_t h) { return v + load<sizeof(v) / sizeof(A)>(own + heads.first + h); });
  if (args.edge_bias != nullptr || args.loop_bias != nullptr) add_biases(args, chunk, heads, out);
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

// The heads from `head` on that share blocks of words: their keys are the same, and their numbers,
// consecutive, are of one block.
JAXGNN_INLINE int64_t heads_of_block(const AttentionArgs& args, int64_t head, int64_t last) {
  const uint32_t* number = args.streams + 2 * args.heads;
  const auto follows = [&](int64_t next) {
    const int64_t before = next - 1;
    return args.streams[next] == args.streams[before] &&
           args.streams[args.heads + next] == args.streams[args.heads + before] &&
           number[next] == number[before] + 1 && number[next] % kHeadsPerBlock != 0;
  };
  int64_t next = head + 1;
  while (next < last && follows(next)) ++next;
  return next - head;
}

// Multiplies weights by 0 where dropout drops, else by its scale.
template <class A>
JAXGNN_OUTLINE void drop(const AttentionArgs& args, const Chunk& chunk, const Heads<A>& heads,
                         A* weights) {
  if (args.streams == nullptr) return;
  using V = Vector<A, kHeadsPerBlock>;
  using Mask = Vector<std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>, kHeadsPerBlock>;
  const Mask below = Mask{} + args.drop_below;
  const A scale = static_cast<A>(keep_scale(args.drop_below));
  const int64_t end = heads.first + heads.count;
  for (int64_t head = heads.first, size; head < end; head += size) {
    size = heads_of_block(args, head, end);
    const uint32_t key0 = args.streams[head], key1 = args.streams[args.heads + head];
    const uint32_t number = args.streams[2 * args.heads + head];
    const Wide block = Wide{} + number / kHeadsPerBlock;
    const uint32_t which = number % kHeadsPerBlock;
    for (int c = 0; c < chunk.count; c += kCounters) {
      const PhiloxPairs drawn = philox_pairs(chunk.numbers[c / kCounters], block, key0, key1);
      for (int lane = 0; lane < kCounters && c + lane < chunk.count; ++lane) {
        const uint64_t pairs[2] = {drawn.first[lane], drawn.second[lane]};
        Vector<uint32_t, kHeadsPerBlock> words;
        std::memcpy(&words, pairs, sizeof(words));
        const V factors = __builtin_convertvector(words, Mask) >= below ? V{} + scale : V{};
        A* to = weights + (c + lane) * heads.stride + head - heads.first;
        if (size == kHeadsPerBlock) {
          V kept;
          std::memcpy(&kept, to, sizeof(V));
          kept *= factors;
          std::memcpy(to, &kept, sizeof(V));
        } else {
          for (int64_t h = 0; h < size; ++h) to[h] *= factors[which + h];
        }
      }
    }
  }
}

}  // namespace
}  // namespace jaxgnn::attention
