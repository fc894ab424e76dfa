// The values of a row's edges as one array, and what each head makes of its own ones.
//
// Edge values, [E, H], lie edge after edge: those of a row are one array, entry i of head i mod H.
// Where H is a power of two below the lanes of a vector, a vector takes the values of several
// edges, and lane l is of head l mod H. Else a vector is of one edge: of N of its heads, or of all
// of them with the next edge's first values behind, which count for nothing.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <type_traits>

#include "cpu/core/lanes.h"
#include "cpu/core/rows.h"

namespace jaxgnn {
namespace {

// How H heads lie in vectors of N lanes. Calls f(Constant<N>, Constant<packed>).
template <class A, int N = kLanes<A>, class F>
JAXGNN_INLINE void with_head_lanes(int64_t heads, const F& f) {
  if constexpr (N == kLanes<A>) {
    if (heads < N && (heads & (heads - 1)) == 0) return f(Constant<N>{}, Constant<1>{});
  }
  if constexpr (N > 4) {
    if (heads <= N / 2) return with_head_lanes<A, N / 2>(heads, f);
  }
  f(Constant<N>{}, Constant<0>{});
}

// The heads of a vector, from `first` on: as many as there are, and at most N.
struct HeadBlock {
  int64_t stride;  // H
  int64_t first;
  int heads;
};

// Calls f(block) for the blocks of H heads. The last overlaps the one before: both make the same.
template <int N, class F>
JAXGNN_INLINE void over_head_blocks(int64_t heads, const F& f) {
  if (heads <= N) return f(HeadBlock{heads, 0, static_cast<int>(heads)});
  for (int64_t first = 0; first < heads; first += N) {
    f(HeadBlock{heads, min_of(first, heads - N), N});
  }
}

// A row's values of a block: `full` vectors `step` apart, and a last one of `rest` values.
template <class T>
struct RowValues {
  T* values;
  int64_t full;
  int64_t step;
  int rest;
  bool whole;  // whether a full vector may be read, or written, where the last one begins
};

// Those of the edges [begin, end), of an array that ends with the edge `last`.
template <int N, bool kPacked, class T>
JAXGNN_INLINE RowValues<T> row_values(T* values, const HeadBlock& block, int64_t begin, int64_t end,
                                      int64_t last) {
  const int64_t first = begin * block.stride + block.first;
  if constexpr (kPacked) {
    // Unsigned, a power of two divides it by a shift.
    const uint64_t count = begin < end ? (end - begin) * block.stride : 0;
    const int64_t full = count / N;
    return {values + first, full, N, static_cast<int>(count % N),
            first + (full + 1) * N <= last * block.stride};
  }
  if (block.heads == N || begin >= end) {
    return {values + first, end - begin, block.stride, 0, true};
  }
  return {values + first, end - begin - 1, block.stride, block.heads,
          (end - 1) * block.stride + N <= last * block.stride};
}

// The last vector, with `other` past its values.
template <int N, class T, class A = Accumulator<std::remove_const_t<T>>>
JAXGNN_INLINE Vector<A, N> load_rest(const RowValues<T>& row, A other) {
  const T* from = row.values + row.full * row.step;
  std::remove_const_t<T> some[N] = {};
  if (!row.whole) {
    std::memcpy(some, from, row.rest * sizeof(T));
    from = some;
  }
  Index<A, N> lane{};
  JAXGNN_UNROLL
  for (int l = 0; l < N; ++l) lane[l] = l;
  return lane < row.rest ? load<N>(from) : Vector<A, N>{} + other;
}

// Copies kSize to 2 kSize values: the first ones, and the last.
template <int kSize, class T>
JAXGNN_INLINE void copy_ends(T* to, const T* from, int64_t count) {
  std::memcpy(to, from, kSize * sizeof(T));
  std::memcpy(to + count - kSize, from + count - kSize, kSize * sizeof(T));
}

// Stores the first `count` lanes, 1 to N <= 16. A copy whose size is not known when it is compiled
// is a call, which takes as long as a short row.
template <int N, class T, class A = Accumulator<T>>
JAXGNN_INLINE void store_few(T* to, Vector<A, N> v, int64_t count) {
  if (count > N) __builtin_unreachable();
  T from[N];
  store<N>(from, v);
  if (count >= 8) return copy_ends<8>(to, from, count);
  if (count >= 4) return copy_ends<4>(to, from, count);
  if (count >= 2) return copy_ends<2>(to, from, count);
  *to = *from;
}

// Calls f(vector) for each vector of the row's values, in order.
template <int N, class T, class A, class F>
JAXGNN_INLINE void over_values(const RowValues<T>& row, A other, const F& f) {
  for (int64_t v = 0; v < row.full; ++v) f(load<N>(row.values + v * row.step));
  if (row.rest > 0) f(load_rest<N>(row, other));
}

}  // namespace
}  // namespace jaxgnn
