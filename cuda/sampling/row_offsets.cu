// Where rows of given lengths begin: an exclusive sum, in two passes over blocks of rows.
//
// XLA's sum over an axis takes several kernels, a third of a mini-batch's sampling. A block sums
// the rows before it from the blocks' totals: many times what it reads of rows only beyond 10^7
// rows.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowsPerThread = kRowsPerTotal / kThreads;

// The sum over the block, for all of its threads, and `before`, that of the threads before this
// one.
__device__ inline int32_t block_sum(int32_t value, int32_t& before) {
  __shared__ int32_t of_warps[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int32_t up_to = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kFullWarp, up_to, step);
    if (lane >= step) up_to += other;
  }
  if (lane == 31) of_warps[warp] = up_to;
  __syncthreads();
  int32_t all = 0;
  before = up_to - value;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += of_warps[i];
    all += of_warps[i];
  }
  return all;
}

__device__ inline int64_t first_row() {
  return int64_t{blockIdx.x} * kRowsPerTotal + int64_t{threadIdx.x} * kRowsPerThread;
}

// Offsets within a block of rows, and its total; of a single block they are final.
__global__ void __launch_bounds__(kThreads) sum_blocks(const RowOffsetsArgs args) {
  const int64_t first = first_row();
  int32_t counts[kRowsPerThread], own = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    counts[i] = first + i < args.num_rows ? __ldg(args.counts + first + i) : 0;
    own += counts[i];
  }
  int32_t offset;
  const int32_t all = block_sum(own, offset);
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    if (first + i < args.num_rows) args.offsets[first + i] = offset;
    offset += counts[i];
  }
  if (threadIdx.x > 0) return;
  args.totals[blockIdx.x] = all;
  if (gridDim.x == 1) args.offsets[args.num_rows] = all;
}

__global__ void __launch_bounds__(kThreads) add_blocks(const RowOffsetsArgs args) {
  int32_t own = 0, unused;
  for (unsigned i = threadIdx.x; i < blockIdx.x; i += kThreads) own += args.totals[i];
  const int32_t before = block_sum(own, unused);
  const int64_t first = first_row();
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    if (first + i < args.num_rows) args.offsets[first + i] += before;
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
    args.offsets[args.num_rows] = before + args.totals[blockIdx.x];
  }
}

}  // namespace

cudaError_t launch_row_offsets(const RowOffsetsArgs& args, const Launch& launch) {
  const unsigned blocks = args.num_rows > 0 ? blocks_of(args.num_rows, kRowsPerTotal) : 1;
  JAXGNN_TRY(launch_kernel(launch, sum_blocks, blocks, kThreads, 0, args));
  if (!launch.load && blocks == 1) return cudaSuccess;
  return launch_kernel(launch, add_blocks, blocks, kThreads, 0, args);
}

}  // namespace jaxgnn::sampling
