// MaxK's forward product over windows: an entry's CBSR row is read once, and added to each
// receiver's row at its columns.
#include <type_traits>

#include "cuda/maxk/windows_sums.cuh"

namespace jaxgnn::maxk {
namespace {

// A column that is read once, so that it takes no place in the L1 cache from what is read again.
__device__ inline int64_t load_column_once(const Rows& rows, int64_t e) {
  if (rows.wide_columns) return __ldcs(static_cast<const long long*>(rows.columns) + e);
  int column;
  asm("ld.global.nc.L1::no_allocate.s32 %0, [%1];"
      : "=r"(column)
      : "l"(static_cast<const int32_t*>(rows.columns) + e));
  return column;
}

// Rows that a warp bounds, one after the other.
constexpr int kBoundedRows = 4;

// Where CBSR rows differ in size: a bound on the sums of each row, negative if a CBSR row is small
// for it; 16-bit types flag such rows.
template <typename T>
__global__ void __launch_bounds__(256) bound_rows(const Rows rows, const uint8_t* codes,
                                                  uint32_t* range, float* bounds, uint32_t* flags) {
  if (!has_scale(range) || rows_alike<T>(range)) return;
  const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t end = min((warp + 1) * kBoundedRows, rows.num_rows);
  for (int64_t row = warp * kBoundedRows; row < end; ++row) {
    const int64_t first = load_offset(rows, row), count = load_offset(rows, row + 1) - first;
    float sum = 0.0f;
    int smallest = 256;
#pragma unroll 4
    for (int64_t i = threadIdx.x % 32; i < count; i += 32) {
      const int code = __ldg(codes + load_column_once(rows, first + i));
      if (code > 0) {
        sum += most_of_code(code);
        smallest = min(smallest, code);
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
    smallest = __reduce_min_sync(kFullWarp, smallest);
    if (threadIdx.x % 32 != 0) continue;
    const float bound = round_up(sum, count);
    const float least = least_size<T>(bound, static_cast<int>(min(count, int64_t{1} << 30)));
    const bool has_small = smallest < 256 && least_of_code(smallest) < least;
    bounds[row] = has_small ? -bound : bound;
    if (has_small) *(kListsSmall<T> ? range + kRangeSmall : flags + row) = 1;
  }
}

// The scales of a part's sums: one for all rows, of 16-bit results where CBSR rows are alike; each
// row's own, by the bound that bound_rows has found if they differ, or by one within the part; or
// each row's own, and a list of the CBSR rows that are small for a row, which float32 adds apart.
// Each kernel returns where another one applies. Several kernels give the first ones their own
// register allocation: in a single kernel ptxas delayed the load of the next CBSR row until after
// later loads.
enum class Scaling { kCommon, kOfRows, kListed };

// Edges of a row that a part has at most (cpu/host/windows.cc). A row with more has its bound
// within each part.
constexpr int64_t kMostTerms = 1 << 12;

template <typename T, typename I, typename S, bool kWords, Scaling kScaling>
__global__ void __launch_bounds__(kWindowThreads, kWindowBlocks)
    forward(const WindowParams<T, I> p) {
  constexpr bool kLists = kScaling == Scaling::kListed;
  if (!has_scale(p.range)) return;
  const bool alike = rows_alike<T>(p.range);
  if (kScaling == Scaling::kCommon ? !alike : alike && (kOneScale<T> || kLists)) return;
  if (kLists && p.range[kRangeSmall] == 0) return;
  const Part part = load_part(p.windows, blockIdx.x);
  extern __shared__ int2 sums[];  // [rows, stride] int, two to an int2
  __shared__ Scales scales;
  __shared__ std::conditional_t<kLists, Bounds, int> listed_bounds;
  __shared__ std::conditional_t<kLists, Listed, int> listed;
  const int own = threadIdx.x;  // the row that a thread of the first 64 bounds
  int row = -1, terms = 0;
  float bound = 0.0f;  // negative if a CBSR row is small for it
  bool is_long = false;
  if (own < kWindowRows) {
    row = receiver_if_any(p, part, own);
    const int64_t degree = row < 0 ? 0 : degree_of(p, row);
    is_long = degree > kMostTerms;
    terms = static_cast<int>(min(degree, int64_t(part.end - part.begin)));
    bound = alike || terms == 0 ? common_bound(p.range, terms) : p.row_bounds[row];
    const int most = __reduce_max_sync(kFullWarp, terms);
    if (own % 32 == 0) scales.most[own / 32] = most;
  }
  if constexpr (kScaling != Scaling::kCommon) {
    if (!alike && part.place >= 0 && __syncthreads_or(is_long)) {
      // Where the sums will be: 512 bytes more would take as much as 32 KB of the L1 cache.
      bound = bound_of_part(p, part, terms, *reinterpret_cast<Bounds*>(sums));
      if (!kListsSmall<T> && bound < 0.0f) p.flags[row] = 1;
      __syncthreads();
    }
    if (kListsSmall<T> && !alike) {
      const bool has_small = __syncthreads_or(bound < 0.0f);
      if (has_small && !kLists && own == 0) p.range[kRangeSmall] = 1;
      if (has_small != kLists) return;
    }
  }
  if (own < kWindowRows) {
    scales.scale[own] = fixed_scale(fabsf(bound), terms);
    if constexpr (kLists) listed.clear(own, least_size<T>(fabsf(bound), terms), terms);
  }
  clear_sums(sums, p.rows(), p.stride);
  __syncthreads();

  using CbsrRow = std::conditional_t<kWords, Words<I>, Values<T, I, S::kPer>>;
  const unsigned base = shared_address(sums), row_bytes = p.stride * unsigned(sizeof(int));
  // Walks all entries once for each span of lanes in a CBSR row. Lanes beyond its end are idle.
  const auto over_entries = [&](auto load, auto visit) {
    for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
      const auto load_here = [&](int sender) { return load(sender, c); };
      const auto visit_here = [&](const auto& cbsr_row, int, uint2 mask, int e) {
        visit(cbsr_row, mask, e, c);
      };
      walk<decltype(load(0, c))>(p.windows, part, threadIdx.x / S::kLanes,
                                 kWindowThreads / S::kLanes, load_here, visit_here);
    }
  };
  const auto load = [&](int sender, int c) { return CbsrRow::load(p, sender, c); };
  if constexpr (kScaling == Scaling::kCommon) {
    const int n = max(scales.most[0], scales.most[1]);
    const float scale = fixed_scale(common_bound(p.range, n), n);
    if (threadIdx.x < kWindowRows) scales.scale[threadIdx.x] = scale;
    over_entries(load, [&](const CbsrRow& cbsr_row, uint2 mask, int, int) {
      const Terms<S::kPer> terms(cbsr_row, base);
      int term[S::kPer];
#pragma unroll
      for (int i = 0; i < S::kPer; ++i) term[i] = __float2int_rn(terms.value[i] * scale);
      over_receivers(mask, [&](int r) {
        const unsigned offset = r * row_bytes;
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) add_shared(terms.address[i] + offset, term[i]);
      });
    });
  } else if constexpr (!kLists) {
    over_entries(load, [&](const CbsrRow& cbsr_row, uint2 mask, int, int) {
      const Terms<S::kPer> terms(cbsr_row, base);
      over_receivers(mask, [&](int r) { terms.add(r * row_bytes, scales.scale[r]); });
    });
  } else {  // CBSR rows that are small for a row are listed
    struct Sized {
      CbsrRow cbsr_row;
      float size;
    };
    const auto load_sized = [&](int sender, int c) {
      return Sized{CbsrRow::load(p, sender, c), p.sizes[sender]};
    };
    SmallEntries& small = listed.small;
    over_entries(load_sized, [&](const Sized& sized, uint2 mask, int e, int c) {
      const Terms<S::kPer> terms(sized.cbsr_row, base);
      bool found = false;
      over_receivers(mask, [&](int r) {
        if (sized.size >= listed.least[r]) {
          terms.add(r * row_bytes, scales.scale[r]);
        } else if (sized.size > 0.0f) {
          small.in_row[r] = true;
          found = true;
        }
      });
      if (found && c == 0) {  // one of the CBSR row's lanes, once
        const int place = atomicAdd(&small.count, 1);
        if (place < kMostSmall) small.entry[place] = e;
      }
    });
  }
  __syncthreads();

  for (int r = threadIdx.x / 32; r < p.rows(); r += kWindowThreads / 32) {
    const int row = receiver_of(p, part, r);
    if (row < 0) continue;
    const float unit = 1.0f / scales.scale[r];
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const int4 v = load_sums(sums, p.stride, r, f);
      float result[4] = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
      if (part.place >= 0) {
        float* partial = p.partials + (int64_t(part.place) * p.rows() + r) * p.width;
        store_vector<float, 4, float>(partial + f, result);
      } else {
        finish(p, p.dense, row, f, result);
      }
    }
  }
  if constexpr (kLists) {
    if (listed.small.count > 0) {
      add_small<S, CbsrRow>(p, part, sums, listed, listed_bounds, scales);
    }
  }
}

// Calls f(kernel) with each that the type has; words are read four at a time.
template <typename T, typename I, typename S, bool kWords, typename F>
cudaError_t with_each(F f) {
  if constexpr (kOneScale<T>) JAXGNN_TRY(f(forward<T, I, S, kWords, Scaling::kCommon>));
  JAXGNN_TRY(f(forward<T, I, S, kWords, Scaling::kOfRows>));
  if constexpr (kListsSmall<T>) return f(forward<T, I, S, kWords, Scaling::kListed>);
  return cudaSuccess;
}

template <typename T, typename I, typename S, typename F>
cudaError_t with_forward(const Launch& launch, bool words, F f) {
  if constexpr (kReadsWords<T, I, S>) {
    if (launch.load || words) {
      JAXGNN_TRY((with_each<T, I, S, true>(f)));
      if (!launch.load) return cudaSuccess;
    }
  }
  return with_each<T, I, S, false>(f);
}

}  // namespace

cudaError_t launch_maxk_spmm_windows(const MaxkWindowsArgs& args, const Rows& rows,
                                     const Launch& launch) {
  const int parts = args.windows.num_parts;
  if (!launch.load && parts == 0) return cudaSuccess;
  return with_windows(launch, args, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const WindowParams<T, I> p = params<T, I>(args);
    JAXGNN_TRY(launch_kernel(launch, bound_rows<T>, blocks_of(rows.num_rows, 8 * kBoundedRows), 256,
                             0, rows, args.size_codes, args.range, args.row_bounds, args.flags));
    JAXGNN_TRY(with_window_share<I>(launch, args.k, [&](auto share) {
      return with_forward<T, I, decltype(share)>(launch, args.words != nullptr, [&](auto kernel) {
        return launch_windows(launch, kernel, args, sizeof(int));
      });
    }));
    if (!launch.load && args.partials == nullptr) return cudaSuccess;
    return launch_kernel(launch, join<T, I, T>, parts, kWindowThreads, 0, p, p.dense);
  });
}

}  // namespace jaxgnn::maxk
