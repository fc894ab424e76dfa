// Rows of the length 1: the activation before, and the division by a length whose square may be out
// of range.
#pragma once

#include "cuda/core/rows.cuh"
#include "cuda/sampling/embedding.h"

namespace jaxgnn::sampling {

__device__ inline float relu(float value) {  // NaN stays
  asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(value));
  return value;
}

// Whether a row's sum of squares is as exact as its entries. Else the entries are multiplied by
// power_below, of the largest, before they are squared.
__device__ inline bool in_range(float square) { return square > 0x1p-80f && square < 0x1p120f; }
__device__ inline float power_below(float largest) {
  return ldexpf(1, -ilogbf(fminf(fmaxf(largest, 0x1p-120f), 0x1p120f)));
}

__device__ inline float inverse_root(float square) {
  if (!(square > 0)) return square;  // 0, or NaN
  if (square == INFINITY) return 0;
  const float root = rsqrtf(square);
  return root * (1.5f - 0.5f * square * root * root);
}

// The rows of the result that a layer writes: so many from `start` on.
struct RowsWritten {
  int64_t start, count;
};
__device__ inline RowsWritten rows_written(const UnitLayerArgs& args) {
  const int64_t start = args.start == nullptr ? 0 : __ldg(args.start);
  if (start < 0 || start >= args.out_rows) return {0, 0};
  return {start, min(args.num_rows, args.out_rows - start)};
}

// A step of the exchange among lanes g = lane div 4, which have the same rows: of twice kHalf
// values the lane keeps the first half, or with `upper` the second, combined with those of the lane
// whose g differs by `offset`.
template <int kHalf, int kValues, typename F>
__device__ __forceinline__ void combine_halves(float (&values)[kValues], bool upper, int offset,
                                               F combine) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = values[i], high = values[i + kHalf];
    const float other = __shfl_xor_sync(kFullWarp, upper ? low : high, 4 * offset);
    values[i] = combine(upper ? high : low, other);
  }
}

}  // namespace jaxgnn::sampling
