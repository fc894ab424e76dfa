// The row-wise forward product with edge weights in fixed point: see fixed_point.cuh for bounds and
// small terms.
#include <cmath>

#include "cuda/maxk/spmm_rows.cuh"

namespace jaxgnn::maxk {
namespace {

// Of the terms that are left: the sum of their sizes, rounded up, and the smallest that is not 0,
// NaN if there is none.
struct Left {
  float sum;
  float smallest;
};

template <typename T, typename I>
__device__ inline Left find_left(const SpmmParams<T, I>& p, const Work& work, bool all,
                                 float below) {
  float sum = 0.0f;
  unsigned smallest = kNoSize;
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < work.count; i += 32) {
    const int64_t e = work.begin + i;
    const float size = fabsf(p.weights[e]) * p.sizes[load_column(p.rows, e)];
    if (all || size < below) {
      sum += size;
      if (size > 0.0f) smallest = min(smallest, __float_as_uint(size));
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  return {round_up(sum, work.count), __uint_as_float(__reduce_min_sync(kFullWarp, smallest))};
}

// Adds the terms of at least a size.
template <typename S, typename T, typename I>
__device__ inline void add_most(const SpmmParams<T, I>& p, const Work& work, float scale,
                                float least, int* sums) {
  const int lane = threadIdx.x % S::kLanes;
  const int group = threadIdx.x % 32 / S::kLanes;
  for (int first = 0; first < p.k; first += S::kSpan) {
    const int c = first + lane * S::kPer;
    for (int base = 0; base < work.count; base += kRowSteps * S::kGroups) {
      // Edges beyond the last repeat it, and are not added: loads without branches overlap.
      float value[kRowSteps][S::kPer];
      int column[kRowSteps][S::kPer];
      float weight[kRowSteps], size[kRowSteps];
      int64_t from[kRowSteps];
#pragma unroll
      for (int u = 0; u < kRowSteps; ++u) {
        const int i = min(base + u * S::kGroups + group, work.count - 1);
        from[u] = load_column(p.rows, work.begin + i);
        weight[u] = p.weights[work.begin + i];
      }
#pragma unroll
      for (int u = 0; u < kRowSteps; ++u) {
        load_values<T, S::kPer>(p.values + from[u] * p.k, c, p.k, value[u]);
        load_columns<I, S::kPer>(p.columns + from[u] * p.k, c, p.k, column[u]);
        size[u] = p.sizes[from[u]];
      }
#pragma unroll
      for (int u = 0; u < kRowSteps; ++u) {
        const bool is_there = base + u * S::kGroups + group < work.count && c < p.k;
        if (!is_there || fabsf(weight[u]) * size[u] < least) continue;
        const float factor = weight[u] * scale;
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) {
          atomicAdd(sums + column[u][i], __float2int_rn(value[u][i] * factor));
        }
      }
    }
  }
}

// Adds the terms from a size on and below another, which are few: one after the other.
template <typename T, typename I>
__device__ inline void add_few(const SpmmParams<T, I>& p, const Work& work, float scale,
                               float least, float below, int* sums) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < work.count; base += 32) {
    const int i = base + lane;
    int64_t from = 0;
    float factor = 0.0f, size = below;
    if (i < work.count) {
      from = load_column(p.rows, work.begin + i);
      const float weight = p.weights[work.begin + i];
      size = fabsf(weight) * p.sizes[from];
      factor = weight * scale;
    }
    unsigned found = __ballot_sync(kFullWarp, size > 0.0f && size < below && size >= least);
    for (; found != 0; found &= found - 1) {
      const int source = __ffs(found) - 1;
      const int64_t at = __shfl_sync(kFullWarp, from, source) * p.k;
      const float own_factor = __shfl_sync(kFullWarp, factor, source);
      for (int c = lane; c < p.k; c += 32) {
        atomicAdd(sums + p.columns[at + c], __float2int_rn(widen(p.values[at + c]) * own_factor));
      }
    }
  }
}

template <typename T, typename I, typename S>
__global__ void __launch_bounds__(kRowThreads, 8) weighted_rows(const SpmmParams<T, I> p) {
  if (!has_scale(p.range)) return;
  extern __shared__ int shared[];
  const int64_t worker = int64_t(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const Work work = find_work(p.rows, worker);
  if (work.row < 0) return;
  const int lane = threadIdx.x % 32;
  int* sums = shared + threadIdx.x / 32 * 2 * p.width;
  float* totals = reinterpret_cast<float*>(sums + p.width);
  for (int f = lane; f < p.width; f += 32) totals[f] = 0.0f;
  float below = INFINITY;
  for (int pass = 0;; ++pass) {
    const Left left = find_left(p, work, pass == 0, below);
    if (left.sum == 0.0f) break;
    // What is not finite fits no scale.
    const bool fits = left.sum >= kLeastBound && left.sum <= kMostBound;
    if (!fits || pass > kMorePasses) {
      if (lane == 0) p.flags[worker] = 1;
      return;
    }
    const float scale = fixed_scale(left.sum, work.count);
    const float least = left.sum * kSmallShare<T> / static_cast<float>(work.count);
    for (int f = lane; f < p.width; f += 32) sums[f] = 0;
    __syncwarp();
    if (pass == 0) {
      add_most<S>(p, work, scale, least, sums);
    } else {
      add_few(p, work, scale, least, below, sums);
    }
    __syncwarp();
    const float unit = 1.0f / scale;
    for (int f = lane; f < p.width; f += 32) totals[f] += sums[f] * unit;
    if (!(left.smallest < least)) break;
    below = least;
  }
  for (int f = lane; f < p.width; f += 32) finish(p, work, f, totals[f]);
}

}  // namespace

template <typename T, typename I>
cudaError_t launch_weighted_rows(const SpmmParams<T, I>& p, const Launch& launch) {
  const unsigned blocks =
      launch.load ? 1 : blocks_of(p.rows.num_chunks + p.rows.num_rows, kRowWarps);
  const size_t bytes = kRowWarps * 2 * static_cast<size_t>(p.width) * sizeof(float);
  return with_share(launch, p.k, p.k % 4 == 0, [&](auto share) {
    return launch_large_kernel(launch, weighted_rows<T, I, decltype(share)>, blocks, kRowThreads,
                               bytes, p);
  });
}

#define JAXGNN_INSTANTIATE(T)                                                              \
  template cudaError_t launch_weighted_rows(const SpmmParams<T, uint8_t>&, const Launch&); \
  template cudaError_t launch_weighted_rows(const SpmmParams<T, uint16_t>&, const Launch&);
JAXGNN_INSTANTIATE(float)
JAXGNN_INSTANTIATE(__nv_bfloat16)
JAXGNN_INSTANTIATE(__half)
#undef JAXGNN_INSTANTIATE

}  // namespace jaxgnn::maxk
