// The random times of an exponential race, by which edges are drawn in proportion to weights.
//
// An edge of weight w arrives at -log(u) / w, u uniform, and the first k of a row win (Efraimidis
// and Spirakis, IPL 97, 2006). What is compared are binary logarithms of the times, rounded to
// steps of 2^-23, in integer arithmetic alone: every platform, and jaxgnn/ops/_sampling/race.py,
// has the same bits whatever its compiler makes of multiplications and additions.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace jaxgnn::sampling {

constexpr int32_t kZeroWeight = INT32_MIN;  // in place of the logarithm of a weight
constexpr uint32_t kNever = 0xffffffffu;    // the time of an edge that is not to be drawn

namespace {

// Of x != 0.
JAXGNN_HOST_DEVICE int leading_zeros(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __clz(static_cast<int>(x));
#else
  return __builtin_clz(x);
#endif
}

JAXGNN_HOST_DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

// -log2(1 - v) / v in steps of 2^-29, where v = `value` / 2^32 is at most 1/2: a polynomial in 2 v
// whose error is below 2^-26.
JAXGNN_HOST_DEVICE uint32_t log_ratio(uint32_t value) {
  const int64_t x = value < 0x80000000u ? int64_t{value} * 2 : 0xffffffff;
  constexpr int32_t kCoefficients[] = {2622565, -7439714, 11859376, -7141373,  8247566,
                                       8492879, 24393858, 64529947, 193635715, 774541000};
  int32_t sum = 0;
  for (const int32_t coefficient : kCoefficients) {
    sum = coefficient + static_cast<int32_t>((sum * x) >> 32);
  }
  return static_cast<uint32_t>(sum);
}

// log2(x) in steps of 2^-23, of x != 0.
JAXGNN_HOST_DEVICE int32_t fixed_log2(uint32_t x) {
  const int zeros = leading_zeros(x);
  const uint32_t value = 0u - (x << zeros);
  const uint32_t below = multiply_high(value, log_ratio(value)) >> 6;
  return (32 - zeros) * (1 << 23) - static_cast<int32_t>(below);
}

// log2(-log2(u)) in steps of 2^-23, where u is the word's complement over 2^32, with the last bit
// set: neither 0 nor 1.
JAXGNN_HOST_DEVICE int32_t fixed_log_time(uint32_t word) {
  const uint32_t u = ~word | 1;
  const int zeros = leading_zeros(u);
  const uint32_t value = 0u - (u << zeros), ratio = log_ratio(value);
  if (zeros > 0) {
    const uint32_t time = (static_cast<uint32_t>(zeros) << 26) + (multiply_high(value, ratio) >> 3);
    return fixed_log2(time) - 26 * (1 << 23);
  }
  // Close to u = 1 the time is small: it is scaled, not to lose its digits.
  const int scale = leading_zeros(value);
  return fixed_log2(multiply_high(value << scale, ratio)) - (29 + scale) * (1 << 23);
}

// When an edge of this logarithm of a weight arrives, as a number that is ordered as the times are.
JAXGNN_HOST_DEVICE uint32_t race_time(uint32_t word, int32_t log_weight) {
  if (log_weight == kZeroWeight) return kNever;
  return (static_cast<uint32_t>(fixed_log_time(word)) - static_cast<uint32_t>(log_weight)) ^
         0x80000000u;
}

}  // namespace
}  // namespace jaxgnn::sampling
