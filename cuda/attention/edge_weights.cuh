// What the kernels of attention share: an edge's weight, from the scores of its two ends.
#pragma once

#include "common/philox.h"
#include "cuda/attention/attention.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/rows.cuh"

namespace jaxgnn::attention {

// Which sums a walk over the rows makes of the gathered rows x, with alpha the softmax's weight, w
// that after dropout and c the LeakyReLU's slope:
//   forward:   sum w x, and sum alpha, both not yet divided by the sum of exponentials;
//   senders:   sum w x, sum c w x, and sum c alpha delta;
//   receivers: sum w x, and sum alpha, over the edges on one side of the LeakyReLU's kink.
// The last is enough as the row's other edges have the rest of known sums. With + the edges of
// slope 1 and s the other slope, sum alpha = 1 and sum w <dy, x> = delta give
//   dscore = <dy, sum c w x> - delta sum c alpha = (1 - s) (<dy, sum+ w x> - delta sum+ alpha),
// and the same with the other sign and the other edges: only the smaller side needs to be gathered.
enum class Pass { kForward, kSenders, kReceivers };

// The score terms of the nodes at one end of the edges, heads contiguous.
template <typename A>
struct End {
  const A* score;
  const A* log_sum;
  const A* delta;
  int64_t stride;  // from a node to the next
};

template <typename A>
struct Scoring {
  const A* edge_bias;
  const A* loop_bias;
  const uint32_t* streams;
  const void* order;
  bool wide_order;
  bool self_loops;
  uint32_t drop_below;
  A keep_scale;
  A slope;
  int heads;
  int64_t num_edges;
  int64_t num_columns;
};

// The score terms of one edge and head, as stored in memory.
template <typename A>
struct Gathered {
  A score;
  A log_sum;
  A delta;
  A bias;
  int64_t number;  // that dropout counts by
};

// What an edge contributes.
template <typename A>
struct Terms {
  A weight;  // of the first sum
  A second;  // of the second, if there is one
  A number;  // to the sum of numbers
};

template <typename A>
Scoring<A> make_scoring(const AttentionArgs& args) {
  return {static_cast<const A*>(args.edge_bias),
          static_cast<const A*>(args.loop_bias),
          args.streams,
          args.permutation,
          args.wide_permutation,
          args.self_loops,
          args.drop_below,
          static_cast<A>(keep_scale(args.drop_below)),
          static_cast<A>(args.negative_slope),
          static_cast<int>(args.heads),
          args.rows.num_edges,
          args.num_columns};
}

template <typename A>
End<A> senders_of(const AttentionArgs& args) {
  return {static_cast<const A*>(args.sender_scores), nullptr, nullptr, args.heads};
}
template <typename A>
End<A> receivers_of(const AttentionGradientArgs& args) {
  const A* node_terms = static_cast<const A*>(args.receivers);
  const int64_t heads = args.attention.heads;
  return {node_terms, node_terms + heads, node_terms + 2 * heads, 3 * heads};
}

template <typename A>
__device__ inline bool is_masked(A sum) {
  return sum == A(-INFINITY);
}

template <typename A>
__device__ inline A edge_bias(const Scoring<A>& s, int64_t number, int head) {
  return s.edge_bias == nullptr ? A(0) : __ldg(s.edge_bias + number * s.heads + head);
}

template <typename A>
__device__ inline A loop_bias(const Scoring<A>& s, int64_t row, int head) {
  return s.loop_bias == nullptr ? A(0) : __ldg(s.loop_bias + row * s.heads + head);
}

// Whether a stretch of edges also has its row's self-loop.
template <typename A>
__device__ inline bool has_loop(const Scoring<A>& s, const Rows& rows, const Work& work) {
  return s.self_loops && work.row < s.num_columns && work.begin == load_offset(rows, work.row);
}

// Dropout's factor of an edge.
template <typename A>
__device__ inline A keep_factor(const Scoring<A>& s, int64_t number, int head) {
  if (s.streams == nullptr) return A(1);
  const uint32_t key0 = __ldg(s.streams + head), key1 = __ldg(s.streams + s.heads + head);
  const uint32_t stream = __ldg(s.streams + 2 * s.heads + head);
  const PhiloxWords drawn = dropout_block(
      static_cast<uint32_t>(number), static_cast<uint32_t>(static_cast<uint64_t>(number) >> 32),
      stream / kHeadsPerBlock, key0, key1);
  // An index known at run time would put the words into local memory.
  const uint32_t low = stream & 1 ? drawn.words[1] : drawn.words[0];
  const uint32_t high = stream & 1 ? drawn.words[3] : drawn.words[2];
  return (stream & 2 ? high : low) >= s.drop_below ? s.keep_scale : A(0);
}

// An edge's score before and after the LeakyReLU, which keeps -inf for any slope.
template <typename A>
struct Score {
  A sum;
  A score;
  __device__ bool positive() const { return sum > A(0); }
};

template <bool kPlain, typename A>
__device__ inline Score<A> score_of(const Scoring<A>& s, const Gathered<A>& at_column, A at_row) {
  A sum = at_column.score + at_row;
  if (!kPlain) sum += at_column.bias;
  return {sum, sum > A(0) || is_masked(sum) ? sum : sum * s.slope};
}

// What the edge contributes; its weight is the exponential of the score's difference to `base`.
// Without biases and dropout (kPlain) nothing of them is computed.
template <Pass kPass, bool kPlain, typename A>
__device__ inline Terms<A> weigh(const Scoring<A>& s, const Score<A>& score, A base,
                                 const Gathered<A>& at_column, int head) {
  const A alpha = exponential(score.score - base);
  const A weight = kPlain ? alpha : alpha * keep_factor(s, at_column.number, head);
  if constexpr (kPass == Pass::kSenders) {
    const A slope = score.positive() ? A(1) : s.slope;
    return {weight, slope * weight, slope * alpha * at_column.delta};
  }
  return {weight, A(0), alpha};
}

// Online softmax over the edges so far: the maximum score, or one slightly below it, and the sum of
// the exponentials of the differences to it.
template <typename A>
struct Softmax {
  A largest = A(-INFINITY);
  A total = A(0);

