// Sums in fixed point: each term is rounded once to an integer multiple of a quantum, and the
// integers add exactly in any order, by native integer atomics.
//
// With a bound B on the magnitude of a sum of n terms, 32-bit sums have the quantum B / (2^31 - n -
// 256): n terms, each rounded by half a quantum at most, cannot overflow. Rounding errors are of
// the order of sqrt(n) quanta a sum, below those of a sequential float sum as long as n is a few
// thousand (callers split longer sums) and no term is much smaller than B / n.
//
// The size of a CBSR row is its largest magnitude. Where all CBSR rows are similar (their sizes
// within a factor of 16 of one another; for 16-bit results, which keep fewer bits, within more), B
// is n times the largest of all. Else B is, for each row, the sum of the sizes of its own CBSR
// rows, rounded up to what a byte holds where a kernel of its own finds it; CBSR rows far below the
// average (`least_size`) are added separately, with their own bound, or the row is added in float.
// 64-bit sums keep 24 bits of the size of every row that is added, or are not used.
#pragma once

#include <cstdint>

#include "cuda/core/dispatch.cuh"

namespace jaxgnn::maxk {

// What launch_range leaves: bits of the largest size, and the complement of the bits of the
// smallest that is not 0 (so that both are found by atomicMax from 0).
constexpr int kRangeLargest = 0;
constexpr int kRangeSmallestComplement = 1;
// Not 0 where a CBSR row is small for a row that is summed in its own bound.
constexpr int kRangeSmall = 2;

// Bits of a NaN, and above those of every magnitude: the smallest of no CBSR rows.
constexpr unsigned kNoSize = 0x7fffffffu;

__device__ inline int exponent_of(uint32_t bits) { return static_cast<int>(bits >> 23) - 127; }

// Whether a scale exists: not with NaN, infinities, or at the ends of float's range.
__device__ inline bool has_scale(const uint32_t* range) {
  const int exponent = exponent_of(range[kRangeLargest]);
  return exponent > -64 && exponent < 64;
}

// A size in a byte, which the L1 cache has room for: its exponent and the first bit of its
// mantissa. 0 is 0, and 1 also what is below 2^-64.
constexpr int kSizeCodes = 2 * (127 - 64);

__device__ inline unsigned char size_code(uint32_t bits) {
  if (bits == 0) return 0;
  return static_cast<unsigned char>(min(max(static_cast<int>(bits >> 22) - kSizeCodes, 1), 255));
}
// The bounds of a size, of a code that is not 0.
__device__ inline float least_of_code(int code) {
  return code == 1 ? 0.0f : __uint_as_float(static_cast<uint32_t>(code + kSizeCodes) << 22);
}
__device__ inline float most_of_code(int code) {
  return __uint_as_float(static_cast<uint32_t>(code + kSizeCodes + 1) << 22);
}

// The largest ratio of the sizes of similar CBSR rows, as a power of two.
template <typename T>
constexpr int kAlikeBits = kTypeOf<T> == Type::kBF16  ? 9
                           : kTypeOf<T> == Type::kF16 ? 6
                                                      : 4;

template <typename T>
__device__ inline bool rows_alike(const uint32_t* range) {
  const int smallest = exponent_of(~range[kRangeSmallestComplement]);
  return exponent_of(range[kRangeLargest]) - smallest <= kAlikeBits<T>;
}

// The least size of a CBSR row that is added together with the others of a row: n that sum to
// `bound`.
template <typename T>
__device__ inline float least_size(float bound, int n) {
  return bound / (static_cast<float>(n) * static_cast<float>(1 << kAlikeBits<T>));
}

// The inverse quantum of 32-bit sums of n terms, 1 <= n < 2^30, that are at most `bound`; float's
// rounding, here and in the bound, is allowed for.
__device__ inline float fixed_scale(float bound, int n) {
  const float room = static_cast<float>((1u << 31) - 256u - static_cast<unsigned>(n));
  // A bound close to the smallest normal float would have an infinite scale: the quantum is capped
  // there.
  return bound > 0.0f ? fminf(room / bound * (1.0f - 0x1p-16f), 0x1p126f) : 1.0f;
}

// The bound for similar CBSR rows.
__device__ inline float common_bound(const uint32_t* range, int n) {
  return static_cast<float>(n) * __uint_as_float(range[kRangeLargest]);
}

// Sums with weights are bounded by the sum of the sizes of their terms, the magnitude of a weight
// times the size of a CBSR row each. Weights come in any magnitude: terms of less than 2^-bits of
// their row's average are small. They are not added with the others but in a further pass, with a
// bound of their own, and so on for kMorePasses; a row that still lacks some then is added in
// float.
constexpr int kMorePasses = 3;
template <typename T>
constexpr float kSmallShare = 1.0f / static_cast<float>(1 << (kAlikeBits<T> + 2));

// The range of the bounds that have a scale there; other rows are added in float.
constexpr float kLeastBound = 0x1p-90f, kMostBound = 0x1p120f;

// A sum of n magnitudes by a warp, whose lanes take every 32nd each, rounded up.
__device__ inline float round_up(float sum, int64_t n) {
  return sum * (1.0f + static_cast<float>(n / 32 + 8) * 0x1p-23f);
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

}  // namespace jaxgnn::maxk
