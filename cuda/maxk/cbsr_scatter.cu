// The dense rows of compressed balanced sparse ones.
#include "cuda/maxk/cbsr.cuh"
#include "cuda/maxk/maxk.h"

namespace jaxgnn::maxk {
namespace {

constexpr int kThreads = 128;

template <typename T, typename I>
struct Params {
  const T* values;
  const I* columns;
  T* out;
  int64_t num_rows;
  int width;
  int k;
};

// A warp a row, put together in shared memory.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads) scatter(const Params<T, I> p) {
  extern __shared__ int4 shared[];
  const int64_t row = int64_t(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= p.num_rows) return;
  const int lane = threadIdx.x % 32;
  T* staged = reinterpret_cast<T*>(shared) + threadIdx.x / 32 * p.width;
  for (int f = lane; f < p.width; f += 32) staged[f] = narrow<T, float>(0.0f);
  __syncwarp();
  for (int c = lane; c < p.k; c += 32) {
    staged[p.columns[row * p.k + c]] = p.values[row * p.k + c];
  }
  __syncwarp();
  T* out = p.out + row * p.width;
  constexpr int V = 16 / sizeof(T);
  if (p.width % V == 0) {
    for (int f = lane * V; f < p.width; f += 32 * V) {
      __stcs(reinterpret_cast<int4*>(out + f), *reinterpret_cast<const int4*>(staged + f));
    }
  } else {
    for (int f = lane; f < p.width; f += 32) out[f] = staged[f];
  }
}

}  // namespace

cudaError_t launch_cbsr_scatter(const CbsrScatterArgs& args, const Launch& launch) {
  const Cbsr& from = args.cbsr;
  if (!launch.load && (from.num_rows == 0 || from.width == 0)) return cudaSuccess;
  return with_types(launch, args.type, from.width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const Params<T, I> p{static_cast<const T*>(from.values), static_cast<const I*>(from.indices),
                         static_cast<T*>(args.out),          from.num_rows,
                         static_cast<int>(from.width),       static_cast<int>(from.k)};
    constexpr int kRows = kThreads / 32;
    return launch_large_kernel(launch, scatter<T, I>, blocks_of(from.num_rows, kRows), kThreads,
                               kRows * from.width * sizeof(T), p);
  });
}

}  // namespace jaxgnn::maxk
