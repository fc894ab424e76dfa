// MaxK's forward product with edge weights over windows, in fixed point.
//
// See fixed_point.cuh for bounds and small terms; rows that no scale fits are flagged for the
// kernel that adds in floating point.
//
// Where the CBSR rows are alike, sizes are those of the weights alone, which saves reading the
// others: a bound for the largest CBSR row serves all.
#include <cmath>
#include <type_traits>

#include "cuda/maxk/windows_sums.cuh"
#include "cuda/maxk/windows_weighted.cuh"

namespace jaxgnn::maxk {
namespace {

// Sizes below this are not told apart any further.
constexpr float kLeastBelow = 0x1p-80f;

// What a pass over a part needs of its rows, in shared memory.
struct Pass {
  float2 row[kWindowRows];   // the scale, 0 for none; and the least size that is added
  float below[kWindowRows];  // the sizes that are left for this pass; 0: none
  float inverse_unit[kWindowRows];
  int sum[kWindowRows];  // of sizes, in units, rounded up
  unsigned smallest[kWindowRows];
  int terms[kWindowRows];  // at most
  SmallEntries small;
};

// From sizes to bounds.
struct Factors {
  float bound;  // of a sum of sizes
  float least;  // times the average: the least size that is not small
};

template <typename T, bool kAlike>
__device__ inline Factors factors_of(const uint32_t* range) {
  if (!kAlike) return {1.0f, kSmallShare<T>};
  const float largest = __uint_as_float(range[kRangeLargest]);
  const float smallest = __uint_as_float(~range[kRangeSmallestComplement]);
  return {largest, kSmallShare<T> * (largest / smallest)};
}

// Sets a row's scale and least size from the sum of the sizes of what is to be added.
template <typename T, typename I>
__device__ inline void set_row(const WindowParams<T, I>& p, const Part& part, Pass& pass, int r,
                               float total, const Factors& factors) {
  const float bound = total * factors.bound;
  const bool fits =
      bound >= kLeastBound && bound <= kMostBound && total >= kLeastBound && total <= kMostBound;
  const int n = pass.terms[r];
  if (fits) {
    pass.row[r] = {fixed_scale(bound, n), total * factors.least / static_cast<float>(n)};
  } else {
    pass.row[r] = {0.0f, -INFINITY};
    if (total != 0.0f) p.flags[receiver_of(p, part, r)] = 1;  // NaN too
  }
}

// Says which sizes of a row are left, n at most: those below a bound. False if they cannot be
// told apart.
__device__ inline bool begin_sizes(Pass& pass, int r, float below, float most) {
  const bool fits = most >= kLeastBelow;
  pass.below[r] = fits ? below : 0.0f;
  pass.inverse_unit[r] = fits ? 0x1p30f / most : 0.0f;  // the sum is 2^30 and one for each at most
  pass.sum[r] = 0;
  pass.smallest[r] = kNoSize;
  return fits;
}

template <bool kAlike, typename T, typename I>
__device__ inline float size_of(const WindowParams<T, I>& p, int sender) {
  return kAlike ? 1.0f : p.sizes[sender];
}

// Adds the sizes that are left, of `count` entries.
template <bool kAlike, bool kSmallest, typename T, typename I, typename EntryAt>
__device__ inline void add_sizes(const WindowParams<T, I>& p, const Slots& slots, int count,
                                 EntryAt entry_of, Pass& pass) {
  for (int i = threadIdx.x; i < count; i += kWindowThreads) {
    const int e = entry_of(i);
    const float size = size_of<kAlike>(p, p.windows.senders[e]);
    if (size == 0.0f) continue;
    const uint2 mask = p.windows.masks[e];
    const float first = slots.weight(mask, e, p.weights);
    over_edges(slots, p.weights, mask, e, first, [&](int r, float weight) {
      const float term = fabsf(weight) * size;
      if (!(term > 0.0f && term < pass.below[r])) return;
      atomicAdd(pass.sum + r, __float2int_ru(term * pass.inverse_unit[r]));
      if (kSmallest) atomicMin(pass.smallest + r, __float_as_uint(term));
    });
  }
}

__device__ inline float inverse_or_zero(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// Adds what the passes before have left to the results, which this thread has stored.
template <typename S, typename CbsrRow, bool kAlike, typename T, typename I>
__device__ inline void add_left(const WindowParams<T, I>& p, const Part& part, const Slots& slots,
                                const Factors& factors, int2* sums, Pass& pass) {
  const SmallEntries& small = pass.small;
  const bool listed = small.count <= kMostSmall;
  const int count = listed ? small.count : part.end - part.begin;
  const auto entry_of = [&](int i) { return listed ? small.entry[i] : part.begin + i; };
  const unsigned base = shared_address(sums), row_bytes = p.stride * unsigned(sizeof(int));
  const int own = threadIdx.x;  // a row, of the first 64 threads
  bool more = own < kWindowRows && small.in_row[own];
  for (int i = 0; i < kMorePasses; ++i) {
    if (own < kWindowRows) {
      const float below = more ? pass.row[own].y : 0.0f;
      const bool fits = begin_sizes(pass, own, below, below * static_cast<float>(pass.terms[own]));
      if (more && !fits) p.flags[receiver_of(p, part, own)] = 1;
    }
    clear_sums(sums, p.rows(), p.stride);
    __syncthreads();
    add_sizes<kAlike, true>(p, slots, count, entry_of, pass);
    __syncthreads();
    more = false;
    if (own < kWindowRows && pass.sum[own] > 0) {
      set_row(p, part, pass, own, static_cast<float>(pass.sum[own]) / pass.inverse_unit[own],
              factors);
      more = __uint_as_float(pass.smallest[own]) < pass.row[own].y;
      if (more && i == kMorePasses - 1) p.flags[receiver_of(p, part, own)] = 1;
    }
    const bool any = __syncthreads_or(more);
    for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
      for (int j = threadIdx.x / S::kLanes; j < count; j += kWindowThreads / S::kLanes) {
        const int e = entry_of(j);
        const int sender = p.windows.senders[e];
        const Terms<S::kPer> terms(CbsrRow::load(p, sender, c), base);
        const float size = size_of<kAlike>(p, sender);
        const uint2 mask = p.windows.masks[e];
        const float first = slots.weight(mask, e, p.weights);
        over_edges(slots, p.weights, mask, e, first, [&](int r, float weight) {
          const float term = fabsf(weight) * size;
          const float2 row = pass.row[r];
          if (term > 0.0f && term < pass.below[r] && term >= row.y) {
            terms.add(r * row_bytes, row.x * weight);
          }
        });
      }
    }
    __syncthreads();
    for (int r = threadIdx.x / 32; r < p.rows(); r += kWindowThreads / 32) {
      if (pass.sum[r] == 0) continue;
      const int row = receiver_of(p, part, r);
      const bool whole = part.place < 0;
      float factor = inverse_or_zero(pass.row[r].x);
      if (p.mean && whole) factor /= static_cast<float>(degree_of(p, row));
      float* target = whole ? p.wide + int64_t(row) * p.width
                            : p.partials + (int64_t(part.place) * p.rows() + r) * p.width;
      for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
        const int4 sum = load_sums(sums, p.stride, r, f);
        float4 result = *reinterpret_cast<float4*>(target + f);
        result.x += sum.x * factor, result.y += sum.y * factor;
        result.z += sum.z * factor, result.w += sum.w * factor;
        *reinterpret_cast<float4*>(target + f) = result;
      }
    }
    if (!any) return;
    __syncthreads();
  }
}

// For alike CBSR rows, or for others: each kernel returns at once if the other one applies.
template <typename T, typename I, typename S, bool kWords, bool kAlike>
__global__ void __launch_bounds__(kWindowThreads, kWindowBlocks)
    forward_weighted(const WindowParams<T, I> p) {
  if (!has_scale(p.range) || rows_alike<T>(p.range) != kAlike) return;
  extern __shared__ int2 sums[];  // [rows, stride] int, two to an int2
  __shared__ Pass pass;
  __shared__ Slots slots;
  const Part part = load_part(p.windows, blockIdx.x);
  const Factors factors = factors_of<T, kAlike>(p.range);
  slots.load(p.windows, part, p.rows());
  if (const int r = threadIdx.x; r < kWindowRows) {
    const int row = receiver_if_any(p, part, r);
    const int64_t degree = row < 0 ? 0 : degree_of(p, row);
    pass.terms[r] = static_cast<int>(min(degree, int64_t(part.end - part.begin)));
    pass.small.in_row[r] = false;
    if (r == 0) pass.small.count = 0;
    const float weights = pass.terms[r] > 0 ? p.weight_sums[row] : 0.0f;
    if constexpr (kAlike) {
      set_row(p, part, pass, r, weights, factors);
    } else {
      const float most = weights * __uint_as_float(p.range[kRangeLargest]);
      const bool finite = most <= kMostBound;
      const bool fits = begin_sizes(pass, r, INFINITY, finite ? most : 0.0f);
      if (!fits && weights != 0.0f) p.flags[row] = 1;
    }
  }
  clear_sums(sums, p.rows(), p.stride);
  __syncthreads();
  if constexpr (!kAlike) {
    add_sizes<false, false>(
        p, slots, part.end - part.begin, [&](int i) { return part.begin + i; }, pass);
    __syncthreads();
    if (const int r = threadIdx.x; r < kWindowRows) {
      const int sum = pass.sum[r];
      const float total = sum > 0 ? static_cast<float>(sum) / pass.inverse_unit[r] : 0.0f;
      set_row(p, part, pass, r, total, factors);
    }
    __syncthreads();
  }

  using CbsrRow = std::conditional_t<kWords, Words<I>, Values<T, I, S::kPer>>;
  struct Sized {
    CbsrRow cbsr_row;
    float size;
  };
  using Loaded = std::conditional_t<kAlike, CbsrRow, Sized>;
  const unsigned base = shared_address(sums), row_bytes = p.stride * unsigned(sizeof(int));
  // Walks all entries once for each span of lanes in a CBSR row. Lanes beyond its end are idle.
  for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
    const auto load = [&](int sender) -> Loaded {
      if constexpr (kAlike) {
        return CbsrRow::load(p, sender, c);
      } else {
        return {CbsrRow::load(p, sender, c), p.sizes[sender]};
      }
    };
    const auto visit = [&](const Loaded& loaded, int, uint2 mask, int e, float first) {
      float size = 1.0f;
      const CbsrRow* cbsr_row;
      if constexpr (kAlike) {
        cbsr_row = &loaded;
      } else {
        cbsr_row = &loaded.cbsr_row;
        size = loaded.size;
      }
      const Terms<S::kPer> terms(*cbsr_row, base);
      bool found = false;
      over_edges(slots, p.weights, mask, e, first, [&](int r, float weight) {
        const float term = kAlike ? fabsf(weight) : fabsf(weight) * size;
        const float2 row = pass.row[r];
        const bool large = term >= row.y;
        terms.add(r * row_bytes, large ? row.x * weight : 0.0f);
        if (!large && term > 0.0f) {
          pass.small.in_row[r] = true;
          found = true;
        }
      });
      if (found && c == 0) {  // one of the CBSR row's lanes, once
        const int place = atomicAdd(&pass.small.count, 1);
        if (place < kMostSmall) pass.small.entry[place] = e;
      }
    };
    walk_weighted<Loaded, kWindowThreads / S::kLanes>(p.windows, slots, p.weights, part,
                                                      threadIdx.x / S::kLanes, load, visit);
  }
  __syncthreads();

