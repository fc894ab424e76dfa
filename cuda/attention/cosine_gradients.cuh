// What the kernels of the gradient of attention by cosines share; cosine_attention_gradients.cu has
// the equations.
#pragma once

#include "cuda/attention/cosine_attention.h"
#include "cuda/attention/edge_weights.cuh"

namespace jaxgnn::attention {

// Which edges a walk is over: those that end at its rows, those that start, or either at once.
enum class Edges { kEnding, kStarting, kEither };

template <typename T>
struct CosineParams {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Scoring<A> scoring;
  const T* x;           // [nodes, heads, F]
  const T* cotangent;   // [nodes, heads, F]
  const A* beta;        // [heads]
  const A* node_terms;  // [nodes, heads, 4]: log_sum, delta, c, and c^3 or 0
  T* out;               // [nodes, heads, F]
  A* dots;              // [nodes, heads]
  A* carried;           // [nodes, heads, F]
  A* partials;          // [parts, 2, heads, F]: U, V
  bool tensor_cores;
  int heads;
  int F;
  // Of the walk on CUDA cores, set by `deal_lanes`.
  int lanes;
  int heads_per_worker;
  int groups;
  int pieces;
};

template <typename A>
struct NodeTerms {
  A log_sum, delta, reciprocal, cube;
};

template <typename P>
__device__ inline NodeTerms<float> load_node_terms(const P& p, int64_t node, int head) {
  const float4 four = __ldg(reinterpret_cast<const float4*>(p.node_terms) + node * p.heads + head);
  return {four.x, four.y, four.z, four.w};
}

// beta (c U - c^3 <x, U> x) + V.
template <typename A>
__device__ inline A gradient(A beta, const NodeTerms<A>& own, A dot, A x, A u, A v) {
  return v + beta * (own.reciprocal * u - own.cube * dot * x);
}

// The walk with its dot products on tensor cores, for T of 16 bits and heads of at most
// kMaxTensorCoreFeatures: what it leaves to join are the chunks of long rows.
template <typename T, Edges kEdges>
cudaError_t launch_tensor_core_walk(const CosineParams<T>& p, const Launch& launch);

}  // namespace jaxgnn::attention
