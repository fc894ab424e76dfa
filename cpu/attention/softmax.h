// A softmax over the edges of a row that is scaled as it goes, and how the parts of a row are
// joined.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/attention/edge_chunks.h"

namespace jaxgnn::attention {
namespace {

JAXGNN_INLINE float logarithm(float x) { return __builtin_logf(x); }
JAXGNN_INLINE double logarithm(double x) { return __builtin_log(x); }

// Online softmax over the edges so far: the maximum score, and the sum of the exponentials of the
// differences to it.
template <class A>
struct Softmax {
  A largest = -kInfinity<A>;
  A total = 0;

  // What is subtracted: not the difference of two infinities where all is masked.
  A base() const { return largest == -kInfinity<A> ? A{0} : largest; }
  // The result's divisor: 0 / 1 where there is no edge.
  A divisor() const { return total == 0 ? A{1} : total; }
  A log_sum() const { return total == 0 ? A{0} : base() + logarithm(total); }
};

// Takes a chunk's scores in, given before the LeakyReLU, and makes weights of them. Returns what
// earlier weights are to be multiplied by.
template <class A>
JAXGNN_INLINE A add_scores(Softmax<A>& softmax, int count, A slope, A* scores) {
  constexpr int N = kLanes<A>;
  using V = Vector<A, N>;
  V most = V{} - kInfinity<A>;
  for (int c = 0; c < count; c += N) {
    const V score = leaky_relu(load<N>(scores + c), slope);
    most = maximum(most, score);
    store<N>(scores + c, score);
  }
  const A before = softmax.largest;
  for (int lane = 0; lane < N; ++lane) {
    softmax.largest = maximum(softmax.largest, static_cast<A>(most[lane]));
  }
  const A base = softmax.base();
  V sums = {};
  for (int c = 0; c < count; c += N) {
    const V weight = exponential<A, N>(load<N>(scores + c) - base);
    sums += weight;
    store<N>(scores + c, weight);
  }
  const A factor = softmax.largest == before ? A{1} : exponential<A>(before - base);
  A total = softmax.total * factor;
  for (int lane = 0; lane < N; ++lane) total += sums[lane];
  softmax.total = total;
  return factor;
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
    Softmax<A> all;
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
    static_cast<A*>(args.log_sum)[row * heads + h] = all.log_sum();
  }
  store_row(static_cast<T*>(args.out) + row * width, sums, width);
}

}  // namespace
}  // namespace jaxgnn::attention
