// The gradients over compressed balanced sparse rows. With c the LeakyReLU's slope, w the weight
// after dropout, I the columns that a sender keeps and delta = <dy, y>,
//   dv[j, I] = sum_e w dy[i, I],   dscore_e = c (w <dy[i, I], v[j]> - alpha delta[i]).
// One walk by receivers has dy's row in shared memory and reads each CBSR row once for both. What
// belongs to the senders is reduced in L2, which touches fewer sectors than gathering dy by
// senders: the columns that a CBSR row keeps lie in most sectors of a dense row.
//
// The reductions are of integers, so that their order does not matter. A sender's scale is a power
// of two from bounds on the sums of magnitudes,
//   |dv[j, c]| <= B[j] = sum_e w max|dy[i]|,   |dscore[j]| <= C = |v[j]|_1 B[j] + sum_e alpha
//   |delta|,
// which a pass over the transpose finds from the receivers' numbers alone. What has a bound that is
// not finite becomes NaN.
#include <algorithm>
#include <cfloat>

#include "cuda/attention/sparse_attention.h"
#include "cuda/attention/sparse_rows.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::attention {
namespace {

constexpr int kFinishThreads = 256;

// A sender's numbers for one head: its score, and the scales of its CBSR row's gradient and of its
// score's, as biased exponents (0: none fits).
struct alignas(8) Scaled {
  float score;
  uint32_t exponents;

