// What all kernels that gather rows are given, and how they read what they gather.
#pragma once

#include <algorithm>

#include "common/aggregation.h"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/rows.cuh"
#include "cuda/core/slices.cuh"

namespace jaxgnn::aggregation {

constexpr int kGatherThreads = 64;  // small blocks: a finished row frees its place early

// What is loaded of a long row before it is used: a chunk of four edges, two, or one and, while
// that is added (which waits for more, that depends on it), the next.
enum class InFlight { kOneChunk, kTwoChunks, kNextChunk };

struct GatherParams {
  Rows rows;
  int64_t width;
  int heads;
  int head_width;
  unsigned row_bytes;        // from a gathered row to the next
  unsigned rows_per_worker;  // of short_rows; at least 1
  int64_t row_limit;         // only the first so many edges of a row count
  int64_t num_edges;         // at most, that count
  int solo_length;           // of short_rows: edges of a row up to which a team has it alone
  int64_t longest_row;       // no row has more edges; 0: not known
};

// Mean row lengths up to which several rows share a worker, and from which a warp splits a row.
constexpr int64_t kTinyRow = 16;
constexpr int64_t kLongRow = 256;
// A team has rows of this many edges, or of the mean row's, alone; longer ones are the warp's.
constexpr int64_t kSoloLength = 32;
// Teams narrower than a warp take several tiny rows only where these have fewer edges than this on
// average: others gain more from being shared.
constexpr int64_t kFewEdges = 4;
// Mean row length from which tiny rows come in their order where what they gather stays in the L2
// cache of an H100 or H200. Shorter ones take up to a third longer so.
constexpr int64_t kOrderedRow = 12;
constexpr int64_t kCacheBytes = 48 << 20;
// Several rows a worker leave a GPU idle where that makes fewer warps than this.
constexpr int64_t kManyWarps = 8192;

// For rows of the type T; without weights there is one head.
template <typename T>
GatherParams gather_params(const Rows& rows, int64_t width, int64_t heads,
                           int64_t num_columns = INT64_MAX, int64_t row_limit = kNoLimit,
                           int64_t longest_row = 0) {
  const int64_t num_rows = std::max<int64_t>(rows.num_rows, 1);
  const bool limited = row_limit < rows.num_edges / num_rows;
  const int64_t num_edges = limited ? row_limit * num_rows : rows.num_edges;
  const int64_t mean = num_edges / num_rows;
  const bool tiny = mean < kTinyRow;
  GatherParams p{rows,
                 width,
                 static_cast<int>(heads),
                 static_cast<int>(width / (heads > 0 ? heads : 1)),
                 static_cast<unsigned>(width * sizeof(T)),
                 tiny ? 4u : 1u,
                 row_limit,
                 num_edges,
                 static_cast<int>(std::clamp<int64_t>(mean, kSoloLength, INT32_MAX)),
                 longest_row};
  // The order of tiny rows is that of their lengths alone: it takes apart what shares senders.
  const bool cached = num_columns <= kCacheBytes / std::max<int64_t>(p.row_bytes, 1);
  if (tiny && !(cached && mean >= kOrderedRow)) p.rows.order = nullptr;
  return p;
}

// The gathered row at a column; columns of 64 bits are those of wide_rows.
template <typename T>
__device__ inline const T* gathered(const GatherParams& p, const T* x, unsigned column) {
  return row_of(x, column, p.row_bytes);
}
template <typename T>
__device__ inline const T* gathered(const GatherParams& p, const T* x, int64_t column) {
  return x + column * p.width;
}

// The weights of the four edges from e, a multiple of 4, on.
template <typename A>
__device__ inline void load_four(const GatherParams& p, const A* weights, int64_t e, int head,
                                 A (&four)[4]) {
  if (p.heads == 1) {  // so that the load is aligned
    constexpr int kPer = 16 / sizeof(A);
#pragma unroll
    for (int k = 0; k < 4 / kPer; ++k) {
      const Vector<A, kPer> vector = load_vector<A, kPer>(weights + e + k * kPer);
#pragma unroll
      for (int i = 0; i < kPer; ++i) four[k * kPer + i] = unpack(vector, i);
    }
  } else {
#pragma unroll
    for (int u = 0; u < 4; ++u) four[u] = weights[(e + u) * p.heads + head];
  }
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Launches a kernel of `workers` times `lanes` threads on slices of `slice` features.
template <typename Params>
cudaError_t launch_gather(void (*kernel)(Params), const Params& p, int64_t workers, int lanes,
                          int64_t slice, const Launch& launch, int threads = kGatherThreads) {
  const dim3 grid = slice_grid(blocks_of(workers, threads / lanes), (p.width + slice - 1) / slice);
  return launch_kernel(launch, kernel, grid, threads, 0, p);
}

}  // namespace jaxgnn::aggregation
