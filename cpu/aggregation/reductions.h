// Which reduction is asked for, and how ties of extrema are counted.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <type_traits>

#include "common/aggregation.h"
#include "cpu/core/simd.h"

namespace jaxgnn::aggregation {
namespace {

// min is the max of the negated products, negated. `ties` counts the edges that attained it.
enum class Kind { sum, max, ties };

// Calls f(std::integral_constant<Kind, ...>).
template <class F>
void with_kind(const SpmmArgs& args, const F& f) {
  if (args.reduce == Reduce::kSum || args.reduce == Reduce::kMean) {
    f(std::integral_constant<Kind, Kind::sum>{});
  } else if (args.ties == nullptr) {
    f(std::integral_constant<Kind, Kind::max>{});
  } else {
    f(std::integral_constant<Kind, Kind::ties>{});
  }
}

template <class T>
using Ties = std::conditional_t<sizeof(T) == 2, float16, T>;

// The maxima and ties of two sets of edges, in the first; NaN ties with nothing.
template <class V>
JAXGNN_INLINE void unite_ties(V& most, V& ties, V more, V more_ties) {
  const V both = maximum(most, more);
  ties = (most == both ? ties : V{}) + (more == both ? more_ties : V{});
  most = both;
}

}  // namespace
}  // namespace jaxgnn::aggregation
