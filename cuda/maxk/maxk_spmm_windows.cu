// MaxK's forward product over windows: an entry's CBSR row is read once, and added to each
// receiver's row at its columns.
#include <type_traits>

#include "cuda/maxk/windows_sums.cuh"

namespace jaxgnn::maxk {
namespace {

// For similar CBSR rows, or for dissimilar ones: each kernel returns at once if the other one
// applies. Two kernels give the first one its own register allocation: in a single kernel ptxas
// delayed the load of the next CBSR row until after later loads.
template <typename T, typename I, typename S, bool kWords, bool kAlike>
__global__ void __launch_bounds__(kWindowThreads, kWindowBlocks)
    forward(const WindowParams<T, I> p) {
  if (!has_scale(p.range) || rows_alike<T>(p.range) != kAlike) return;
  extern __shared__ int4 sums[];  // [rows, width] int, four to an int4
  __shared__ Scales scales;
  __shared__ std::conditional_t<kAlike, int, Differing> differing;
  const Part part = load_part(p.windows, blockIdx.x);
  if (const int r = threadIdx.x; r < kWindowRows) {
    const int row = receiver_if_any(p, part, r);
    const int64_t degree = row < 0 ? 0 : degree_of(p, row);
    const int n = static_cast<int>(min(degree, int64_t(part.end - part.begin)));
    scales.scale[r] = fixed_scale(kAlike ? common_bound(p.range, n) : 0.0f, n);
    const int most = __reduce_max_sync(kFullWarp, n);
    if (r % 32 == 0) scales.most[r / 32] = most;
    if constexpr (!kAlike) differing.clear(r, n);
  }
  clear_sums(sums, p.rows(), p.width);
  __syncthreads();
  if constexpr (!kAlike) bound_rows(p, part, differing, scales);

  using CbsrRow = std::conditional_t<kWords, Words<I>, Values<T, I, S::kPer>>;
  const unsigned base = shared_address(sums), row_bytes = p.width * unsigned(sizeof(int));
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
  if constexpr (kAlike && kOneScale<T>) {
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
  } else if constexpr (kAlike || !kListsSmall<T>) {
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
    SmallEntries& small = differing.small;
    over_entries(load_sized, [&](const Sized& sized, uint2 mask, int e, int c) {
      const Terms<S::kPer> terms(sized.cbsr_row, base);
      bool found = false;
      over_receivers(mask, [&](int r) {
        if (sized.size >= differing.least[r]) {
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
      const int4 v = sums[(r * p.width + f) / 4];
      float result[4] = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
      if (part.place >= 0) {
        float* partial = p.partials + (int64_t(part.place) * p.rows() + r) * p.width;
        store_vector<float, 4, float>(partial + f, result);
      } else {
        finish(p, p.dense, row, f, result);
      }
    }
  }
  if constexpr (kListsSmall<T> && !kAlike) {
    if (differing.small.count > 0) add_small<S, CbsrRow>(p, part, sums, differing, scales);
  }
}

// Calls f(kernel) with each of the two; words are read four at a time.
template <typename T, typename I, typename S, typename F>
cudaError_t with_forward(const Launch& launch, bool words, F f) {
  if constexpr (kReadsWords<T, I, S>) {
    if (launch.load || words) {
      JAXGNN_TRY(f(forward<T, I, S, true, true>));
      JAXGNN_TRY(f(forward<T, I, S, true, false>));
      if (!launch.load) return cudaSuccess;
    }
  }
  JAXGNN_TRY(f(forward<T, I, S, false, true>));
  return f(forward<T, I, S, false, false>);
}

}  // namespace

cudaError_t launch_maxk_spmm_windows(const MaxkWindowsArgs& args, const Launch& launch) {
  const int parts = args.windows.num_parts;
  if (!launch.load && parts == 0) return cudaSuccess;
  return with_windows(launch, args, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const WindowParams<T, I> p = params<T, I>(args);
    const size_t bytes = window_bytes(args, sizeof(int));
    JAXGNN_TRY(with_window_share<I>(launch, args.k, [&](auto share) {
      return with_forward<T, I, decltype(share)>(launch, args.words != nullptr, [&](auto kernel) {
        return launch_large_kernel(launch, kernel, parts, kWindowThreads, bytes, p);
      });
    }));
    if (!launch.load && args.partials == nullptr) return cudaSuccess;
    return launch_kernel(launch, join<T, I, T>, parts, kWindowThreads, 0, p, p.dense);
  });
}

}  // namespace jaxgnn::maxk
