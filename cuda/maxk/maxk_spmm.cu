// Row-wise SpGEMM: a warp adds the CBSR rows of a row's edges into a row of sums in shared memory.
//
// In fixed point (see fixed_point.cuh) the groups of a warp share one row of integers, which they
// add to by the shared memory's native atomics; in floating point each group has its own row, which
// needs no atomics, and the rows are added at the end in a fixed order. Both kernels are launched;
// the range of the values decides on the device which one runs.
#include <algorithm>

#include "cuda/maxk/spmm_rows.cuh"

namespace jaxgnn::maxk {
namespace {

// Calls add(column, value, weight) for each entry of the edges that this lane's group takes. With
// kOrdered an edge's additions end before those of the group's next edge begin, and padding is left
// out: an infinite weight times a zero would be NaN.
template <typename S, bool kOrdered, typename T, typename I, typename F>
__device__ inline void walk(const SpmmParams<T, I>& p, const Work& work, F add) {
  const int lane = threadIdx.x % S::kLanes;
  const int group = threadIdx.x % 32 / S::kLanes;
  const int kept = kOrdered ? p.k - p.padding : p.k;
  for (int first = 0; first < kept; first += S::kSpan) {
    const int c = first + lane * S::kPer;
    for (int base = 0; base < work.count; base += kRowSteps * S::kGroups) {
      // Edges beyond the last repeat it, and are not added: loads without branches overlap.
      float value[kRowSteps][S::kPer];
      int column[kRowSteps][S::kPer];
      float weight[kRowSteps];
      int64_t from[kRowSteps];
#pragma unroll
      for (int u = 0; u < kRowSteps; ++u) {
        const int i = min(base + u * S::kGroups + group, work.count - 1);
        from[u] = load_column(p.rows, work.begin + i) * p.k;
        weight[u] = p.weights != nullptr ? p.weights[work.begin + i] : 1.0f;
      }
#pragma unroll
      for (int u = 0; u < kRowSteps; ++u) {
        load_values<T, S::kPer>(p.values + from[u], c, kept, value[u]);
        load_columns<I, S::kPer>(p.columns + from[u], c, kept, column[u]);
      }
#pragma unroll
      for (int u = 0; u < kRowSteps; ++u) {
        if (base + u * S::kGroups + group < work.count && c < kept) {
#pragma unroll
          for (int i = 0; i < S::kPer; ++i) add(column[u][i], value[u][i], weight[u]);
        }
        if constexpr (kOrdered) __syncwarp();
      }
    }
  }
}

template <typename S, typename T, typename I>
__device__ inline void add_in_float(const SpmmParams<T, I>& p, const Work& work,
                                    float* float_sums) {
  if (work.row < 0) return;
  const int lane = threadIdx.x % 32;
  float* sums = float_sums + threadIdx.x / 32 * S::kGroups * p.width;
  for (int f = lane; f < S::kGroups * p.width; f += 32) sums[f] = 0.0f;
  __syncwarp();
  float* own = sums + lane / S::kLanes * p.width;
  walk<S, true>(p, work,
                [&](int column, float value, float weight) { own[column] += weight * value; });
  __syncwarp();
  for (int f = lane; f < p.width; f += 32) {
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) sum += sums[g * p.width + f];
    finish(p, work, f, sum);
  }
}

// Of a row's CBSR rows: the sum of their sizes, a bound on the row's sums; and the smallest that is
// not 0, NaN if there is none.
struct Sizes {
  float sum;
  float smallest;
};

template <typename T, typename I>
__device__ inline Sizes find_sizes(const SpmmParams<T, I>& p, const Work& work) {
  float sum = 0.0f;
  unsigned smallest = kNoSize;
  for (int i = threadIdx.x % 32; i < work.count; i += 32) {
    const float size = p.sizes[load_column(p.rows, work.begin + i)];
    sum += size;
    if (size > 0.0f) smallest = min(smallest, __float_as_uint(size));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  return {sum, __uint_as_float(__reduce_min_sync(kFullWarp, smallest))};
}

template <typename T, typename I, typename S>
__global__ void __launch_bounds__(kRowThreads, 10) fixed_rows(const SpmmParams<T, I> p) {
  if (!has_scale(p.range)) return;
  extern __shared__ int fixed_sums[];
  const int64_t worker = int64_t(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const Work work = find_work(p.rows, worker);
  if (work.row < 0) return;
  const int lane = threadIdx.x % 32;
  float bound = common_bound(p.range, work.count);
  if (!rows_alike<T>(p.range)) {
    const Sizes sizes = find_sizes(p, work);
    bound = sizes.sum;
    if (sizes.smallest < least_size<T>(bound, work.count)) {
      if (lane == 0) p.flags[worker] = 1;
      return;
    }
  }
  int* sums = fixed_sums + threadIdx.x / 32 * p.width;
  for (int f = lane; f < p.width; f += 32) sums[f] = 0;
  __syncwarp();
  const float scale = fixed_scale(bound, work.count);
  walk<S, false>(p, work, [&](int column, float value, float) {
    atomicAdd(sums + column, __float2int_rn(value * scale));
  });
  __syncwarp();
  const float unit = 1.0f / scale;
  for (int f = lane; f < p.width; f += 32) finish(p, work, f, sums[f] * unit);
}

// All work, or with kLeft what fixed point has left: all without a scale, else what is flagged.
template <typename T, typename I, typename S, bool kLeft>
__global__ void __launch_bounds__(kRowThreads, 10) float_rows(const SpmmParams<T, I> p) {
  const bool flagged = kLeft && has_scale(p.range);
  if (flagged && p.weights == nullptr && rows_alike<T>(p.range)) return;
  extern __shared__ float float_sums[];
  // The grid may be smaller than the work: see launch_rows.
  for (int64_t worker = int64_t(blockIdx.x) * kRowWarps + threadIdx.x / 32;
       worker < p.rows.num_chunks + p.rows.num_rows; worker += int64_t(gridDim.x) * kRowWarps) {
    if (flagged && p.flags[worker] == 0) continue;
    add_in_float<S>(p, find_work(p.rows, worker), float_sums);
    __syncwarp();
  }
}

// Of rows of k values, in vectors of V: the range of their sizes, each row's own, the words; and
// zeros for the flags. kLanes lanes take a row.
template <typename T, int V, int kLanes, typename I>
__global__ void __launch_bounds__(256) find_range(const RangeArgs args) {
  const T* values = static_cast<const T*>(args.values);
  const int k = static_cast<int>(args.width);
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = thread; i < args.num_flags; i += threads) args.flags[i] = 0;
  uint32_t largest = 0, complement = 0;
  for (int64_t row = thread / kLanes; row < args.num_rows; row += threads / kLanes) {
    uint32_t bits = 0;
    for (int c = threadIdx.x % kLanes * V; c < k; c += kLanes * V) {
      const int64_t at = row * k + c;
      const Vector<T, V> vector = load_vector<T, V>(values + at);
#pragma unroll
      for (int i = 0; i < V; ++i) bits = max(bits, __float_as_uint(fabsf(unpack(vector, i))));
      if constexpr (V == 4) {
        if (args.words != nullptr) {
          int column[4];
          load_columns<I, 4>(static_cast<const I*>(args.columns) + row * k, c, k, column);
          const auto word = [&](int i) { return to_word<I>(unpack(vector, i), column[i]); };
          *reinterpret_cast<uint4*>(args.words + at) = {word(0), word(1), word(2), word(3)};
        }
      }
    }
    const unsigned mask = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      bits = max(bits, __shfl_xor_sync(mask, bits, offset));
    }
    if (args.sizes != nullptr && threadIdx.x % kLanes == 0) {
      args.sizes[row] = __uint_as_float(bits);
      if (args.size_codes != nullptr) args.size_codes[row] = size_code(bits);
    }
    largest = max(largest, bits);
    if (bits > 0) complement = max(complement, ~bits);
  }
  // One reduction a block to the two words that all blocks share.
  __shared__ uint32_t found[2];
  if (threadIdx.x < 2) found[threadIdx.x] = 0;
  __syncthreads();
  largest = __reduce_max_sync(kFullWarp, largest);
  complement = __reduce_max_sync(kFullWarp, complement);
  if (threadIdx.x % 32 == 0) {
    atomicMax(found + kRangeLargest, largest);
    atomicMax(found + kRangeSmallestComplement, complement);
  }
  __syncthreads();
  if (threadIdx.x < 2) atomicMax(args.range + threadIdx.x, found[threadIdx.x]);
}

// Calls f(kernel) with the one for rows of k values, or to load with each of them.
template <typename T, typename I, typename F>
cudaError_t with_find_range(const Launch& launch, int64_t k, F f) {
  if (launch.load) {
    for (const auto kernel : {find_range<T, 1, 8, I>, find_range<T, 4, 2, I>,
                              find_range<T, 4, 4, I>, find_range<T, 4, 8, I>}) {
      JAXGNN_TRY(f(kernel));
    }
    return cudaSuccess;
  }
  if (k % 4 != 0) return f(find_range<T, 1, 8, I>);
  if (k <= 8) return f(find_range<T, 4, 2, I>);
  if (k <= 16) return f(find_range<T, 4, 4, I>);
  return f(find_range<T, 4, 8, I>);
}

// Float sums need a row of shared memory for each group; widths that leave no room for several
// groups' rows take one.
constexpr int kMaxShared = 48 * 1024;

template <typename T, typename I, typename F>
cudaError_t with_float_share(const Launch& launch, int64_t k, int64_t width, F f) {
  if (launch.load) {
    JAXGNN_TRY(f(Share<1, 8>{}));
    JAXGNN_TRY(f(Share<1, 16>{}));
    return f(Share<1, 32>{});
  }
  const int64_t bytes = kRowWarps * width * static_cast<int64_t>(sizeof(float));
  if (k <= 8 && 4 * bytes <= kMaxShared) return f(Share<1, 8>{});
  if (k <= 16 && 2 * bytes <= kMaxShared) return f(Share<1, 16>{});
  return f(Share<1, 32>{});
}

template <typename T, typename I>
cudaError_t launch_rows(const MaxkSpmmArgs& args, const Launch& launch) {
  const Cbsr& from = args.cbsr;
  const SpmmParams<T, I> p{args.rows,
                           static_cast<const T*>(from.values),
                           static_cast<const I*>(from.indices),
                           static_cast<const float*>(args.weights),
                           static_cast<T*>(args.out),
                           static_cast<float*>(args.partials),
                           args.range,
                           args.sizes,
                           args.flags,
                           static_cast<int>(from.width),
                           static_cast<int>(from.k),
                           static_cast<int>(args.padding),
                           args.reduce == Reduce::kMean};
  const unsigned blocks = blocks_of(args.rows.num_chunks + args.rows.num_rows, kRowWarps);
  const size_t row_bytes = kRowWarps * from.width * sizeof(float);
  const bool fixed = args.range != nullptr && !args.fallback;
  if (launch.load || (fixed && args.weights != nullptr)) {
    JAXGNN_TRY((launch_weighted_rows<T, I>(p, launch)));
  }
  if (launch.load || (fixed && args.weights == nullptr)) {
    JAXGNN_TRY(with_share(launch, from.k, from.k % 4 == 0, [&](auto share) {
      return launch_large_kernel(launch, fixed_rows<T, I, decltype(share)>, blocks, kRowThreads,
                                 row_bytes, p);
    }));
  }
  JAXGNN_TRY((with_float_share<T, I>(launch, from.k, from.width, [&](auto share) {
    using S = decltype(share);
    const size_t bytes = S::kGroups * row_bytes;
    if (launch.load || args.range == nullptr) {
      JAXGNN_TRY(
          launch_large_kernel(launch, float_rows<T, I, S, false>, blocks, kRowThreads, bytes, p));
    }
    if (launch.load || args.range != nullptr) {
      // It will probably find nothing to do: a grid that ends at once.
      const unsigned few = std::min(blocks, kFallbackBlocks);
      JAXGNN_TRY(
          launch_large_kernel(launch, float_rows<T, I, S, true>, few, kRowThreads, bytes, p));
    }
    return cudaSuccess;
  })));
  return launch_join<T, Sum>(p.rows, p.partials, p.out, int64_t(p.width), p.mean, false, launch);
}

}  // namespace

cudaError_t launch_maxk_spmm(const MaxkSpmmArgs& args, const Launch& launch) {
  if (!launch.load && (args.rows.num_rows == 0 || args.cbsr.width == 0)) return cudaSuccess;
  const int64_t width = args.wide_columns ? kMaxWidth : args.cbsr.width;
  return with_types(launch, args.type, width, [&](auto tag, auto index) {
    return launch_rows<typename decltype(tag)::type, typename decltype(index)::type>(args, launch);
  });
}

cudaError_t launch_range(const RangeArgs& args, const Launch& launch, bool wide_columns) {
  const int64_t rows = std::max(args.num_rows, args.num_flags);
  if (!launch.load) {
    JAXGNN_TRY(cudaMemsetAsync(args.range, 0, 3 * sizeof(uint32_t), launch.stream));
    if (rows == 0) return cudaSuccess;
  }
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>((rows + 31) / 32, 1056));
  const int64_t width = wide_columns ? kMaxWidth : 1;
  return with_types(launch, args.type, width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    return with_find_range<T, I>(launch, args.width, [&](auto kernel) {
      return launch_kernel(launch, kernel, blocks, 256, 0, args);
    });
  });
}

}  // namespace jaxgnn::maxk
