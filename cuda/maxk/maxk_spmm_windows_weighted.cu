// MaxK's forward product with edge weights over windows, in fixed point.
//
// See fixed_point.cuh for bounds and small terms. Small terms are added with the others; once the
// sums are floats, what rounding took from each is added. Rows that no scale fits are flagged for
// the kernel that adds in floating point.
#include <type_traits>

#include "cuda/maxk/windows_sums.cuh"
#include "cuda/maxk/windows_weighted.cuh"

namespace jaxgnn::maxk {
namespace {

constexpr int kWarps = kWeightedThreads / 32;

// Of a part's rows, in shared memory.
struct WeightedRows {
  float weights[kWindowRows];  // the sum of their magnitudes
  float scale[kWindowRows];    // 0: none
  // The bounds where CBSR rows differ in size: in units, and what makes units of sizes.
  int bound[kWindowRows];
  float inverse_unit[kWindowRows];
};

// The small terms of a row that a warp has found, 32 to be added and those of one more step.
struct SmallTerms {
  int edge[64];
};

struct RowScale {
  float scale;  // 0: none
  float least;  // size of a term that is not small
};

// Of a row of n terms whose sums are at most `bound`. Beyond 4,096 terms more of them are small, so
// that the quantum stays below 2^-13 of those that are not.
template <typename T>
__device__ inline RowScale scale_of(float bound, int64_t n) {
  if (!(bound >= kLeastBound && bound <= kMostBound)) return {0.0f, 0.0f};  // NaN too
  const float terms = static_cast<float>(min(n, int64_t{1} << 12));
  return {fixed_scale(bound, static_cast<int>(n)), bound * kSmallShare<T> / terms};
}

// The sum of the magnitudes of a row's weights, rounded up, by a warp.
template <typename T>
__device__ inline float sum_weights(const WindowParams<T>& p, int row) {
  const int64_t begin = offset_of(p, row);
  const int degree = static_cast<int>(degree_of(p, row));
  float sum = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < degree; i += 32) sum += fabsf(__ldg(p.weights + begin + i));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  return round_up(sum, degree);
}

// Adds to a row of floats what rounding took from `count` small terms, at most 32. By a warp.
template <bool kWords, typename T>
__device__ inline void add_lost(const WindowParams<T>& p, const int* edges, int count, float scale,
                                float* sums) {
  constexpr int kSteps = 4;  // CBSR rows in flight
  const int lane = threadIdx.x % 32;
  const float unit = 1.0f / scale;
  int64_t sender = 0;
  float weight = 0.0f;
  if (lane < count) {
    sender = load_column(p.rows, edges[lane]);
    weight = __ldg(p.weights + edges[lane]);
  }
  for (int first = 0; first < count; first += kSteps) {
    int64_t from[kSteps];
    float own[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const int i = min(first + u, count - 1);
      from[u] = __shfl_sync(kFullWarp, sender, i) * p.k;
      own[u] = __shfl_sync(kFullWarp, weight, i);
    }
    for (int base = 0; base < p.k; base += 32) {
      const int c = min(base + lane, p.k - 1);
      float value[kSteps];
      int column[kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        value[u] = widen(p.values[from[u] + c]);
        column[u] = __ldg(p.columns + from[u] + c);
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (first + u < count && base + lane < p.k) {
          const float bits = __uint_as_float(__float_as_uint(value[u]) & ~0xffu);
          const int added = __float2int_rn((kWords ? bits : value[u]) * (scale * own[u]));
          sums[column[u]] += value[u] * own[u] - static_cast<float>(added) * unit;
        }
        __syncwarp();  // another CBSR row may have the same columns
      }
    }
  }
}

// Adds to a row of floats what rounding took from its small terms, in the order of its edges. By a
// warp. The size of a term is compared as if its CBSR row was the smallest, where all are alike.
template <bool kWords, bool kAlike, typename T>
__device__ inline void add_lost_of_row(const WindowParams<T>& p, int row, const RowScale& scale,
                                       SmallTerms& small, float* sums) {
  constexpr int kSteps = 4;
  const int lane = threadIdx.x % 32;
  const int begin = static_cast<int>(offset_of(p, row));  // there are fewer than 2^31 edges
  const int degree = static_cast<int>(degree_of(p, row));
  const float smallest = __uint_as_float(~p.range[kRangeSmallestComplement]);
  int count = 0;
  for (int base = 0; base < degree; base += 32 * kSteps) {
    float size[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const int i = base + u * 32 + lane;
      size[u] = i < degree ? fabsf(__ldg(p.weights + begin + i)) : 0.0f;
      if constexpr (kAlike) {
        size[u] *= smallest;
      } else if (i < degree) {
        size[u] *= p.sizes[load_column(p.rows, begin + i)];
      }
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const bool is_small = size[u] > 0.0f && size[u] < scale.least;
      const unsigned found = __ballot_sync(kFullWarp, is_small);
      if (found == 0) continue;
      const int place = count + __popc(found & ((1u << lane) - 1));
      if (is_small) small.edge[place] = begin + base + u * 32 + lane;
      count += __popc(found);
      __syncwarp();
      if (count < 32) continue;
      add_lost<kWords>(p, small.edge, 32, scale.scale, sums);
      const int next = small.edge[32 + lane];
      __syncwarp();
      small.edge[lane] = next;
      count -= 32;
      __syncwarp();
    }
  }
  if (count > 0) add_lost<kWords>(p, small.edge, count, scale.scale, sums);
}

// Adds the sizes of a part's terms to the bounds of its rows.
template <typename T>
__device__ inline void add_sizes(const WindowParams<T>& p, const Slots& slots, const Part& part,
                                 WeightedRows& rows) {
  const EdgeWeights from = edge_weights(p);
  for (int e = part.begin + static_cast<int>(threadIdx.x); e < part.end; e += kWeightedThreads) {
    const float size = p.sizes[p.windows.senders[e]];
    const uint2 mask = p.windows.masks[e];
    const float first = from.weight(from.first_edge(slots, mask, e));
    over_edges(slots, from, mask, e, first, [&](int r, float weight) {
      atomicAdd(rows.bound + r, __float2int_ru(fabsf(weight) * size * rows.inverse_unit[r]));
    });
  }
}

// The bound of the sums of a row that lies in several parts, or whose CBSR rows are alike.
template <typename T>
__device__ inline float bound_of(const WindowParams<T>& p, float weights) {
  return weights * __uint_as_float(p.range[kRangeLargest]);
}

// Sets the rows' scales, and flags those that have none. Begun and left by all threads together.
template <bool kAlike, typename T>
__device__ inline void scale_rows(const WindowParams<T>& p, const Slots& slots, const Part& part,
                                  WeightedRows& rows) {
  const bool whole = part.place < 0, own = threadIdx.x < kWindowRows;
  for (int r = threadIdx.x / 32; whole && r < kWindowRows; r += kWarps) {
    const int row = receiver_of(p, part, r);
    const float sum = row < 0 ? 0.0f : sum_weights(p, row);
    if (threadIdx.x % 32 == 0) rows.weights[r] = sum;
  }
  __syncthreads();
  const int r = threadIdx.x;
  const int row = own ? receiver_of(p, part, r) : -1;
  if (own && !whole) rows.weights[r] = row < 0 ? 0.0f : p.weight_sums[row];
  const float most = own ? bound_of(p, rows.weights[r]) : 0.0f;
  if (!kAlike && whole) {
    // The sum of the sizes in units is at most 2^30 and one for each.
    if (own) {
      const bool fits = most >= kLeastBound && most <= kMostBound;
      rows.bound[r] = 0;
      rows.inverse_unit[r] = fits ? 0x1p30f / most : 0.0f;
    }
    __syncthreads();
    add_sizes(p, slots, part, rows);
    __syncthreads();
  }
  if (own) {
    float bound = most;
    if (!kAlike && whole) {
      const float inverse = rows.inverse_unit[r];
      bound = inverse > 0.0f ? static_cast<float>(rows.bound[r]) / inverse : 0.0f;
    }
    rows.scale[r] = row < 0 ? 0.0f : scale_of<T>(bound, degree_of(p, row)).scale;
    if (!kAlike) rows.inverse_unit[r] = bound;                               // for what follows
    if (rows.scale[r] == 0.0f && rows.weights[r] != 0.0f) p.flags[row] = 1;  // NaN too
  }
  __syncthreads();
}

// For alike CBSR rows, or for others: each kernel returns at once if the other one applies.
template <typename T, typename S, bool kWords, bool kAlike>
__global__ void __launch_bounds__(kWeightedThreads, kWindowBlocks)
    forward_weighted(const WindowParams<T> p) {
  if (!has_scale(p.range) || rows_alike<T>(p.range) != kAlike) return;
  extern __shared__ int4 sums[];  // [64, width] int, four to an int4; then floats
  __shared__ WeightedRows rows;
  __shared__ Slots slots;
  __shared__ SmallTerms small[kWarps];
  const Part part = load_part(p.windows, blockIdx.x);
  slots.load(p.windows, part);
  clear_sums<kWeightedThreads>(sums, p.width);
  scale_rows<kAlike>(p, slots, part, rows);

  using CbsrRow = std::conditional_t<kWords, Words, Values<T, S::kPer>>;
  const EdgeWeights from = edge_weights(p);
  const unsigned base = shared_address(sums), row_bytes = p.width * unsigned(sizeof(int));
  // Walks all entries once for each span of lanes in a CBSR row. Lanes beyond its end are idle.
  for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
    const auto load = [&](int sender) { return CbsrRow::load(p, sender, c); };
    const auto visit = [&](const CbsrRow& cbsr_row, int, uint2 mask, int e, float first) {
      const Terms<S::kPer> terms(cbsr_row, base);
      over_edges(slots, from, mask, e, first,
                 [&](int r, float weight) { terms.add(r * row_bytes, rows.scale[r] * weight); });
    };
    walk_weighted<CbsrRow, kWeightedThreads / S::kLanes>(p.windows, slots, from, part,
                                                         threadIdx.x / S::kLanes, load, visit);
  }
  __syncthreads();

