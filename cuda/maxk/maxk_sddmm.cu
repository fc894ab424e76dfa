// Dot products on edges of a CBSR row with a dense row at the CBSR row's columns: a warp stages the
// dense row in shared memory and its groups iterate over the row's edges.
#include "cuda/maxk/cbsr.cuh"
#include "cuda/maxk/maxk.h"

namespace jaxgnn::maxk {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

template <typename T, typename I, typename S>
__global__ void __launch_bounds__(kThreads)
    cbsr_dots(const Rows rows, const T* values, const I* columns, const T* dense, float* out,
              int width, int k) {
  extern __shared__ float staged[];
  const Work work = find_work(rows, int64_t(blockIdx.x) * kWarps + threadIdx.x / 32);
  if (work.row < 0) return;
  float* row = staged + threadIdx.x / 32 * width;
  for (int f = threadIdx.x % 32; f < width; f += 32) row[f] = widen(dense[work.row * width + f]);
  __syncwarp();
  const int lane = threadIdx.x % S::kLanes;
  const int group = threadIdx.x % 32 / S::kLanes;
  const unsigned mask =
      S::kLanes == 32 ? kFullWarp : ((1u << S::kLanes % 32) - 1) << (group * S::kLanes);
#pragma unroll 4
  for (int i = group; i < work.count; i += S::kGroups) {
    const int64_t e = work.begin + i;
    const int64_t at = load_column(rows, e) * k;
    float sum = 0.0f;
    for (int c = lane * S::kPer; c < k; c += S::kSpan) {
      float value[S::kPer];
      int column[S::kPer];
      load_values<T, S::kPer>(values + at, c, k, value);
      load_columns<I, S::kPer>(columns + at, c, k, column);
#pragma unroll
      for (int j = 0; j < S::kPer; ++j) sum += value[j] * row[column[j]];
    }
#pragma unroll
    for (int offset = S::kLanes / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(mask, sum, offset);
    }
    if (lane == 0) out[e] = sum;
  }
}

}  // namespace

cudaError_t launch_maxk_sddmm(const MaxkProductArgs& args, const Launch& launch) {
  const Cbsr& from = args.cbsr;
  if (!launch.load && (args.rows.num_rows == 0 || args.rows.num_edges == 0)) return cudaSuccess;
  return with_types(launch, args.type, from.width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    return with_share(launch, from.k, from.k % 4 == 0, [&](auto share) {
      const int64_t workers = args.rows.num_chunks + args.rows.num_rows;
      return launch_large_kernel(
          launch, cbsr_dots<T, I, decltype(share)>, blocks_of(workers, kWarps), kThreads,
          kWarps * from.width * sizeof(float), args.rows, static_cast<const T*>(from.values),
          static_cast<const I*>(from.indices), static_cast<const T*>(args.dense),
          static_cast<float*>(args.out), static_cast<int>(from.width), static_cast<int>(from.k));
    });
  });
}

}  // namespace jaxgnn::maxk
