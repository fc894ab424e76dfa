// The exponential of vectors.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/core/simd.h"

namespace jaxgnn {
namespace {

template <class A>
struct ExpOf;
template <>
struct ExpOf<float> {
  using Bits = int32_t;
  static constexpr int kMantissa = 23, kTerms = 7;
  static constexpr float kRound = 0x1.8p23f, kLeast = -86.0f;
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // n High is exact
};
template <>
struct ExpOf<double> {
  using Bits = int64_t;
  static constexpr int kMantissa = 52, kTerms = 13;
  static constexpr double kRound = 0x1.8p52, kLeast = -706.0;
  static constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
};

// e^x for x up to about 80, with the last bit or two in doubt; 0 where the result is next to the
// smallest normal number or below it. NaN stays NaN.
template <class A, int N>
JAXGNN_INLINE Vector<A, N> exponential(Vector<A, N> x) {
  using Of = ExpOf<A>;
  using V = Vector<A, N>;
  using Bits = Vector<typename Of::Bits, N>;
  constexpr A kLog2E = static_cast<A>(1.4426950408889634074);
  const V bounded = x > Of::kLeast ? x : V{} + Of::kLeast;
  // The sum's last bits are n, the nearest integer to x / ln 2: e^x = 2^n e^r with |r| < 0.35.
  const V shifted = bounded * kLog2E + Of::kRound;
  const V n = shifted - Of::kRound;
  const V r = (bounded - n * Of::kLn2High) - n * Of::kLn2Low;
  V sum = V{} + A{1};
  JAXGNN_UNROLL
  for (int k = Of::kTerms; k > 0; --k) sum = sum * r * (A{1} / static_cast<A>(k)) + A{1};
  const V scaled = bit_cast<V>(bit_cast<Bits>(sum) + (bit_cast<Bits>(shifted) << Of::kMantissa));
  return x > Of::kLeast ? scaled : (x == x ? V{} : x);
}

template <class A>
JAXGNN_INLINE A exponential(A x) {
  return exponential<A, 1>(Vector<A, 1>{x})[0];
}

}  // namespace
}  // namespace jaxgnn
