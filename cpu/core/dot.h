// Dot products of feature rows for every edge: the loops that sddmm.cc and extremum.cc share.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/core/rows.h"

namespace jaxgnn {
namespace {

// The sum of the lanes, halves first: an order that depends on the number of lanes alone.
template <class A, int N>
JAXGNN_INLINE A sum_lanes(Vector<A, N> v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    Vector<A, N / 2> halves[2];
    std::memcpy(halves, &v, sizeof(v));
    return sum_lanes<A, N / 2>(halves[0] + halves[1]);
  }
}

// The last `count` < 2 N terms, by vectors of N, N / 2, ... lanes. term(N, f) is the vector of the
// terms from f on.
template <class A, int N, class Term>
JAXGNN_INLINE A sum_tail(int64_t f, int64_t end, const Term& term) {
  A sum = 0;
  if (f + N <= end) {
    sum = sum_lanes<A, N>(term(Constant<N>{}, f));
    f += N;
  }
  if constexpr (N > 1) {
    if (f < end) sum += sum_tail<A, N / 2>(f, end, term);
  }
  return sum;
}

// The sum of the terms [f, end) in four chains, so that additions overlap.
template <class A, int N, class Term>
JAXGNN_INLINE A sum_terms(int64_t f, int64_t end, const Term& term) {
  A sum = 0;
  if (f + 4 * N <= end) {
    Vector<A, N> chains[4];
    JAXGNN_UNROLL
    for (int k = 0; k < 4; ++k) chains[k] = term(Constant<N>{}, f + k * N);
    for (f += 4 * N; f + 4 * N <= end; f += 4 * N) {
      JAXGNN_UNROLL
      for (int k = 0; k < 4; ++k) chains[k] += term(Constant<N>{}, f + k * N);
    }
    sum = sum_lanes<A, N>((chains[0] + chains[1]) + (chains[2] + chains[3]));
  }
  for (; f + 2 * N <= end; f += N) sum += sum_lanes<A, N>(term(Constant<N>{}, f));
  return f < end ? sum + sum_tail<A, N>(f, end, term) : sum;
}

// Calls edge(row, e, index) for every edge. Edges are distributed evenly among workers, independent
// of the rows.
template <class F>
void over_edges(const Rows& csr, const Executor& executor, int64_t edge_bytes, const F& edge) {
  const int64_t edges = csr.num_edges;
  const int64_t items = item_count(executor, edges, edge_bytes);
  parallel_for(executor, items, [&](int64_t item) {
    int64_t e = edges * item / items;
    const int64_t last = edges * (item + 1) / items;
    for (int64_t row = row_of(csr, e); e < last; ++row) {
      const int64_t end = row + 1 < csr.num_rows ? min_of(row_begin(csr, row + 1), last) : last;
      for (; e < end; ++e) edge(row, e, column_of(csr, e));
    }
  });
}

}  // namespace
}  // namespace jaxgnn
