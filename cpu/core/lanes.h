// Vectors whose lanes are of several heads, which repeat.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <type_traits>
#include <utility>

#include "cpu/core/simd.h"

namespace jaxgnn {
namespace {

template <class A, int N>
using Index = Vector<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>, N>;

// The vector whose lane l is lane l ^ kDistance of v.
template <int kDistance, class A, int N, int... kLane>
JAXGNN_INLINE Vector<A, N> exchange(Vector<A, N> v, std::integer_sequence<int, kLane...>) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(v, v, (kLane ^ kDistance)...);
#else
  return __builtin_shuffle(v, Index<A, N>{(kLane ^ kDistance)...});
#endif
}

// Combines the lanes of one head, in each of them: lanes that are `stride`, a power of two, apart.
template <class A, int N, int kDistance = N / 2, class Combine>
JAXGNN_INLINE Vector<A, N> over_lanes(Vector<A, N> v, int64_t stride, const Combine& combine) {
  if constexpr (kDistance > 0) {
    if (stride <= kDistance) {
      v = combine(v, exchange<kDistance, A, N>(v, std::make_integer_sequence<int, N>{}));
      v = over_lanes<A, N, kDistance / 2>(v, stride, combine);
    }
  }
  return v;
}

}  // namespace
}  // namespace jaxgnn
