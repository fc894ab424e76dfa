// What the kernels of the attention by cosines over tiles compute alike: an edge's exponential.
#pragma once

#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/tiles/cosine.h"

namespace jaxgnn::tiles {

constexpr float kLog2E = 1.4426950408889634f;

// Exponentials in tiles are of T, whose normal values are to hold exp(-2 |beta|) to 1, times 2 to
// kShift. For a larger |beta| rows are summed over all of their edges, against their largest score.
template <typename T>
struct Exponentials;
template <>
struct Exponentials<__nv_bfloat16> {
  static constexpr float kShift = 0, kMostBeta = 40;
};
template <>
struct Exponentials<__half> {
  static constexpr float kShift = 15, kMostBeta = 10;
};

constexpr float kMostRowsBeta = 40;

template <typename T>
__device__ inline bool takes_tiles(float beta) {
  return fabsf(beta) <= Exponentials<T>::kMostBeta;  // not NaN
}

// The same of sums without tiles, whose exponentials are of float32.
template <typename T>
__device__ inline bool has_reference(const TilesCosineArgs& a, float beta) {
  return a.tiled ? takes_tiles<T>(beta) : fabsf(beta) <= kMostRowsBeta;
}

// What a score is less, both as powers of two.
template <typename T>
__device__ inline float reference_of(float beta) {
  return fabsf(beta) * kLog2E - Exponentials<T>::kShift;
}

// Whether a batch's mask has a row of the window and an entry: mask_bit of cpu/tiles/layout.h.
__device__ inline bool is_in_batch(const uint32_t* masks, int row, int entry) {
  const int number = row / 16 * 4 + entry / 8 * 2 + row % 16 / 8;
  const uint32_t word = masks[row % 8 * 4 + entry % 8 / 2];
  return word >> ((entry % 2 != 0 ? 31 : 15) - number) & 1;
}

__device__ inline float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

}  // namespace jaxgnn::tiles
