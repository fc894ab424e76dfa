// The weights of a chunk of edges in the backward pass, recomputed from the rows' log-sums.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/attention/edge_chunks.h"

namespace jaxgnn::attention {
namespace {

// What the gradients of a chunk's scores are made of, [edges, stride of the heads].
template <class A, int kHeads>
struct Scored {
  A weights[kChunk * kHeads];  // first the scores before the LeakyReLU
  A log_sums[kChunk * kHeads];
  A deltas[kChunk * kHeads];
  A slopes[kChunk * kHeads];
};

// From scores to weights and slopes. Calls body(i, j, weights, slopes) for each vector i, of the
// heads from j on.
template <class A, int kHeads, class Body>
JAXGNN_INLINE void weigh(const Heads<A>& heads, int64_t edges, A slope, Scored<A, kHeads>& scored,
                         const Body& body) {
  constexpr int N = kLanes<A>;
  using V = Vector<A, N>;
  for (int64_t i = 0, j = 0; i < heads.padded(edges); i += N) {
    const V sum = load<N>(scored.weights + i);
    const V slopes = slopes_of(sum, slope);
    const V log_sum = load<N>(scored.log_sums + i);
    const V weights = exponential<A, N>(leaky_relu(sum, slope) - log_sum);
    store<N>(scored.slopes + i, slopes);
    store<N>(scored.weights + i, weights);
    body(i, j, weights, slopes);
    j = j + N < heads.period ? j + N : 0;
  }
}

}  // namespace
}  // namespace jaxgnn::attention