  for (int r = threadIdx.x / 32; r < kWindowRows; r += kWarps) {
    const int row = receiver_of(p, part, r);
    if (row < 0) continue;
    const float scale = rows.scale[r], unit = scale > 0.0f ? 1.0f / scale : 0.0f;
    const bool whole = part.place < 0;
    float* own = reinterpret_cast<float*>(sums) + r * p.width;
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const int4 v = sums[(r * p.width + f) / 4];
      float result[4] = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
      if (whole) {
        *reinterpret_cast<float4*>(own + f) = {result[0], result[1], result[2], result[3]};
      } else {
        float* partial = p.partials + (int64_t(part.place) * kWindowRows + r) * p.width;
        store_vector<float, 4, float>(partial + f, result);
      }
    }
    if (!whole) continue;
    __syncwarp();
    if (scale > 0.0f) {
      const float bound = kAlike ? bound_of(p, rows.weights[r]) : rows.inverse_unit[r];
      const RowScale row_scale = scale_of<T>(bound, degree_of(p, row));
      add_lost_of_row<kWords, kAlike>(p, row, row_scale, small[threadIdx.x / 32], own);
      __syncwarp();
    }
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      float result[4] = {own[f], own[f + 1], own[f + 2], own[f + 3]};
      finish(p, row, f, result);
    }
  }
}

