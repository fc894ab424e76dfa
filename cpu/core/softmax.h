// What softmaxes do where all is masked: scores of -inf alone get 0, without NaN.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/core/exp.h"

namespace jaxgnn {
namespace {

template <class A>
constexpr A kInfinity = static_cast<A>(__builtin_inf());

// What is subtracted from scores: not the difference of two infinities. V is A, or a vector of it.
template <class A, class V>
JAXGNN_INLINE V base_of(V largest) {
  return largest == -kInfinity<A> ? V{} : largest;
}

// What the exponentials are divided by, given their sum: 0 / 1 where there is none.
template <class V>
JAXGNN_INLINE V divisor_of(V total) {
  return total == 0 ? V{} + 1 : total;
}

}  // namespace
}  // namespace jaxgnn