  for (int r = threadIdx.x / 32; r < p.rows(); r += kWindowThreads / 32) {
    const int row = receiver_of(p, part, r);
    if (row < 0) continue;
    const float unit = inverse_or_zero(pass.row[r].x);
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const int4 v = load_sums(sums, p.stride, r, f);
      float result[4] = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
      if (part.place >= 0) {
        float* partial = p.partials + (int64_t(part.place) * p.rows() + r) * p.width;
        store_vector<float, 4, float>(partial + f, result);
      } else {
        finish(p, p.wide, row, f, result);
      }
    }
  }
  __syncthreads();
  if (pass.small.count > 0) {
    add_left<S, CbsrRow, kAlike>(p, part, slots, factors, sums, pass);
  }
}

// The sum of the magnitudes of each row's weights, rounded up; a warp a row.
__global__ void __launch_bounds__(256)
    sum_weights(const void* row_offsets, bool wide_offsets, const float* weights, float* sums,
                int64_t num_rows) {
  const int64_t row = int64_t(blockIdx.x) * 8 + threadIdx.x / 32;
  if (row >= num_rows) return;
  const auto offset = [&](int64_t i) {
    return wide_offsets ? static_cast<const int64_t*>(row_offsets)[i]
                        : int64_t{static_cast<const int32_t*>(row_offsets)[i]};
  };
  const int64_t begin = offset(row), end = offset(row + 1);
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t e = begin + threadIdx.x % 32; e < end; e += 32) sum += fabsf(__ldg(weights + e));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  if (threadIdx.x % 32 == 0) sums[row] = round_up(sum, end - begin);
}

