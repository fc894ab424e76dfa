// Scalar functions, sums over a warp and of rows, and block counts.
#pragma once

#include "cuda/core/rows.cuh"

namespace jaxgnn {

template <typename A>
__device__ inline A warp_sum(A v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullWarp, v, offset);
  return v;
}

// Sums each of the values over the kLanes adjacent lanes of a group in `mask`; this is lane
// `local`, and lane u gets sum u. Each step exchanges half of the sums.
template <int kLanes, typename A>
__device__ inline A scatter_sums(A (&values)[kLanes], int local, unsigned mask) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const bool upper = (local & offset) != 0;
#pragma unroll
    for (int i = 0; i < offset; ++i) {
      const A keep = upper ? values[i + offset] : values[i];
      const A send = upper ? values[i] : values[i + offset];
      values[i] = keep + __shfl_xor_sync(mask, send, offset);
    }
  }
  return values[0];
}

__device__ inline float exponential(float x) {  // two units in the last place, for x near 0
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950408889634f));
  return power;
}
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

// acc += scale row.
template <typename T, int V, typename A>
__device__ inline void add_scaled(A scale, const Vector<T, V>& row, A (&acc)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) acc[i] += scale * unpack(row, i);
}

inline unsigned blocks_of(int64_t threads, int64_t per_block) {
  return static_cast<unsigned>((threads + per_block - 1) / per_block);
}

}  // namespace jaxgnn
