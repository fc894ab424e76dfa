// SSpMM: the dense rows' sums at the kept columns alone.
//
// Gathered: a warp owns a CBSR row's sums and walks the row's edges in order, each lane reading its
// columns of the dense row. Scattered: a warp stages a dense row in shared memory and walks its
// edges, adding the row's values at each CBSR row's columns to the CBSR row's sums in L2.
#include <algorithm>

#include "cuda/core/reduce.cuh"
#include "cuda/maxk/cbsr.cuh"
#include "cuda/maxk/fixed_point.cuh"
#include "cuda/maxk/maxk.h"
#include "cuda/maxk/reduce_to.cuh"

namespace jaxgnn::maxk {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kSteps = 8;  // edges of a group in flight

template <typename T, typename I>
struct Params {
  Rows rows;
  const T* dense;
  const I* columns;
  const float* weights;
  T* out;
  float* partials;
  int width;
  int k;
  const uint32_t* range;
};

// kPer sums a lane, kLanes apart, for k > 32; else the warp's groups iterate over the edges.
template <int kPer, int kLanes, typename T, typename I>
__device__ inline void gather_row(const Params<T, I>& p, const Work& work) {
  constexpr int kGroups = 32 / kLanes;
  constexpr int kFlight = kPer == 1 ? kSteps : kSteps / 2;
  if (work.row < 0) return;
  const int lane = threadIdx.x % kLanes;
  const int group = threadIdx.x % 32 / kLanes;
  for (int first = 0; first < p.k; first += kLanes * kPer) {
    int column[kPer];
    float sum[kPer] = {};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int c = first + i * kLanes + lane;
      column[i] = c < p.k ? p.columns[work.row * p.k + c] : 0;
    }
    for (int base = group; base < work.count; base += kFlight * kGroups) {
      T value[kFlight][kPer];
      float weight[kFlight];
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        const int i = base + u * kGroups;
        const int64_t e = work.begin + min(i, work.count - 1);
        const T* row = p.dense + load_column(p.rows, e) * p.width;
        weight[u] = p.weights != nullptr ? p.weights[e] : 1.0f;
#pragma unroll
        for (int j = 0; j < kPer; ++j) value[u][j] = row[column[j]];
      }
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        if (base + u * kGroups >= work.count) continue;
#pragma unroll
        for (int j = 0; j < kPer; ++j) sum[j] += weight[u] * widen(value[u][j]);
      }
    }
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) sum[j] += __shfl_xor_sync(kFullWarp, sum[j], offset);
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int c = first + j * kLanes + lane;
      float result[1] = {sum[j]};
      if (c < p.k && group == 0) {
        store_row<T, 1, float>(work, p.out, p.partials, p.k, c, false, result);
      }
    }
  }
}

template <typename T, typename I, int kPer, int kLanes>
__global__ void __launch_bounds__(kThreads) gather(const Params<T, I> p) {
  if (p.range != nullptr && use_wide_fixed(p.range, p.rows.num_edges)) return;
  // The grid may be smaller than the work: see launch_maxk_sspmm.
  for (int64_t worker = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
       worker < p.rows.num_chunks + p.rows.num_rows; worker += int64_t(gridDim.x) * kWarps) {
    gather_row<kPer, kLanes>(p, find_work(p.rows, worker));
  }
}

