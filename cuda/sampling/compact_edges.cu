// Bits of edges: set from a list or drawn, brought into another order, and made into rows. Integers
// alone, and the order of atomics does not matter.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ inline int64_t number_at(const void* numbers, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(numbers)[i] : static_cast<const int32_t*>(numbers)[i];
}

__global__ void __launch_bounds__(kThreads) mark(const MarkArgs args) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.count) return;
  int64_t e = number_at(args.edges, args.wide_edges, i);
  if (e < 0 || e >= args.num_edges) return;
  if (args.permutation != nullptr) {
    e = number_at(args.permutation, args.wide_permutation, e);
    if (e < 0 || e >= args.num_edges) return;
  }
  atomicOr(args.bits + e / kEdgesPerWord, 1u << (e % kEdgesPerWord));
}

// A thread a word: one search for the row of its first edge.
__global__ void __launch_bounds__(kThreads) drop(const DropArgs args) {
  const Rows& rows = args.rows;
  const int64_t w = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = w * kEdgesPerWord;
  if (first >= rows.num_edges) return;
  int64_t row = 0, high = rows.num_rows - 1;
  while (row < high) {
    const int64_t middle = (row + high + 1) / 2;
    if (load_offset(rows, middle) <= first) {
      row = middle;
    } else {
      high = middle - 1;
    }
  }
  const int count = static_cast<int>(min(rows.num_edges - first, kEdgesPerWord));
  uint32_t word = 0;
  for (int i = 0; i < count; ++i) {
    while (row + 1 < rows.num_rows && load_offset(rows, row + 1) <= first + i) ++row;
    const uint32_t at = static_cast<uint32_t>(first + i - load_offset(rows, row));
    if (draw_word(static_cast<uint32_t>(row), at, args.key) < args.rate) word |= 1u << i;
  }
  args.bits[w] = word;
}

// A warp a group: a lane an edge, so that the permutation is read side by side.
__global__ void __launch_bounds__(kThreads) permute(const PermuteArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t group = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t first = group * kEdgesPerGroup;
  if (first >= args.num_edges) return;
  uint32_t own = 0;
  if (args.permutation == nullptr) {
    const int64_t w = group * kWordsPerGroup + lane;
    if (w * kEdgesPerWord < args.num_edges) own = args.bits[w];
  } else {
#pragma unroll 4
    for (int w = 0; w < kWordsPerGroup; ++w) {
      const int64_t t = first + w * kEdgesPerWord + lane;
      uint32_t bit = 0;
      if (t < args.num_edges) {
        const int64_t e = number_at(args.permutation, args.wide_permutation, t);
        if (e >= 0 && e < args.num_edges) {
          bit = __ldg(args.bits + e / kEdgesPerWord) >> (e % kEdgesPerWord) & 1u;
        }
      }
      const uint32_t word = __ballot_sync(kFullWarp, bit != 0);
      if (w == lane) own = word;
    }
  }
  const int64_t w = group * kWordsPerGroup + lane;
  if (w * kEdgesPerWord < args.num_edges) args.out[w] = own;
  const int count = warp_sum(__popc(own));
  if (lane == 0) args.counts[group] = count;
}

__device__ inline void put(const CompactArgs& args, int64_t place, int64_t edge, int32_t column) {
  if (place < 0 || place >= args.capacity) return;
  args.columns[place] = column;
  if (args.edges == nullptr) return;
  if (args.wide_edges) {
    static_cast<int64_t*>(args.edges)[place] = edge;
  } else {
    static_cast<int32_t*>(args.edges)[place] = static_cast<int32_t>(edge);
  }
}

