// Where rows of given lengths begin: an exclusive sum, in two passes over blocks of rows.
//
// XLA's sum over an axis takes several kernels, a third of a mini-batch's sampling. A block sums
// the rows before it from the blocks' totals: many times what it reads of rows only beyond 10^7
// rows.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/block_sum.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowsPerThread = kRowsPerTotal / kThreads;
using Counts = int32_t[kRowsPerThread];
static_assert(sizeof(Counts) % sizeof(int4) == 0);

__device__ inline int64_t first_row() {
  return int64_t{blockIdx.x} * kRowsPerTotal + int64_t{threadIdx.x} * kRowsPerThread;
}

// The thread's rows of an array, 0 beyond its end; of whole vectors but at the end.
__device__ inline void load_rows(Counts& to, const int32_t* from, int64_t first, int64_t rows) {
  if (first + kRowsPerThread <= rows) {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(from + first + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) to[i] = first + i < rows ? from[first + i] : 0;
}

__device__ inline void store_rows(int32_t* to, const Counts& from, int64_t first, int64_t rows) {
  if (first + kRowsPerThread <= rows) {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; i += 4) {
      *reinterpret_cast<int4*>(to + first + i) =
          make_int4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    if (first + i < rows) to[first + i] = from[i];
  }
}

// Offsets within a block of rows, and its total; of a single block they are final.
__global__ void __launch_bounds__(kThreads) sum_blocks(const RowOffsetsArgs args) {
  const int64_t first = first_row();
  Counts counts, offsets;
  load_rows(counts, args.counts, first, args.num_rows);
  int32_t own = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) own += counts[i];
  int32_t offset;
  const int32_t all = block_sum<kWarps>(own, offset);
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    offsets[i] = offset;
    offset += counts[i];
  }
  store_rows(args.offsets, offsets, first, args.num_rows);
  if (threadIdx.x > 0) return;
  args.totals[blockIdx.x] = all;
  if (gridDim.x == 1) args.offsets[args.num_rows] = all;
}

__global__ void __launch_bounds__(kThreads) add_blocks(const RowOffsetsArgs args) {
  int32_t own = 0, unused;
  for (unsigned i = threadIdx.x; i < blockIdx.x; i += kThreads) own += args.totals[i];
  const int32_t before = block_sum<kWarps>(own, unused);
  const int64_t first = first_row();
  Counts offsets;
  load_rows(offsets, args.offsets, first, args.num_rows);
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) offsets[i] += before;
  store_rows(args.offsets, offsets, first, args.num_rows);
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
