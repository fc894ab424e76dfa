// The gradients over compressed balanced sparse rows. With c the LeakyReLU's slope, w the weight
// after dropout, I the columns that a sender keeps and delta = <dy, y>,
//   dv[j, I] = sum_e w dy[i, I],   dscore_e = c (w <dy[i, I], v[j]> - alpha delta[i]).
// One walk by receivers has dy's row in shared memory and reads each CBSR row once for both. What
// belongs to the senders is reduced in L2, which touches fewer sectors than gathering dy by
// senders: the columns that a CBSR row keeps lie in most sectors of a dense row.
//
// The reductions are of integers, so that their order does not matter; sparse_scales.cuh has the
// scales. What has a bound that is not finite becomes NaN.
#include <algorithm>

#include "cuda/attention/sparse_attention.h"
#include "cuda/attention/sparse_scales.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::attention {
namespace {

constexpr int kFinishThreads = 256;

template <typename T, typename I>
struct GradientParams {
  Rows rows;
  Scoring<float> scoring;
  const float* receivers;  // [receivers, 4, heads]
  const T* values;
  const I* columns;
  const T* cotangent;
  T* values_gradient;
  float* sender_gradient;
  float* receiver_gradient;
  float* edge_gradient;
  float* loop_gradient;
  float* receiver_partials;
  Scaled* scaled;   // [senders, heads]
  int* value_sums;  // [senders, heads, k]
  int* score_sums;  // [senders, heads]
  int64_t width;
  int head_width;
  int k;
  int warp_heads;
};

// By receivers: all sums. A lane of a group has an entry of each of the group's CBSR rows, so that
// a reduction is of adjacent words; then the sums of products are exchanged, and each lane has the
// score's gradient of its own edge.
template <typename T, typename I, int kLanes>
__global__ void __launch_bounds__(kSparseThreads, 10)
    sparse_gradients(const GradientParams<T, I> p) {
  constexpr int kInFlight = 4;
  extern __shared__ float staged_rows[];
  const Scoring<float>& s = p.scoring;
  const int first_head = slice_number() * p.warp_heads;
  const Work work = find_work(p.rows, int64_t(blockIdx.x) * kSparseWarps + threadIdx.x / 32);
  if (work.row < 0 || first_head >= s.heads) return;
  const Deal<kLanes> deal(p.warp_heads);
  const bool active = first_head + deal.own < s.heads;
  const int head = active ? first_head + deal.own : first_head;
  float* staged = staged_rows + threadIdx.x / 32 * p.warp_heads * p.head_width;
  const int64_t first_feature = int64_t(first_head) * p.head_width;
  for (int f = deal.lane; f < p.warp_heads * p.head_width; f += 32) {
    staged[f] = first_feature + f < p.width
                    ? widen(p.cotangent[work.row * p.width + first_feature + f])
                    : 0.0f;
  }
  __syncwarp();
  const float* dy = staged + (active ? deal.own : 0) * p.head_width;
  const float* numbers = p.receivers + work.row * 4 * s.heads + head;
  const float own_score = __ldg(numbers), log_sum = __ldg(numbers + s.heads);
  const float delta = __ldg(numbers + 2 * s.heads);

  const Edges edges(p.rows, s, work);
  const int total = edges.total(), tile = deal.tile();
  const auto column_at = [&](int i) { return active ? edges.column(i) : kNoEdge; };
  const auto scaled_at = [&](int column) {
    if (column < 0) return Scaled{0.0f, 0};
    const uint2 word =
        __ldg(reinterpret_cast<const uint2*>(p.scaled) + int64_t(column) * s.heads + head);
    return Scaled{__uint_as_float(word.x), word.y};
  };
  float sum = 0.0f;
  int i = deal.place();
  int column = column_at(i), next = column_at(i + tile);
  Scaled scaled = scaled_at(column);
  for (int base = 0; base < total; base += tile, i += tile) {
    const int after = column_at(i + 2 * tile);
    const Scaled next_scaled = scaled_at(next);
    const bool valid = column >= 0;
    Gathered<float> terms{scaled.score, 0.0f, 0.0f, 0.0f, 0};
    if (valid) edges.load_terms(s, i, head, terms);
    const Score<float> score = score_of<false>(s, terms, own_score);
    const float alpha = valid ? exponential(score.score - log_sum) : 0.0f;
    const float weight = valid ? alpha * keep_factor(s, terms.number, head) : 0.0f;
    const float scaled_weight = weight * scale_of(scaled.values());

    float dots[kLanes] = {};
    for (int first = 0; first < p.k; first += kLanes) {
      const int j = first + deal.local;
#pragma unroll
      for (int edge = 0; edge < kLanes; edge += kInFlight) {
        bool there[kInFlight];
        int64_t at[kInFlight];
        float value[kInFlight];
        int kept[kInFlight];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          const int from = __shfl_sync(kFullWarp, column, edge + u, kLanes);
          there[u] = from >= 0 && j < p.k;
          at[u] = there[u] ? (int64_t(from) * s.heads + head) * p.k + j : 0;
          value[u] = there[u] ? unpack(load_vector<T, 1>(p.values + at[u]), 0) : 0.0f;
          kept[u] = there[u] ? __ldg(p.columns + at[u]) : 0;
        }
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          const float factor = __shfl_sync(kFullWarp, scaled_weight, edge + u, kLanes);
          if (!there[u]) continue;
          const float y = dy[kept[u]];
          dots[edge + u] += value[u] * y;
          atomicAdd(p.value_sums + at[u], __float2int_rn(factor * y));
        }
      }
    }
    const float dot = scatter_sums<kLanes>(dots, deal.local, kFullWarp);
    if (valid) {
      const float slope = score.positive() ? 1.0f : s.slope;
      const float gradient = (weight * dot - alpha * delta) * slope;
      sum += gradient;
      atomicAdd(p.score_sums + int64_t(column) * s.heads + head,
                __float2int_rn(gradient * scale_of(scaled.own())));
      if (edges.is_loop(i)) {
        if (p.loop_gradient != nullptr) p.loop_gradient[work.row * s.heads + head] = gradient;
      } else if (p.edge_gradient != nullptr) {
        p.edge_gradient[(work.begin + i) * s.heads + head] = gradient;
      }
    } else if (column == kSkipped && p.edge_gradient != nullptr) {
      p.edge_gradient[(work.begin + i) * s.heads + head] = 0.0f;
    }
    column = next;
    next = after;
    scaled = next_scaled;
  }
  sum = deal.sum_over_head(sum);
  if (!active || deal.stream != 0 || deal.local != 0) return;
  float* to = work.part < 0 ? p.receiver_gradient + work.row * s.heads
                            : p.receiver_partials + work.part * s.heads;
  to[head] = sum;
  const bool beginning = work.begin == load_offset(p.rows, work.row);
  if (p.loop_gradient != nullptr && !edges.loop && beginning) {
    p.loop_gradient[work.row * s.heads + head] = 0.0f;
  }
}