// Whether this block's part is the first of several of a window.
__device__ inline bool is_first_of_several(const Windows& windows, const Part& part) {
  const int i = blockIdx.x;
  return part.place >= 0 && (i == 0 || load_part(windows, i - 1).window != part.window);
}

// The sums of the weights of windows in several parts.
template <typename T>
__global__ void __launch_bounds__(kWeightedThreads) sum_split(const WindowParams<T> p) {
  const Part part = load_part(p.windows, blockIdx.x);
  if (!is_first_of_several(p.windows, part)) return;
  for (int r = threadIdx.x / 32; r < kWindowRows; r += kWarps) {
    const int row = receiver_of(p, part, r);
    if (row < 0) continue;
    const float sum = sum_weights(p, row);
    if (threadIdx.x % 32 == 0) p.weight_sums[row] = sum;
  }
}

// Adds the parts of each split window in order, and what rounding took from small terms.
template <typename T, bool kWords>
__global__ void __launch_bounds__(kWeightedThreads) join_weighted(const WindowParams<T> p) {
  if (!has_scale(p.range)) return;
  __shared__ float sums[kWarps][kWindowWidth];
  __shared__ SmallTerms small[kWarps];
  const Part part = load_part(p.windows, blockIdx.x);
  if (!is_first_of_several(p.windows, part)) return;
  int count = 1;
  while (static_cast<int>(blockIdx.x) + count < p.windows.num_parts &&
         load_part(p.windows, blockIdx.x + count).window == part.window) {
    ++count;
  }
  const int64_t size = int64_t(kWindowRows) * p.width;
  float* own = sums[threadIdx.x / 32];
  for (int r = threadIdx.x / 32; r < kWindowRows; r += kWarps) {
    const int row = receiver_of(p, part, r);
    if (row < 0) continue;
    for (int f = threadIdx.x % 32; f < p.width; f += 32) {
      const float* partial = p.partials + part.place * size + int64_t(r) * p.width + f;
      float sum = 0.0f;
      for (int i = 0; i < count; ++i) sum += partial[i * size];
      own[f] = sum;
    }
    __syncwarp();
    const RowScale scale = scale_of<T>(bound_of(p, p.weight_sums[row]), degree_of(p, row));
    if (scale.scale > 0.0f) {
      SmallTerms& found = small[threadIdx.x / 32];
      if (rows_alike<T>(p.range)) {
        add_lost_of_row<kWords, true>(p, row, scale, found, own);
      } else {
        add_lost_of_row<kWords, false>(p, row, scale, found, own);
      }
      __syncwarp();
    }
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      float result[4] = {own[f], own[f + 1], own[f + 2], own[f + 3]};
      finish(p, row, f, result);
    }
    __syncwarp();
  }
}