template <typename T, typename I, typename S>
__global__ void __launch_bounds__(kThreads) scatter(const Params<T, I> p, float* sums) {
  extern __shared__ float staged[];
  const Work work = find_work(p.rows, int64_t(blockIdx.x) * kWarps + threadIdx.x / 32);
  if (work.row < 0) return;
  float* row = staged + threadIdx.x / 32 * p.width;
  const T* dense = p.dense + work.row * p.width;
  for (int f = threadIdx.x % 32; f < p.width; f += 32) row[f] = widen(dense[f]);
  __syncwarp();
  const int lane = threadIdx.x % S::kLanes;
  const int group = threadIdx.x % 32 / S::kLanes;
  for (int c = lane * S::kPer; c < p.k; c += S::kSpan) {
#pragma unroll 4
    for (int i = group; i < work.count; i += S::kGroups) {
      const int64_t e = work.begin + i;
      const int64_t at = load_column(p.rows, e) * p.k;
      const float weight = p.weights != nullptr ? p.weights[e] : 1.0f;
      int column[S::kPer];
      load_columns<I, S::kPer>(p.columns + at, c, p.k, column);
      float value[S::kPer];
#pragma unroll
      for (int j = 0; j < S::kPer; ++j) value[j] = weight * row[column[j]];
      reduce_to<S::kPer>(sums + at + c, value);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(256) round_sums(const float* sums, T* out, int64_t size) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) out[i] = narrow<T, float>(sums[i]);
}

template <typename T, typename I>
Params<T, I> params(const MaxkProductArgs& args, const uint32_t* range) {
  return {args.rows,
          static_cast<const T*>(args.dense),
          static_cast<const I*>(args.cbsr.indices),
          static_cast<const float*>(args.weights),
          static_cast<T*>(args.out),
          static_cast<float*>(args.partials),
          static_cast<int>(args.cbsr.width),
          static_cast<int>(args.cbsr.k),
          range};
}

// Calls f(kernel) with the gather kernel for CBSR rows of k, or to load with each of them.
template <typename T, typename I, typename F>
cudaError_t with_gather(const Launch& launch, int64_t k, F f) {
  if (launch.load) {
    for (const auto kernel : {gather<T, I, 1, 8>, gather<T, I, 1, 16>, gather<T, I, 1, 32>,
                              gather<T, I, 2, 32>, gather<T, I, 4, 32>}) {
      JAXGNN_TRY(f(kernel));
    }
    return cudaSuccess;
  }
  if (k <= 8) return f(gather<T, I, 1, 8>);
  if (k <= 16) return f(gather<T, I, 1, 16>);
  if (k <= 32) return f(gather<T, I, 1, 32>);
  if (k <= 64) return f(gather<T, I, 2, 32>);
  return f(gather<T, I, 4, 32>);
}

unsigned blocks_of_rows(const Rows& rows) {
  return blocks_of(rows.num_chunks + rows.num_rows, kWarps);
}

}  // namespace

cudaError_t launch_maxk_sspmm(const MaxkProductArgs& args, const Launch& launch,
                              const uint32_t* range, bool wide_columns) {
  if (!launch.load && args.rows.num_rows == 0) return cudaSuccess;
  const int64_t width = wide_columns ? kMaxWidth : args.cbsr.width;
  return with_types(launch, args.type, width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const Params<T, I> p = params<T, I>(args, range);
    JAXGNN_TRY((with_gather<T, I>(launch, args.cbsr.k, [&](auto kernel) {
      // Where it will probably find nothing to do, a grid that ends at once.
      const unsigned blocks = blocks_of_rows(args.rows);
      const unsigned grid = range == nullptr ? blocks : std::min(blocks, kFallbackBlocks);
      return launch_kernel(launch, kernel, grid, kThreads, 0, p);
    })));
    return launch_join<T, Sum>(p.rows, p.partials, p.out, args.cbsr.k, false, false, launch);
  });
}

cudaError_t launch_maxk_sspmm_scatter(const MaxkProductArgs& args, const Launch& launch) {
  const Cbsr& to = args.cbsr;
  float* sums = static_cast<float*>(args.out);
  if (!launch.load) {
    const size_t bytes = to.num_rows * to.k * sizeof(float);
    JAXGNN_TRY(cudaMemsetAsync(sums, 0, bytes, launch.stream));
    if (args.rows.num_rows == 0) return cudaSuccess;
  }
  return with_types(launch, args.type, to.width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const Params<T, I> p = params<T, I>(args, nullptr);
    return with_share(launch, to.k, to.k % 4 == 0, [&](auto share) {
      return launch_large_kernel(launch, scatter<T, I, decltype(share)>, blocks_of_rows(args.rows),
                                 kThreads, kWarps * to.width * sizeof(float), p, sums);
    });
  });
}

cudaError_t launch_round(const RoundArgs& args, const Launch& launch) {
  if (!launch.load && args.size == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return launch_kernel(launch, round_sums<T>, blocks_of(args.size, 256), 256, 0, args.sums,
                         static_cast<T*>(args.out), args.size);
  });
}

}  // namespace jaxgnn::maxk