  __device__ int values() const { return exponents & 0xff; }
  __device__ int own() const { return exponents >> 8; }
};
__device__ inline float scale_of(int biased) { return __int_as_float(biased << 23); }
__device__ inline float unit_of(int biased) {
  return biased == 0 ? NAN : __int_as_float((254 - biased) << 23);
}

// 2^(29 - e) for a bound below 2^e: rounding to integers cannot make the sums overflow.
__device__ inline int biased_exponent(float bound) {
  if (!(bound <= FLT_MAX)) return 0;
  if (bound == 0.0f) return 127;
  int e;
  frexpf(bound, &e);
  return min(29 - e, 126) + 127;
}

template <typename T, typename I>
struct GradientParams {
  Rows rows;
  Rows transpose;
  Scoring<float> scoring;     // by receivers
  Scoring<float> transposed;  // by senders
  const float* sender_scores;
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
  float* sender_partials;  // [parts of the transpose, 2, heads] are used
  Scaled* scaled;          // [senders, heads]
  int* value_sums;         // [senders, heads, k]
  int* score_sums;         // [senders, heads]
  int64_t width;
  int head_width;
  int k;
  int warp_heads;
};

template <typename P>
__device__ inline void store_scaled(const P& p, int64_t sender, int head, float weighted,
                                    float deltas, float norm) {
  const float bound = p.scoring.keep_scale * weighted;
  const float slope = fmaxf(1.0f, fabsf(p.scoring.slope));
  const float own_bound = (norm * bound + deltas) * slope;
  const int64_t at = sender * p.scoring.heads + head;
  const uint32_t exponents = static_cast<uint32_t>(biased_exponent(bound)) |
                             static_cast<uint32_t>(biased_exponent(own_bound)) << 8;
  p.scaled[at] = {p.sender_scores[at], exponents};
}

template <typename T>
__device__ inline float magnitude(const T* values, int64_t at) {
  return fabsf(unpack(load_vector<T, 1>(values + at), 0));
}

// By senders: the bounds, and the scales.
template <typename T, typename I>
__global__ void __launch_bounds__(kSparseThreads) find_scales(const GradientParams<T, I> p) {
  const Scoring<float>& s = p.transposed;
  const int first_head = slice_number() * p.warp_heads;
  const Work work = find_work(p.transpose, int64_t(blockIdx.x) * kSparseWarps + threadIdx.x / 32);
  if (work.row < 0 || first_head >= s.heads) return;
  const Deal<1> deal(p.warp_heads);
  const int head = first_head + deal.own;
  float weighted = 0.0f, deltas = 0.0f, norm = 0.0f;
  if (head < s.heads) {
    const Edges edges(p.transpose, s, work);
    const float own = p.sender_scores[work.row * s.heads + head];
#pragma unroll 4
    for (int i = deal.stream; i < edges.total(); i += deal.streams) {
      const int column = edges.column(i);
      if (column < 0) continue;
      const float* numbers = p.receivers + int64_t(column) * 4 * s.heads + head;
      Gathered<float> at{__ldg(numbers), __ldg(numbers + s.heads), __ldg(numbers + 2 * s.heads),
                         0.0f, 0};
      const float largest = __ldg(numbers + 3 * s.heads);
      if (s.edge_bias != nullptr || s.loop_bias != nullptr) edges.load_terms(s, i, head, at);
      const float alpha = exponential(score_of<false>(s, at, own).score - at.log_sum);
      weighted += alpha * largest;
      deltas += alpha * fabsf(at.delta);
    }
    const int64_t row = (work.row * s.heads + head) * p.k;
    for (int j = deal.stream; j < p.k; j += deal.streams) norm += magnitude(p.values, row + j);
  }
  weighted = deal.sum_over_head(weighted);
  deltas = deal.sum_over_head(deltas);
  norm = deal.sum_over_head(norm);
  if (head >= s.heads || deal.stream != 0) return;
  if (work.part < 0) {
    store_scaled(p, work.row, head, weighted, deltas, norm);
  } else {
    float* partial = p.sender_partials + work.part * 2 * s.heads + head;
    partial[0] = weighted;
    partial[s.heads] = deltas;
  }
}

// The scales of senders that were taken in chunks. One block a chunk; the first of each row works.
template <typename T, typename I>
__global__ void join_scales(const GradientParams<T, I> p) {
  const int64_t first = blockIdx.x;
  const RowPart split = p.transpose.splits[first];
  if (split.row < 0 || split.part != 0) return;
  const int64_t degree =
      load_offset(p.transpose, split.row + 1) - load_offset(p.transpose, split.row);
  const int64_t parts = (degree + p.transpose.split_length - 1) / p.transpose.split_length;
  const int heads = p.scoring.heads;
  for (int head = threadIdx.x; head < heads; head += blockDim.x) {
    float weighted = 0.0f, deltas = 0.0f, norm = 0.0f;
    for (int64_t part = first; part < first + parts; ++part) {
      weighted += p.sender_partials[part * 2 * heads + head];
      deltas += p.sender_partials[(part * 2 + 1) * heads + head];
    }
    const int64_t row = (int64_t(split.row) * heads + head) * p.k;
    for (int j = 0; j < p.k; ++j) norm += magnitude(p.values, row + j);
    store_scaled(p, split.row, head, weighted, deltas, norm);
  }
}

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
      slice_grid(blocks_of(p.rows.num_splits + p.rows.num_rows, kSparseWarps), slices);
  const size_t bytes = sizeof(float) * kSparseWarps * p.warp_heads * p.head_width;
  return launch_kernel(launch, sparse_gradients<T, I, kLanes>, grid, kSparseThreads, bytes, p);
}

template <typename T, typename I>
cudaError_t launch_types(const SparseGradientArgs& args, const Launch& launch) {
  const AttentionArgs& from = args.attention;
  const int64_t rows = args.cbsr.num_rows, k = args.cbsr.k;
  GradientParams<T, I> p{};
  p.rows = from.rows;
  p.transpose = args.transpose;
  p.scoring = make_scoring<float>(from);
  p.transposed = p.scoring;
  p.transposed.order = args.permutation;
  p.transposed.wide_order = args.wide_permutation;
  p.transposed.num_columns = from.rows.num_rows;
  p.sender_scores = static_cast<const float*>(from.sender_scores);
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
  p.sender_partials = static_cast<float*>(args.sender_partials);
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
  p.warp_heads = heads_of_warp(from.heads, 1);
  const int64_t slices = (from.heads + p.warp_heads - 1) / p.warp_heads;
  const int64_t workers = p.transpose.num_splits + p.transpose.num_rows;
  JAXGNN_TRY(launch_kernel(launch, find_scales<T, I>,
                           slice_grid(blocks_of(workers, kSparseWarps), slices), kSparseThreads, 0,
                           p));
  if (launch.load || p.transpose.num_splits > 0) {
    JAXGNN_TRY(launch_kernel(launch, join_scales<T, I>, p.transpose.num_splits, 32, 0, p));
  }
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