// Calls f(kernel) with each of the two; words are read four at a time.
template <typename T, typename S, typename F>
cudaError_t with_forward(const Launch& launch, bool words, F f) {
  if constexpr (S::kPer == 4) {
    if (launch.load || words) {
      JAXGNN_TRY(f(forward_weighted<T, S, true, true>));
      JAXGNN_TRY(f(forward_weighted<T, S, true, false>));
      if (!launch.load) return cudaSuccess;
    }
  }
  JAXGNN_TRY(f(forward_weighted<T, S, false, true>));
  return f(forward_weighted<T, S, false, false>);
}

}  // namespace

cudaError_t launch_maxk_spmm_windows_weighted(const MaxkWindowsArgs& args, const Launch& launch) {
  const int parts = args.windows.num_parts;
  if (!launch.load && parts == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const WindowParams<T> p = params<T>(args);
    const bool split = args.partials != nullptr, words = args.words != nullptr;
    if (launch.load || split) {
      JAXGNN_TRY(launch_kernel(launch, sum_split<T>, parts, kWeightedThreads, 0, p));
    }
    const size_t bytes = kWindowRows * args.width * sizeof(int);
    JAXGNN_TRY(with_share(launch, args.k, args.k % 4 == 0, [&](auto share) {
      return with_forward<T, decltype(share)>(launch, words, [&](auto kernel) {
        return launch_large_kernel(launch, kernel, parts, kWeightedThreads, bytes, p);
      });
    }));
    if (launch.load || (split && words)) {
      JAXGNN_TRY(launch_kernel(launch, join_weighted<T, true>, parts, kWeightedThreads, 0, p));
    }
    if (launch.load || (split && !words)) {
      JAXGNN_TRY(launch_kernel(launch, join_weighted<T, false>, parts, kWeightedThreads, 0, p));
    }
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::maxk
