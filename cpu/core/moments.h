// What a row is normalized by, and how rows are shared out whose work is alike.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <cmath>

#include "cpu/core/dot.h"

namespace jaxgnn {
namespace {

// Calls body(first, last) for all rows, each of which costs `row_bytes`.
template <class F>
void over_blocks(const Executor& executor, int64_t rows, int64_t row_bytes, const F& body) {
  const int64_t items = item_count(executor, rows, row_bytes);
  parallel_for(executor, items,
               [&](int64_t item) { body(rows * item / items, rows * (item + 1) / items); });
}

// What a row is normalized by.
template <class A>
struct Moments {
  A mean;
  A inverse_deviation;
};

// The variance is that of the differences from the mean: E[x^2] - E[x]^2 would cancel.
template <class T>
Moments<Accumulator<T>> moments_of(const T* x, int64_t width, double epsilon) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<T>;
  const A count = static_cast<A>(width);
  const A mean =
      sum_terms<A, N>(0, width,
                      [&](auto lanes, int64_t f) { return load<decltype(lanes)::value>(x + f); }) /
      count;
  const A squares = sum_terms<A, N>(0, width, [&](auto lanes, int64_t f) {
    const auto centered = load<decltype(lanes)::value>(x + f) - mean;
    return centered * centered;
  });
  return {mean, A{1} / std::sqrt(squares / count + static_cast<A>(epsilon))};
}

// sums[i] = partials[0][i] + partials[1][i] + ..., of `count` blocks of `size`.
template <class A>
void add_blocks(const A* partials, int64_t count, int64_t size, A* sums) {
  for (int64_t i = 0; i < size; ++i) sums[i] = 0;
  for (int64_t block = 0; block < count; ++block) {
    for (int64_t i = 0; i < size; ++i) sums[i] += partials[block * size + i];
  }
}

}  // namespace
}  // namespace jaxgnn
