// Sums in fixed point: each term is rounded once to an integer multiple of a quantum, and the
// integers add exactly in any order, by native integer atomics.
//
// With M the largest magnitude and n terms, 32-bit sums have the quantum n M / (2^31 - n - 256): n
// terms, each rounded by half a quantum at most, cannot overflow. Rounding errors are of the order
// of sqrt(n) quanta a sum, below those of adding floats one after the other as long as n is a few
// thousand and the terms are not far smaller than M. So callers cut longer sums, and `use_fixed`
// asks that every row's largest value be within a factor of 16 of M, and M in a range where no
// scale overflows. 64-bit sums keep 24 bits of the largest value of every row that is added, or are
// not used.
#pragma once

#include <cstdint>

namespace jaxgnn {

// What launch_range leaves: bits of the largest |value|, and the complement of the bits of the
// smallest row maximum that is not 0 (so that both are found by atomicMax from 0).
constexpr int kRangeLargest = 0;
constexpr int kRangeSmallestComplement = 1;

__device__ inline int exponent_of(uint32_t bits) { return static_cast<int>(bits >> 23) - 127; }

// Whether a scale exists: not with NaN, infinities, or at the ends of float's range.
__device__ inline bool has_scale(const uint32_t* range) {
  const int exponent = exponent_of(range[kRangeLargest]);
  return exponent > -64 && exponent < 64;
}

__device__ inline bool use_fixed(const uint32_t* range) {
  const int smallest = exponent_of(~range[kRangeSmallestComplement]);
  return has_scale(range) && exponent_of(range[kRangeLargest]) - smallest <= 4;
}

// The inverse quantum of 32-bit sums of n terms, 1 <= n < 2^30; float's rounding is allowed for.
__device__ inline float fixed_scale(const uint32_t* range, int n) {
  const float room = static_cast<float>((1u << 31) - 256u - static_cast<unsigned>(n));
  const float bound = static_cast<float>(n) * __uint_as_float(range[kRangeLargest]);
  return room / bound * (1.0f - 0x1p-20f);
}

// Whether 64-bit sums of n terms keep 24 bits of each row's largest value.
__device__ inline bool use_wide_fixed(const uint32_t* range, int64_t n) {
  const int bits = 64 - __clzll(n);
  const int smallest = exponent_of(~range[kRangeSmallestComplement]);
  return has_scale(range) && exponent_of(range[kRangeLargest]) - smallest <= 37 - bits;
}

// The inverse quantum of 64-bit sums of n terms, a power of two; and the quantum.
__device__ inline float wide_scale(const uint32_t* range, int64_t n, float& quantum) {
  const int bits = 64 - __clzll(n);  // 2^bits > n
  const int exponent = 62 - bits - (exponent_of(range[kRangeLargest]) + 1);
  quantum = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

}  // namespace jaxgnn
