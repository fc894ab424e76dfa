// What the forward pass over windows needs to know before it adds: the log-sum-exp of each
// receiver's scores, and by it a bound of its sums, sum_e alpha max|v[j]|.
#pragma once

#include <algorithm>

#include "cuda/attention/edge_weights.cuh"
#include "cuda/attention/sparse_rows.cuh"

namespace jaxgnn::attention {

struct WindowSoftmax {
  Rows rows;
  const float* sender_scores;    // [senders, heads]
  const float* receiver_scores;  // [receivers, heads]
  float2* numbers;               // [senders, heads]: score, max|v|
  float* log_sum;                // [receivers, heads, 2]
  float* bounds;                 // [receivers, heads]; NaN where a weight or a value is not finite
  float* partials;               // [parts, 3, heads]
  int64_t num_senders;
  float slope;
  bool self_loops;
  int heads;
  int k;
  int warp_heads;
};

template <typename T>
__global__ void __launch_bounds__(256) fill_numbers(const WindowSoftmax p, const T* values) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.num_senders * p.heads) return;
  float largest = 0.0f;
  for (int j = 0; j < p.k; j += 4) {
    const Vector<T, 4> vector = load_vector<T, 4>(values + i * p.k + j);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float size = fabsf(unpack(vector, u));
      if (size > largest || size != size) largest = size;  // NaN stays
    }
  }
  p.numbers[i] = {p.sender_scores[i], largest};
}

// The softmax of some edges, and the sum of the values' sizes by its weights.
struct BoundedSoftmax {
  Softmax<float> softmax;
  float weighted = 0.0f;

  __device__ void raise(float score) { weighted *= softmax.raise(score); }
  __device__ void add(float score, float size) {
    if (score > softmax.largest) raise(score);
    const float weight = exponential(score - softmax.base());
    softmax.total += weight;
    weighted += weight * size;
  }
  __device__ void store(const WindowSoftmax& p, int64_t at) const {
    const float log_sum = softmax.store_log_sum(p.log_sum + 2 * at);
    const float bound = weighted * softmax.scale();
    p.bounds[at] = bound + 0.0f * log_sum;
  }
};

__global__ void __launch_bounds__(kSparseThreads) find_softmax(const WindowSoftmax p) {
  constexpr int kInFlight = 4;
  const int first_head = slice_number() * p.warp_heads;
  const Work work = find_work(p.rows, int64_t(blockIdx.x) * kSparseWarps + threadIdx.x / 32);
  if (work.row < 0 || first_head >= p.heads) return;
  const Deal<1> deal(p.warp_heads);
  const int head = first_head + deal.own;
  BoundedSoftmax sums;
  if (head < p.heads) {
    const float own = p.receiver_scores[work.row * p.heads + head];
    const int skipped = p.self_loops ? static_cast<int>(work.row) : kNoEdge;
    const auto add = [&](float2 at) {
      const float sum = at.x + own;
      sums.add(sum > 0.0f || is_masked(sum) ? sum : sum * p.slope, at.y);
    };
    for (int i = deal.stream; i < work.count; i += kInFlight * deal.streams) {
      int column[kInFlight];
      float2 at[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        const int place = i + u * deal.streams;
        column[u] = place < work.count ? static_cast<int>(load_column(p.rows, work.begin + place))
                                       : kNoEdge;
        if (column[u] == skipped) column[u] = kNoEdge;
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        at[u] = column[u] < 0 ? make_float2(0.0f, 0.0f)
                              : __ldg(p.numbers + int64_t(column[u]) * p.heads + head);
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (column[u] >= 0) add(at[u]);
      }
    }
    const bool beginning = work.begin == load_offset(p.rows, work.row);
    if (p.self_loops && beginning && deal.stream == 0 && work.row < p.num_senders) {
      add(p.numbers[work.row * p.heads + head]);
    }
  }
  const float largest = deal.max_over_head(sums.softmax.largest);
  if (!(largest <= sums.softmax.largest)) sums.raise(largest);
  sums.softmax.total = deal.sum_over_head(sums.softmax.total);
  sums.weighted = deal.sum_over_head(sums.weighted);
  if (head >= p.heads || deal.stream != 0) return;
  if (work.part < 0) {
    sums.store(p, work.row * p.heads + head);
  } else {
    float* partial = p.partials + work.part * 3 * p.heads + head;
    partial[0] = sums.softmax.largest;
    partial[p.heads] = sums.softmax.total;
    partial[2 * p.heads] = sums.weighted;
  }
}

// Of receivers that were taken in chunks. One block a chunk; the first of each row works.
__global__ void join_softmax(const WindowSoftmax p) {
  const int64_t first = blockIdx.x;
  const RowPart chunk = p.rows.chunks[first];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int64_t degree = load_offset(p.rows, chunk.row + 1) - load_offset(p.rows, chunk.row);
  const int64_t parts = (degree + p.rows.chunk_length - 1) / p.rows.chunk_length;
  for (int head = threadIdx.x; head < p.heads; head += blockDim.x) {
    BoundedSoftmax sums;
    for (int64_t part = first; part < first + parts; ++part) {
      const float* partial = p.partials + part * 3 * p.heads + head;
      sums.raise(partial[0]);
      const float factor = exponential(partial[0] - sums.softmax.base());
      sums.softmax.total += factor * partial[p.heads];
      sums.weighted += factor * partial[2 * p.heads];
    }
    sums.store(p, int64_t(chunk.row) * p.heads + head);
  }
}

template <typename T>
cudaError_t launch_softmax(WindowSoftmax p, const T* values, const Launch& launch) {
  JAXGNN_TRY(launch_kernel(launch, fill_numbers<T>, blocks_of(p.num_senders * p.heads, 256), 256, 0,
                           p, values));
  p.warp_heads = heads_of_warp(p.heads, 1);
  const int64_t slices = (p.heads + p.warp_heads - 1) / std::max(p.warp_heads, 1);
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  JAXGNN_TRY(launch_kernel(launch, find_softmax,
                           slice_grid(blocks_of(workers, kSparseWarps), slices), kSparseThreads, 0,
                           p));
  if (!launch.load && p.rows.num_chunks == 0) return cudaSuccess;
  return launch_kernel(launch, join_softmax, p.rows.num_chunks, 32, 0, p);
}

}  // namespace jaxgnn::attention