// Calls f(kernel) with each of the two; words are read four at a time.
template <typename T, typename I, typename S, typename F>
cudaError_t with_forward(const Launch& launch, bool words, F f) {
  if constexpr (kReadsWords<T, I, S>) {
    if (launch.load || words) {
      JAXGNN_TRY(f(forward_weighted<T, I, S, true, true>));
      JAXGNN_TRY(f(forward_weighted<T, I, S, true, false>));
      if (!launch.load) return cudaSuccess;
    }
  }
  JAXGNN_TRY(f(forward_weighted<T, I, S, false, true>));
  return f(forward_weighted<T, I, S, false, false>);
}

}  // namespace

cudaError_t launch_maxk_spmm_windows_weighted(const MaxkWindowsArgs& args, int64_t num_receivers,
                                              const Launch& launch) {
  const int parts = args.windows.num_parts;
  if (!launch.load && parts == 0) return cudaSuccess;
  const unsigned blocks = launch.load ? 1 : static_cast<unsigned>((num_receivers + 7) / 8);
  JAXGNN_TRY(launch_kernel(launch, sum_weights, blocks, 256, 0, args.row_offsets, args.wide_offsets,
                           args.edge_weights, args.weight_sums, num_receivers));
  return with_windows(launch, args, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const WindowParams<T, I> p = params<T, I>(args);
    JAXGNN_TRY(with_window_share<I>(launch, args.k, [&](auto share) {
      return with_forward<T, I, decltype(share)>(launch, args.words != nullptr, [&](auto kernel) {
        return launch_windows(launch, kernel, args, sizeof(int));
      });
    }));
    if (!launch.load && args.partials == nullptr) return cudaSuccess;
    return launch_kernel(launch, join<T, I, float>, parts, kWindowThreads, 0, p, p.wide);
  });
}

}  // namespace jaxgnn::maxk