__global__ void __launch_bounds__(kThreads) compact(const CompactArgs args) {
  const Rows& rows = args.rows;
  const int lane = threadIdx.x % 32;
  const int64_t group = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t first = group * kEdgesPerGroup;
  if (first >= rows.num_edges) return;
  const int64_t at = group * kWordsPerGroup + lane;
  const uint32_t own = at * kEdgesPerWord < rows.num_edges ? args.bits[at] : 0;
  int64_t place = args.ranks[group];
#pragma unroll 4
  for (int w = 0; w < kWordsPerGroup; ++w) {
    const uint32_t word = __shfl_sync(kFullWarp, own, w);
    const int64_t t = first + w * kEdgesPerWord + lane;
    if (word >> lane & 1u && t < rows.num_edges) {
      const bool same = args.permutation == nullptr || args.edges == nullptr;
      const int64_t edge = same ? t : number_at(args.permutation, args.wide_permutation, t);
      put(args, place + __popc(word & ((1u << lane) - 1)), edge,
          static_cast<int32_t>(load_column(rows, t)));
    }
    place += __popc(word);
  }
}

// How many bits are before edge e.
__device__ inline int rank_of(const CompactArgs& args, int64_t e) {
  int rank = args.ranks[e / kEdgesPerGroup];
  const int64_t word = e / kEdgesPerWord;
  for (int64_t w = e / kEdgesPerGroup * kWordsPerGroup; w < word; ++w) {
    rank += __popc(args.bits[w]);
  }
  const int inside = static_cast<int>(e % kEdgesPerWord);
  return inside > 0 ? rank + __popc(args.bits[word] & ((1u << inside) - 1)) : rank;
}

// The offsets of the rows, and what is left of the capacity.
__global__ void __launch_bounds__(kThreads) finish_rows(const CompactArgs args) {
  const Rows& rows = args.rows;
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  const int64_t own = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = groups_of(rows.num_edges);
  const int64_t used = min(max(int64_t(args.ranks[groups]), int64_t(0)), args.capacity);
  for (int64_t row = own; row <= rows.num_rows; row += stride) {
    const int64_t begin = max(load_offset(rows, row), int64_t(0));
    const int64_t rank = begin < rows.num_edges ? int64_t(rank_of(args, begin)) : used;
    args.offsets[row] = static_cast<int32_t>(min(rank, used));
  }
  for (int64_t place = used + own; place < args.capacity; place += stride) {
    put(args, place, rows.num_edges, 0);
  }
}

}  // namespace

cudaError_t launch_mark_edges(const MarkArgs& args, const Launch& launch) {
  if (!launch.load) {
    if (args.num_edges == 0) return cudaSuccess;
    JAXGNN_TRY(
        cudaMemsetAsync(args.bits, 0, words_of(args.num_edges) * sizeof(uint32_t), launch.stream));
    if (args.count == 0) return cudaSuccess;
  }
  return launch_kernel(launch, mark, blocks_of(args.count, kThreads), kThreads, 0, args);
}

cudaError_t launch_drop_edges(const DropArgs& args, const Launch& launch) {
  if (!launch.load && args.rows.num_edges == 0) return cudaSuccess;
  const unsigned blocks = blocks_of(words_of(args.rows.num_edges), kThreads);
  return launch_kernel(launch, drop, blocks, kThreads, 0, args);
}

cudaError_t launch_permute_bits(const PermuteArgs& args, const Launch& launch) {
  if (!launch.load && args.num_edges == 0) return cudaSuccess;
  const unsigned blocks = blocks_of(groups_of(args.num_edges), kWarps);
  return launch_kernel(launch, permute, blocks, kThreads, 0, args);
}

cudaError_t launch_compact_edges(const CompactArgs& args, const Launch& launch) {
  if (launch.load || args.rows.num_edges > 0) {
    const unsigned blocks = blocks_of(groups_of(args.rows.num_edges), kWarps);
    JAXGNN_TRY(launch_kernel(launch, compact, blocks, kThreads, 0, args));
  }
  return launch_kernel(launch, finish_rows, 264, kThreads, 0, args);
}

}  // namespace jaxgnn::sampling
