// Sums over the threads of a block.
#pragma once

#include "cuda/core/rows.cuh"

namespace jaxgnn::sampling {
namespace {

// The sum over the block of kWarps warps, for all of its threads, and `before`, that of the threads
// before this one. Between two calls the threads must be synchronized.
template <int kWarps>
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

}  // namespace
}  // namespace jaxgnn::sampling
