// The row of each edge: a thread an edge, a binary search in the offsets (which the cache holds).
#include "cuda/aggregation/aggregation.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/rows.cuh"

namespace jaxgnn::aggregation {
namespace {

constexpr int kThreads = 256;
constexpr int kEdges = 4;  // consecutive edges a thread; one search serves all

__global__ void __launch_bounds__(kThreads) expand(const Rows rows, int32_t* out) {
  const int64_t begin = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kEdges;
  if (begin >= rows.num_edges) return;
  // The last row whose offset is at most `begin`.
  int64_t low = 0, high = rows.num_rows - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (load_offset(rows, middle) <= begin) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  for (int64_t e = begin; e < rows.num_edges && e < begin + kEdges; ++e) {
    // By growing steps, then by shrinking ones: many empty rows may lie between two edges.
    int64_t step = 1;
    for (; low + step < rows.num_rows && load_offset(rows, low + step) <= e; step *= 2) low += step;
    for (step /= 2; step > 0; step /= 2) {
      if (low + step < rows.num_rows && load_offset(rows, low + step) <= e) low += step;
    }
    out[e] = static_cast<int32_t>(low);
  }
}

}  // namespace

cudaError_t launch_csr_row_ids(const CsrRowIdsArgs& args, const Launch& launch) {
  const Rows& rows = args.rows;
  if (!launch.load && (rows.num_edges == 0 || rows.num_rows == 0)) return cudaSuccess;
  return launch_kernel(launch, expand, blocks_of(rows.num_edges, kThreads * kEdges), kThreads, 0,
                       rows, args.out);
}

}  // namespace jaxgnn::aggregation