// From integers to the senders' gradients.
template <typename T, typename I>
__global__ void __launch_bounds__(kFinishThreads)
    finish_senders(const GradientParams<T, I> p, int64_t rows) {
  const int64_t i = int64_t(blockIdx.x) * kFinishThreads + threadIdx.x;
  if (i < rows) {
    p.sender_gradient[i] = static_cast<float>(p.score_sums[i]) * unit_of(p.scaled[i].own());
  }
  if (i >= rows * p.k) return;
  const float unit = unit_of(p.scaled[i / p.k].values());
  p.values_gradient[i] = narrow<T, float>(static_cast<float>(p.value_sums[i]) * unit);
}

template <typename T, typename I, int kLanes>
cudaError_t launch_walk(GradientParams<T, I> p, const Launch& launch) {
  const int64_t most = maxk::kMaxWidth / std::max(p.head_width, 1);
  p.warp_heads = heads_of_warp(p.scoring.heads, kLanes, std::min<int64_t>(most, 8));
  const int64_t slices = (p.scoring.heads + p.warp_heads - 1) / p.warp_heads;
  const dim3 grid =
      slice_grid(blocks_of(p.rows.num_chunks + p.rows.num_rows, kSparseWarps), slices);
  const size_t bytes = sizeof(float) * kSparseWarps * p.warp_heads * p.head_width;
  return launch_kernel(launch, sparse_gradients<T, I, kLanes>, grid, kSparseThreads, bytes, p);
}

template <typename T, typename I>
cudaError_t launch_types(const SparseGradientArgs& args, const Launch& launch) {
  const AttentionArgs& from = args.attention;
  const int64_t rows = args.cbsr.num_rows, k = args.cbsr.k;
  GradientParams<T, I> p{};
  p.rows = from.rows;
  p.scoring = make_scoring<float>(from);
  p.receivers = static_cast<const float*>(args.receivers);
  p.values = static_cast<const T*>(args.cbsr.values);
  p.columns = static_cast<const I*>(args.cbsr.indices);
  p.cotangent = static_cast<const T*>(args.cotangent);
  p.values_gradient = static_cast<T*>(args.values_gradient);
  p.sender_gradient = static_cast<float*>(args.sender_gradient);
  p.receiver_gradient = static_cast<float*>(args.receiver_gradient);
  p.edge_gradient = static_cast<float*>(args.edge_gradient);
  p.loop_gradient = static_cast<float*>(args.loop_gradient);
  p.receiver_partials = static_cast<float*>(args.receiver_partials);
  p.scaled = static_cast<Scaled*>(args.scratch);
  p.value_sums = reinterpret_cast<int*>(p.scaled + rows);
  p.score_sums = p.value_sums + rows * k;
  p.width = from.width;
  p.head_width = static_cast<int>(args.cbsr.width);
  p.k = static_cast<int>(k);

  if (!launch.load) {
    const size_t bytes = sizeof(int) * static_cast<size_t>(rows * (k + 1));
    JAXGNN_TRY(cudaMemsetAsync(p.value_sums, 0, bytes, launch.stream));
  }
  JAXGNN_TRY((launch_scales<T, true>(scale_params<T>(args, p.scaled), launch)));
  if (launch.load || k <= 4) JAXGNN_TRY((launch_walk<T, I, 4>(p, launch)));
  if (launch.load || (k > 4 && k <= 8)) JAXGNN_TRY((launch_walk<T, I, 8>(p, launch)));
  if (launch.load || (k > 8 && k <= 16)) JAXGNN_TRY((launch_walk<T, I, 16>(p, launch)));
  if (launch.load || k > 16) JAXGNN_TRY((launch_walk<T, I, 32>(p, launch)));
  JAXGNN_TRY((launch_join<float, Sum>(p.rows, p.receiver_partials, p.receiver_gradient, from.heads,
                                      false, false, launch)));
  return launch_kernel(launch, finish_senders<T, I>, blocks_of(rows * k, kFinishThreads),
                       kFinishThreads, 0, p, rows);
}

}  // namespace

cudaError_t launch_sparse_attention_gradients(const SparseGradientArgs& args,
                                              const Launch& launch) {
  if (!launch.load && is_empty(args.attention, args.cbsr)) return cudaSuccess;
  return maxk::with_types(launch, args.attention.type, args.cbsr.width, [&](auto tag, auto index) {
    return launch_types<typename decltype(tag)::type, typename decltype(index)::type>(args, launch);
  });
}

}  // namespace jaxgnn::attention
