// What a row is normalized by, and how rows are shared out whose work is alike, with sums or
// without.
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

// Calls body(lanes, f) for vectors of `width` numbers from f on, and for single ones at the end.
template <class T, class F>
JAXGNN_INLINE void over_vectors(int64_t width, const F& body) {
  constexpr int N = kLanes<T>;
  int64_t f = 0;
  for (; f + N <= width; f += N) body(Constant<N>{}, f);
  for (; f < width; ++f) body(Constant<1>{}, f);
}

// sums[i] = what body(row, own) adds to own[i] over all rows. Each of `blocks` blocks of rows adds
// to numbers of its own, partials[., size], which are added in order.
template <class A, class F>
void sum_over_rows(const Executor& executor, int64_t rows, int64_t blocks, int64_t size,
                   A* partials, A* sums, const F& body) {
  parallel_for(executor, blocks, [&](int64_t block) {
    A* own = partials + block * size;
    for (int64_t i = 0; i < size; ++i) own[i] = 0;
    const int64_t last = rows * (block + 1) / blocks;
    for (int64_t row = rows * block / blocks; row < last; ++row) body(row, own);
  });
  for (int64_t i = 0; i < size; ++i) sums[i] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < size; ++i) sums[i] += partials[block * size + i];
  }
}

}  // namespace
}  // namespace jaxgnn
