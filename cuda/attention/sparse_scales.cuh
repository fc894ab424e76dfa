// The scales of the senders' gradients in fixed point. A sender's scale is a power of two from
// bounds on the sums of magnitudes,
//   |dv[j, c]| <= B[j] = sum_e w max|dy[i]|,   |dscore[j]| <= |v[j]|_1 B[j] + sum_e alpha |delta|,
// which a pass over the transpose finds from the receivers' numbers alone.
//
// Sums of integers (kIntegers) have 29 bits below the bound. Sums of floats are exact as long as
// they are integers of at most 24 bits: a term is a whole number of units of 22 bits below the
// bound, and what is left of it a whole number of smaller units, as many bits less as the number of
// terms leaves. Neither sum can exceed 2^24: a term that is not rounded to 0 at most doubles.
#pragma once

#include <cfloat>

#include "cuda/attention/sparse_attention.h"
#include "cuda/attention/sparse_rows.cuh"

namespace jaxgnn::attention {

constexpr int kIntegerBits = 29, kWholeBits = 22, kMostLowBits = 16;

// A sender's numbers for one head: its score; as biased exponents (0: none fits) the scales of its
// CBSR row's gradient and of its score's; the bits of the smaller units; and whether |v|_1 is
// unbounded.
struct alignas(8) Scaled {
  float score;
  uint32_t bits;

