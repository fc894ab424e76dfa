// A softmax over the edges of a row that is scaled as it goes, and how the parts of a row are
// joined.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <cmath>

#include "cpu/attention/edge_chunks.h"

namespace jaxgnn::attention {
namespace {

JAXGNN_INLINE float logarithm(float x) { return __builtin_logf(x); }
JAXGNN_INLINE double logarithm(double x) { return __builtin_log(x); }

// One head's sum of the exponentials of the differences to the maximum score.
template <class A>
struct HeadSoftmax {
  A largest = -kInfinity<A>;
  A total = 0;

  A base() const { return base_of<A>(largest); }
  A divisor() const { return divisor_of(total); }
  // The logarithm of the sum of the exponentials, and what its rounding lost: of scores of 1e9 all
  // of the total's logarithm. 0 without edges.
  void store_log_sum(A* to) const {
    const A own = base(), more = total == 0 ? A{0} : logarithm(total);
    const A sum = total == 0 ? A{0} : own + more, part = sum - own;
    to[0] = sum;
    to[1] = total != 0 && std::isfinite(sum) ? (own - (sum - part)) + (more - part) : A{0};
  }
};

// Online softmax of some heads over the edges so far; each lane has the sum of its own edges.
template <class A>
struct Softmax {
  A largest[kMaxHeads];
  A total[kMaxHeads];
  bool empty;

  JAXGNN_INLINE void clear(const Heads<A>& heads) {
    constexpr int N = kLanes<A>;
    for (int64_t j = 0; j < heads.period; j += N) {
      store<N>(largest + j, Vector<A, N>{} - kInfinity<A>);
      store<N>(total + j, Vector<A, N>{});
    }
    empty = true;
  }
  // After add_lanes(heads, total).
  HeadSoftmax<A> operator[](int64_t h) const { return {largest[h], total[h]}; }
};

// Takes a chunk's scores in, given before the LeakyReLU, and makes weights of them. Returns whether
// earlier weights are to be multiplied by `factors`.
template <class A>
JAXGNN_INLINE bool add_scores(const Heads<A>& heads, int64_t edges, A slope, Softmax<A>& softmax,
                              A* scores, A* factors) {
  constexpr int N = kLanes<A>;
  using V = Vector<A, N>;
  const int64_t size = heads.padded(edges), period = heads.period;
  bool rescale = false;
  for (int64_t j = 0; j < period; j += N) {
    V most = V{} - kInfinity<A>;
    for (int64_t i = j; i < size; i += period) {
      const V score = leaky_relu(load<N>(scores + i), slope);
      most = maximum(most, score);
      store<N>(scores + i, score);
    }
    const auto larger = [](auto a, auto b) { return maximum(a, b); };
    const V before = load<N>(softmax.largest + j);
    const V largest = maximum(before, over_lanes<A, N>(most, heads.stride, larger));
    const V base = base_of<A>(largest);
    V total = load<N>(softmax.total + j);
    if (!softmax.empty && std::memcmp(&before, &largest, sizeof(V)) != 0) {
      const V factor = exponential<A, N>(before - base);
      total *= factor;
      store<N>(factors + j, factor);
      rescale = true;
    } else {
      store<N>(factors + j, V{} + A{1});
    }
    for (int64_t i = j; i < size; i += period) {
      const V weight = exponential<A, N>(load<N>(scores + i) - base);
      total += weight;
      store<N>(scores + i, weight);
    }
    store<N>(softmax.largest + j, largest);
    store<N>(softmax.total + j, total);
  }
  softmax.empty = false;
  return rescale;
}

// Joins the parts of a row, in the first of them, and stores it.
template <class T>
void join(const AttentionForwardArgs& args, int64_t row, int64_t first, int64_t last) {
  using A = Accumulator<T>;
  const int64_t width = args.attention.width, heads = args.attention.heads;
  const int64_t head_width = width / heads, stride = width + 2 * heads;
  A* parts = static_cast<A*>(args.partials);
  A* sums = parts + first * stride;
  for (int64_t h = 0; h < heads; ++h) {
    HeadSoftmax<A> all;
    for (int64_t part = first; part < last; ++part) {
      all.largest = maximum(all.largest, parts[part * stride + width + h]);
    }
    const A base = all.base();
    for (int64_t part = first; part < last; ++part) {
      const A* more = parts + part * stride;
      const A factor = exponential<A>(more[width + h] - base);
      all.total += factor * more[width + heads + h];
      for (int64_t f = h * head_width; f < (h + 1) * head_width; ++f) {
        sums[f] = (part == first ? A{0} : sums[f]) + factor * more[f];
      }
    }
    const A divisor = all.divisor();
    for (int64_t f = h * head_width; f < (h + 1) * head_width; ++f) sums[f] /= divisor;
    all.store_log_sum(static_cast<A*>(args.log_sum) + 2 * (row * heads + h));
  }
  store_row(static_cast<T*>(args.out) + row * width, sums, width);
}

}  // namespace
}  // namespace jaxgnn::attention