  // What is subtracted: not the difference of two infinities where all is masked.
  __device__ A base() const { return is_masked(largest) ? A(0) : largest; }
  // Takes a larger score for the reference. Returns what earlier weights are to be multiplied by.
  __device__ A raise(A score) {
    const A before = largest;
    if (score > largest) largest = score;
    const A factor = exponential(before - base());
    total *= factor;
    return factor;
  }
  // What sums are multiplied by at the end; 0 of a row without edges that are not masked stays 0.
  __device__ A scale() const { return total == A(0) ? A(1) : A(1) / total; }
  // The logarithm of the sum of the exponentials, and what its rounding lost: of scores of 1e9 all
  // of the total's logarithm. 0 without edges.
  __device__ A store_log_sum(A* to) const {
    const A own = base(), more = total == A(0) ? A(0) : logarithm(total);
    const A sum = total == A(0) ? A(0) : own + more, part = sum - own;
    to[0] = sum;
    to[1] = total != A(0) && isfinite(sum) ? (own - (sum - part)) + (more - part) : A(0);
    return sum;
  }
};

template <typename A>
__device__ inline const A* numbers_of(const A* numbers, int64_t node, int64_t stride) {
  return numbers + node * stride;
}
template <typename A>
__device__ inline const A* numbers_of(const A* numbers, int node, int64_t stride) {
  return row_of(numbers, node, static_cast<unsigned>(stride * sizeof(A)));
}

template <Pass kPass, typename A, typename Index>
__device__ inline Gathered<A> load_node(const End<A>& end, Index node, int head, bool at_row) {
  Gathered<A> numbers{__ldg(numbers_of(end.score + head, node, end.stride)), A(0), A(0), A(0), 0};
  // Receivers have these, and only the gradients need them.
  if (kPass == (at_row ? Pass::kReceivers : Pass::kSenders)) {
    numbers.log_sum = __ldg(numbers_of(end.log_sum + head, node, end.stride));
    numbers.delta = __ldg(numbers_of(end.delta + head, node, end.stride));
  }
  return numbers;
}

}  // namespace jaxgnn::attention
