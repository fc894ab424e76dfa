// The gradients of the biases. The edge bias needs one value for each edge: SDDMM computes the dot
// products, and a second kernel turns them into the gradient in place.
#include "cuda/aggregation/aggregation.h"
#include "cuda/attention/edge_weights.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::attention {
namespace {

constexpr int kThreads = 128;

template <typename A>
struct Params {
  Rows rows;
  Scoring<A> scoring;
  End<A> senders;
  End<A> receivers;
  A* edges;     // [edges, heads]: dot products in, gradients out
  A* loops;     // [rows, heads]: the gradients of the self-loops, 0 without one
  A* scores;    // [rows, heads]
  A* partials;  // [parts, heads]
};

// The gradient of an edge's score before the LeakyReLU.
template <typename A>
__device__ inline A score_gradient(const Scoring<A>& s, const Gathered<A>& at_column,
                                   const Gathered<A>& at_row, int head, A dot) {
  const Score<A> score = score_of<false>(s, at_column, at_row.score);
  const Terms<A> terms = weigh<Pass::kReceivers, false>(s, score, at_row.log_sum, at_column, head);
  const A gradient = terms.weight * dot - terms.number * at_row.delta;
  return score.positive() ? gradient : gradient * s.slope;
}

// A warp a row: the gradients of the self-loops.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    loop_gradients(const Params<A> p, const T* values, const T* cotangent, int64_t head_width) {
  const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= p.rows.num_rows) return;
  const Scoring<A>& s = p.scoring;
  for (int head = 0; head < s.heads; ++head) {
    A gradient = A(0);
    if (s.self_loops && row < s.num_columns) {
      const int64_t begin = (row * s.heads + head) * head_width;
      A dot = A(0);
      for (int64_t f = begin + lane; f < begin + head_width; f += 32) {
        dot += widen(cotangent[f]) * widen(values[f]);
      }
      dot = warp_sum(dot);
      const Gathered<A> at_row = load_node<Pass::kReceivers>(p.receivers, row, head, true);
      Gathered<A> at_column = load_node<Pass::kReceivers>(p.senders, row, head, false);
      at_column.bias = loop_bias(s, row, head);
      at_column.number = s.num_edges + row;
      gradient = score_gradient(s, at_column, at_row, head, dot);
    }
    if (lane == 0) p.loops[row * s.heads + head] = gradient;
  }
}

// kLanes lanes a row or a part: the gradients of its edges, and their sum.
template <typename A, int kLanes>
__global__ void __launch_bounds__(kThreads) edge_gradients(const Params<A> p) {
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes);
  const int lane = threadIdx.x % kLanes;
  const Scoring<A>& s = p.scoring;
  const bool working = work.row >= 0;  // others only take part in shuffles
  for (int head = 0; head < s.heads; ++head) {
    A sum = A(0);
    if (working) {
      const Gathered<A> at_row = load_node<Pass::kReceivers>(p.receivers, work.row, head, true);
      if (lane == 0 && has_loop(s, p.rows, work)) sum = p.loops[work.row * s.heads + head];
      for (int i = lane; i < work.count; i += kLanes) {
        const int64_t edge = work.begin + i;
        const int64_t column = load_column(p.rows, edge);
        A* place = p.edges + edge * s.heads + head;
        A gradient = A(0);
        if (!(s.self_loops && column == work.row)) {
          Gathered<A> at_column = load_node<Pass::kReceivers>(p.senders, column, head, false);
          at_column.number = edge_number(s, edge);
          at_column.bias = edge_bias(s, at_column.number, head);
          gradient = score_gradient(s, at_column, at_row, head, *place);
        }
        *place = gradient;
        sum += gradient;
      }
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, offset);
    }
    if (!working || lane != 0) continue;
    A* to = work.part < 0 ? p.scores + work.row * s.heads : p.partials + work.part * s.heads;
    to[head] = sum;
  }
}

template <typename A>
Params<A> make_params(const AttentionGradientArgs& args) {
  const AttentionArgs& from = args.attention;
  const void* loops = args.loop_gradient != nullptr ? args.loop_gradient : args.scratch;
  return {from.rows,
          make_scoring<A>(from),
          senders_of<A>(from),
          receivers_of<A>(args),
          static_cast<A*>(args.edge_gradient),
          static_cast<A*>(const_cast<void*>(loops)),
          static_cast<A*>(args.scores_gradient),
          static_cast<A*>(args.partials)};
}

template <typename T>
cudaError_t launch_loops(const AttentionGradientArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const AttentionArgs& from = args.attention;
  return launch_kernel(launch, loop_gradients<T, A>, blocks_of(from.rows.num_rows * 32, kThreads),
                       kThreads, 0, make_params<A>(args), static_cast<const T*>(from.values),
                       static_cast<const T*>(args.cotangent),
                       from.heads > 0 ? from.width / from.heads : 0);
}

template <typename A, int kLanes>
cudaError_t launch_lanes(const Params<A>& p, const Launch& launch) {
  const int64_t threads = (p.rows.num_chunks + p.rows.num_rows) * kLanes;
  return launch_kernel(launch, edge_gradients<A, kLanes>, blocks_of(threads, kThreads), kThreads, 0,
                       p);
}

template <typename A>
cudaError_t launch_edges(const AttentionGradientArgs& args, const Launch& launch) {
  const Params<A> p = make_params<A>(args);
  const bool is_long = p.rows.num_edges >= 32 * p.rows.num_rows;
  if (launch.load || is_long) JAXGNN_TRY((launch_lanes<A, 32>(p, launch)));
  if (launch.load || !is_long) JAXGNN_TRY((launch_lanes<A, 8>(p, launch)));
  return launch_join<A, Sum>(p.rows, p.partials, p.scores, int64_t(p.scoring.heads), false, false,
                             launch);
}

}  // namespace

cudaError_t launch_attention_loops(const AttentionGradientArgs& args, const Launch& launch) {
  return with_type(launch, args.attention.type, [&](auto tag) {
    return launch_loops<typename decltype(tag)::type>(args, launch);
  });
}

cudaError_t launch_attention_edges(const AttentionGradientArgs& args, const Launch& launch) {
  const AttentionArgs& from = args.attention;
  aggregation::SddmmArgs dots{};
  dots.rows = from.rows;
  dots.type = from.type;
  dots.a = args.cotangent;
  dots.b = from.values;
  dots.out = args.edge_gradient;
  dots.heads = from.heads;
  dots.width = from.width;
  dots.num_columns = from.num_columns;
  JAXGNN_TRY(aggregation::launch_sddmm(dots, launch));
  JAXGNN_TRY(launch_attention_loops(args, launch));
  if (launch.load || from.type == Type::kF64) JAXGNN_TRY(launch_edges<double>(args, launch));
  if (launch.load || from.type != Type::kF64) JAXGNN_TRY(launch_edges<float>(args, launch));
  return cudaSuccess;
}

}  // namespace jaxgnn::attention