  __device__ int values() const { return bits & 0xff; }
  __device__ int own() const { return bits >> 8 & 0xff; }
  __device__ int low() const { return bits >> 16 & 0xff; }
  __device__ bool unbounded() const { return bits >> 31; }
};
__device__ inline float scale_of(int biased) { return __int_as_float(biased << 23); }
__device__ inline float unit_of(int biased) {
  return biased == 0 ? NAN : __int_as_float((254 - biased) << 23);
}

// 2^(bits - e) for a bound below 2^e: rounding to integers cannot make the sums overflow.
__device__ inline int biased_exponent(float bound, int bits) {
  if (!(bound <= FLT_MAX)) return 0;
  if (bound == 0.0f) return 127;
  int e;
  frexpf(bound, &e);
  return min(bits - e, 126) + 127;
}

template <typename T>
struct ScaleParams {
  Rows transpose;
  Scoring<float> scoring;
  const float* sender_scores;
  const float* receivers;  // [receivers, 4, heads]; for sums of floats [receivers, heads, 4]
  const T* values;
  float* partials;  // [parts, 2, heads] are used
  Scaled* scaled;   // [senders, heads]
  int k;
  int warp_heads;
};

// A norm above this counts as unbounded, half of the largest that bounds the receivers' sums.
constexpr float kLargestNorm = 0x1p126f;

template <bool kIntegers, typename P>
__device__ inline void store_scaled(const P& p, int64_t sender, int head, float weighted,
                                    float deltas, float norm, int64_t terms) {
  const float bound = p.scoring.keep_scale * weighted;
  const float slope = fmaxf(1.0f, fabsf(p.scoring.slope));
  const float own_bound = (norm * bound + deltas) * slope;
  const int64_t at = sender * p.scoring.heads + head;
  constexpr int kBits = kIntegers ? kIntegerBits : kWholeBits;
  uint32_t bits = static_cast<uint32_t>(biased_exponent(bound, kBits)) |
                  static_cast<uint32_t>(biased_exponent(own_bound, kBits)) << 8;
  if constexpr (!kIntegers) {
    const int of_terms = 64 - __clzll(terms + 1);  // with a self-loop; 2^of_terms is above them
    bits |= static_cast<uint32_t>(max(0, min(kMostLowBits, 25 - of_terms))) << 16;
    if (!(norm <= kLargestNorm)) bits |= 1u << 31;
  }
  p.scaled[at] = {p.sender_scores[at], bits};
}

template <typename T>
__device__ inline float magnitude(const T* values, int64_t at) {
  return fabsf(unpack(load_vector<T, 1>(values + at), 0));
}

// The same sums without biases and dropout; four edges of a lane in flight.
template <typename P>
__device__ inline void add_bounds(const P& p, const Work& work, const Deal<1>& deal, int head,
                                  float own, float& weighted, float& deltas) {
  constexpr int kInFlight = 4;
  const float4* receivers = reinterpret_cast<const float4*>(p.receivers) + head;
  const Scoring<float>& s = p.scoring;
  const int skipped = s.self_loops ? static_cast<int>(work.row) : kNoEdge;
  const auto add = [&](float4 numbers) {
    const Gathered<float> at{numbers.x, numbers.y, numbers.z, 0.0f, 0};
    const float alpha = exponential(score_of<true>(s, at, own).score - at.log_sum);
    weighted += alpha * numbers.w;
    deltas += alpha * fabsf(at.delta);
  };
  for (int i = deal.stream; i < work.count; i += kInFlight * deal.streams) {
    int column[kInFlight];
    float4 numbers[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int place = i + u * deal.streams;
      column[u] = place < work.count
                      ? static_cast<int>(load_column(p.transpose, work.begin + place))
                      : kNoEdge;
      if (column[u] == skipped) column[u] = kNoEdge;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      numbers[u] = column[u] < 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                                 : __ldg(receivers + int64_t(column[u]) * s.heads);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (column[u] >= 0) add(numbers[u]);
    }
  }
  if (has_loop(s, p.transpose, work) && deal.stream == 0) add(receivers[work.row * s.heads]);
}

// By senders: the bounds, and the scales.
template <typename T, bool kIntegers>
__global__ void __launch_bounds__(kSparseThreads) find_scales(const ScaleParams<T> p) {
  const Scoring<float>& s = p.scoring;
  const int first_head = slice_number() * p.warp_heads;
  const Work work = find_work(p.transpose, int64_t(blockIdx.x) * kSparseWarps + threadIdx.x / 32);
  if (work.row < 0 || first_head >= s.heads) return;
  const Deal<1> deal(p.warp_heads);
  const int head = first_head + deal.own;
  float weighted = 0.0f, deltas = 0.0f, norm = 0.0f;
  if (head < s.heads) {
    const Edges edges(p.transpose, s, work);
    const float own = p.sender_scores[work.row * s.heads + head];
    if constexpr (kIntegers) {
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
    } else {
      add_bounds(p, work, deal, head, own, weighted, deltas);
    }
    const int64_t row = (work.row * s.heads + head) * p.k;
    for (int j = deal.stream; j < p.k; j += deal.streams) norm += magnitude(p.values, row + j);
  }
  weighted = deal.sum_over_head(weighted);
  deltas = deal.sum_over_head(deltas);
  norm = deal.sum_over_head(norm);
  if (head >= s.heads || deal.stream != 0) return;
  if (work.part < 0) {
    store_scaled<kIntegers>(p, work.row, head, weighted, deltas, norm, work.degree);
  } else {
    float* partial = p.partials + work.part * 2 * s.heads + head;
    partial[0] = weighted;
    partial[s.heads] = deltas;
  }
}

// The scales of senders that were taken in chunks. One block a chunk; the first of each row works.
template <typename T, bool kIntegers>
__global__ void join_scales(const ScaleParams<T> p) {
  const int64_t first = blockIdx.x;
  const RowPart chunk = p.transpose.chunks[first];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int64_t degree =
      load_offset(p.transpose, chunk.row + 1) - load_offset(p.transpose, chunk.row);
  const int64_t parts = (degree + p.transpose.chunk_length - 1) / p.transpose.chunk_length;
  const int heads = p.scoring.heads;
  for (int head = threadIdx.x; head < heads; head += blockDim.x) {
    float weighted = 0.0f, deltas = 0.0f, norm = 0.0f;
    for (int64_t part = first; part < first + parts; ++part) {
      weighted += p.partials[part * 2 * heads + head];
      deltas += p.partials[(part * 2 + 1) * heads + head];
    }
    const int64_t row = (int64_t(chunk.row) * heads + head) * p.k;
    for (int j = 0; j < p.k; ++j) norm += magnitude(p.values, row + j);
    store_scaled<kIntegers>(p, chunk.row, head, weighted, deltas, norm, degree);
  }
}

template <typename T>
ScaleParams<T> scale_params(const SparseGradientArgs& args, Scaled* scaled) {
  ScaleParams<T> p{};
  p.transpose = args.transpose;
  p.scoring = make_scoring<float>(args.attention);
  p.scoring.order = args.permutation;
  p.scoring.wide_order = args.wide_permutation;
  p.scoring.num_columns = args.attention.rows.num_rows;
  p.sender_scores = static_cast<const float*>(args.attention.sender_scores);
  p.receivers = static_cast<const float*>(args.receivers);
  p.values = static_cast<const T*>(args.cbsr.values);
  p.partials = static_cast<float*>(args.sender_partials);
  p.scaled = scaled;
  p.k = static_cast<int>(args.cbsr.k);
  return p;
}

template <typename T, bool kIntegers>
cudaError_t launch_scales(ScaleParams<T> p, const Launch& launch) {
  const int64_t heads = p.scoring.heads;
  p.warp_heads = heads_of_warp(heads, 1);
  const int64_t slices = (heads + p.warp_heads - 1) / p.warp_heads;
  const int64_t workers = p.transpose.num_chunks + p.transpose.num_rows;
  JAXGNN_TRY(launch_kernel(launch, find_scales<T, kIntegers>,
                           slice_grid(blocks_of(workers, kSparseWarps), slices), kSparseThreads, 0,
                           p));
  if (!launch.load && p.transpose.num_chunks == 0) return cudaSuccess;
  return launch_kernel(launch, join_scales<T, kIntegers>, p.transpose.num_chunks, 32, 0, p);
}

}  // namespace jaxgnn::attention
