// The gradient of MaxK's product over windows: the rows' values at a CBSR row's columns are added
// in registers, and reduced into the sender's CBSR row once an entry.
#include <type_traits>

#include "cuda/maxk/reduce_to.cuh"
#include "cuda/maxk/windows.cuh"
#include "cuda/maxk/windows_weighted.cuh"

namespace jaxgnn::maxk {
namespace {

// To shared memory, aligned to 8 bytes.
template <typename T>
__device__ inline void store_halves(T* to, const Vector<T, 4>& vector) {
  if constexpr (sizeof(vector) == 8) {
    *reinterpret_cast<decltype(vector.word)*>(to) = vector.word;
  } else {
    *reinterpret_cast<uint2*>(to) = {vector.word.x, vector.word.y};
    *reinterpret_cast<uint2*>(to + 2) = {vector.word.z, vector.word.w};
  }
}

// In float, or with kExact in 64-bit fixed point; then a lane's columns lie kLanes apart, so that
// the 8-byte reductions of adjacent lanes are contiguous.
template <typename T, typename I, typename S, bool kExact, bool kWeighted>
__global__ void __launch_bounds__(kWindowThreads, kWindowBlocks)
    backward(const WindowParams<T, I> p) {
  if (kExact && !use_wide_fixed(p.range, p.num_edges)) return;
  extern __shared__ int2 shared[];
  T* dense = reinterpret_cast<T*>(shared);  // [rows, stride]
  const Part part = load_part(p.windows, blockIdx.x);
  __shared__ std::conditional_t<kWeighted, Slots, int> slots;
  if constexpr (kWeighted) slots.load(p.windows, part, p.rows());
  float quantum;
  const float scale = kExact ? wide_scale(p.range, p.num_edges, quantum) : 1.0f;
  for (int r = threadIdx.x / 32; r < p.rows(); r += kWindowThreads / 32) {
    const int row = p.windows.rows[part.window * p.rows() + r];
    if (row < 0) continue;
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      Vector<T, 4> vector = load_vector<T, 4>(p.dense + int64_t(row) * p.width + f);
      if (p.mean) {
        float features[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) features[i] = unpack(vector, i);
        divide_by_degree(p, row, features);
        vector.word = pack<T>(features);
      }
      store_halves(dense + r * p.stride + f, vector);
    }
  }
  __syncthreads();

  constexpr int kStride = kExact ? S::kLanes : 1;  // between a lane's columns
  struct CbsrRow {
    Vector<I, kExact ? 1 : S::kPer> columns[kExact ? S::kPer : 1];
    __device__ unsigned column(int i) const {
      return kExact ? column_of(columns[kExact ? i : 0], 0) : column_of(columns[0], i);
    }
  };
  const unsigned base = shared_address(dense), row_bytes = p.stride * unsigned(sizeof(T));
  for (int first = 0; first < p.k; first += S::kSpan) {
    const int c = first + threadIdx.x % S::kLanes * (kExact ? 1 : S::kPer);
    if (c >= p.k) break;
    const auto load = [&](int sender) {
      const I* columns = p.columns + entry_at(p, sender, c);
      CbsrRow cbsr_row;
      if constexpr (kExact) {
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) {
          cbsr_row.columns[i].word = c + i * kStride < p.k ? __ldg(columns + i * kStride) : 0;
        }
      } else {
        cbsr_row.columns[0] = load_vector<I, S::kPer>(columns);
      }
      return cbsr_row;
    };
    const auto gather = [&](const CbsrRow& cbsr_row, int sender, uint2 mask, int e,
                            float first_weight = 1.0f) {
      float sum[S::kPer] = {};
      unsigned address[S::kPer];
#pragma unroll
      for (int i = 0; i < S::kPer; ++i) {
        address[i] = base + cbsr_row.column(i) * unsigned(sizeof(T));
      }
      if constexpr (kWeighted) {
        over_edges(slots, p.weights, mask, e, first_weight, [&](int r, float weight) {
          const unsigned offset = r * row_bytes;
#pragma unroll
          for (int i = 0; i < S::kPer; ++i) {
            sum[i] += weight * widen(load_shared<T>(address[i] + offset));
          }
        });
      } else {
        over_receivers(mask, [&](int r) {
          const unsigned offset = r * row_bytes;
#pragma unroll
          for (int i = 0; i < S::kPer; ++i) sum[i] += widen(load_shared<T>(address[i] + offset));
        });
      }
      const int64_t at = int64_t(sender) * p.k + c;
      if constexpr (kExact) {
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) {
          if (c + i * kStride < p.k) {
            atomicAdd(static_cast<unsigned long long*>(p.sums) + at + i * kStride,
                      static_cast<unsigned long long>(__float2ll_rn(sum[i] * scale)));
          }
        }
      } else {
        reduce_to<S::kPer>(static_cast<float*>(p.sums) + at, sum);
      }
    };
    const int group = threadIdx.x / S::kLanes;
    if constexpr (kWeighted) {
      walk_weighted<CbsrRow, kWindowThreads / S::kLanes>(p.windows, slots, p.weights, part, group,
                                                         load, gather);
    } else {
      walk<CbsrRow>(p.windows, part, group, kWindowThreads / S::kLanes, load, gather);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(256) round_exact(const long long* sums, const uint32_t* range,
                                                   int64_t num_edges, T* out, int64_t size) {
  if (!use_wide_fixed(range, num_edges)) return;
  float quantum;
  wide_scale(range, num_edges, quantum);
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) out[i] = narrow<T, float>(__ll2float_rn(sums[i]) * quantum);
}

template <bool kExact, bool kWeighted>
cudaError_t launch_backward(const MaxkWindowsArgs& args, const Launch& launch) {
  const size_t size = args.num_senders * args.k * (kExact ? sizeof(int64_t) : sizeof(float));
  if (!launch.load) {
    JAXGNN_TRY(cudaMemsetAsync(args.sums, 0, size, launch.stream));
    if (args.windows.num_parts == 0) return cudaSuccess;
  }
  return with_windows(launch, args, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    return with_window_share<I>(launch, args.k, [&](auto share) {
      return launch_windows<T, I>(launch, backward<T, I, decltype(share), kExact, kWeighted>, args,
                                  sizeof(T));
    });
  });
}

}  // namespace

cudaError_t launch_maxk_sspmm_windows(const MaxkWindowsArgs& args, const Launch& launch) {
  if (launch.load || args.weights == nullptr) {
    JAXGNN_TRY((launch_backward<false, false>(args, launch)));
  }
  if (launch.load || args.weights != nullptr) {
    JAXGNN_TRY((launch_backward<false, true>(args, launch)));
  }
  return cudaSuccess;
}

cudaError_t launch_maxk_sspmm_windows_exact(const MaxkWindowsArgs& args, void* out,
                                            const Launch& launch) {
  JAXGNN_TRY((launch_backward<true, false>(args, launch)));
  const int64_t size = args.num_senders * args.k;
  if (!launch.load && size == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return launch_kernel(launch, round_exact<T>, blocks_of(size, 256), 256, 0,
                         static_cast<const long long*>(args.sums), args.range, args.num_edges,
                         static_cast<T*>(out), size);
  });
}

}  // namespace jaxgnn::maxk
