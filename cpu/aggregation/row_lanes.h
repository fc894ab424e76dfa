// Reductions to rows narrower than a vector, whose edges cost little more than the loop over them.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/rows.h"

namespace jaxgnn::aggregation {
namespace {

// A row of fewer than kLanes values: a vector of N lanes, or two that overlap of a width that is no
// power of two.
template <class T, int N, int kVectors>
struct RowLanes {
  using A = Accumulator<T>;
  // GCC keeps a vector of one lane in memory, and selects between scalars by branches.
  static constexpr int kHeld = N == 1 ? 2 : N;
  using V = Vector<A, kHeld>;
  struct Values {
    V of[kVectors];

    template <class F>
    JAXGNN_INLINE void each(const F& f) {
      JAXGNN_UNROLL
      for (int k = 0; k < kVectors; ++k) f(of[k], k);
    }
  };

  explicit RowLanes(int64_t given) : width(kVectors == 1 ? N : given), last(width - N) {}

  const int64_t width;
  const int64_t last;  // where the last vector begins

  template <class S>
  JAXGNN_INLINE V load_part(const S* row, int k) const {
    if constexpr (N == 1) {
      return V{load<1>(row)[0], 0};
    } else {
      return load<N>(row + k * last);
    }
  }
  template <class S>
  JAXGNN_INLINE Values load_row(const S* row) const {
    Values values;
    values.each([&](V& v, int k) { v = load_part(row, k); });
    return values;
  }
  template <class S>
  JAXGNN_INLINE void store_row(S* row, Values values) const {
    values.each([&](V v, int k) {
      if constexpr (N == 1) {
        store<1>(row, Vector<A, 1>{v[0]});
      } else {
        store<N>(row + k * last, v);
      }
    });
  }
  // Rows that are no power of two may lie in two lines of the cache.
  template <class S>
  JAXGNN_INLINE void prefetch_row(const S* row) const {
    __builtin_prefetch(row);
    if (kVectors > 1) __builtin_prefetch(row + width - 1);
  }
  static JAXGNN_INLINE V rounded(V v) { return Convert<T, kHeld>::rounded(v); }
};

// The widest rows that take these loops: of fewer values than a vector has lanes,
template <class T>
constexpr int kWidest = kLanes<T> - 1;
// and where rows are compared. Wider ones wait for memory, whose loads the kernels for all widths
// have further ahead.
template <class T>
constexpr int kWidestCompared = kWidest<T> < 4 ? kWidest<T> : 4;

// Whether these loops take the rows of a product or of its derivative, `compared` or not.
template <class Args>
bool takes_row_lanes(const Args& args, bool compared) {
  const bool one_weight = args.weights == nullptr || args.heads == 1;
  const bool wide_type = args.type == Type::kF64;
  const int widest = compared ? (wide_type ? kWidestCompared<double> : kWidestCompared<float>)
                              : (wide_type ? kWidest<double> : kWidest<float>);
  return one_weight && args.width <= widest;
}

// Calls f(RowLanes) for rows of `width` <= kMost values.
template <class T, int kMost, int N = 1, class F>
JAXGNN_INLINE void with_row_lanes(int64_t width, const F& f) {
  if constexpr (2 * N <= kMost) {
    if (width >= 2 * N) return with_row_lanes<T, kMost, 2 * N>(width, f);
  }
  if constexpr (1 < N && N < kMost) {
    if (width > N) return f(RowLanes<T, N, 2>(width));
  }
  f(RowLanes<T, N, 1>(width));
}

// The scratch of a part of a row.
template <class A, class Args>
JAXGNN_INLINE A* partial_of(const Args& args, int64_t part) {
  return static_cast<A*>(args.partials) + part * args.width;
}

// Calls f(edge, column) for the edges [begin, end), and prefetch(column) of some further on where
// what is gathered is not `near`: loops of their own for the usual columns, in which a test takes
// as long as an edge.
template <class Prefetch, class F>
JAXGNN_INLINE void over_neighbors(const Rows& csr, bool near, int64_t begin, int64_t end,
                                  const Prefetch& prefetch, const F& f) {
  constexpr int64_t kAhead = 32;  // edges
  const int64_t last = csr.num_edges - 1;
  if (csr.columns == nullptr || csr.wide_columns) {
    for (int64_t e = begin; e < end; ++e) {
      if (!near && csr.columns != nullptr) prefetch(column_of(csr, min_of(e + kAhead, last)));
      f(e, column_of(csr, e));
    }
    return;
  }
  const int32_t* columns = static_cast<const int32_t*>(csr.columns);
  if (near) {
    for (int64_t e = begin; e < end; ++e) f(e, int64_t{columns[e]});
    return;
  }
  for (int64_t e = begin; e < end; ++e) {
    prefetch(int64_t{columns[min_of(e + kAhead, last)]});
    f(e, int64_t{columns[e]});
  }
}

// Reduces the first `row_limit` edges of each row: `of` has reduce(row, begin, end), which gives a
// `Reduced`, unite of two of them, finish(row, edges, reduced), and store_partial and load_partial
// of a part's.
template <class Of>
void reduce_rows(const Rows& csr, const Executor& executor, const Of& of,
                 int64_t row_limit = kNoLimit) {
  const int64_t longest = longest_whole_row(csr);
  constexpr int64_t kEdgeBytes = 32;  // however narrow, an edge costs as much as that
  over_rows(csr, executor, 1, kEdgeBytes, [&](int64_t, const Work& work) {
    if (work.part >= 0) {
      return of.store_partial(work.part, of.reduce(work.first, work.begin, work.end));
    }
    int64_t begin = row_begin(csr, work.first);
    for (int64_t row = work.first; row < work.last; ++row) {
      const int64_t end = row_begin(csr, row + 1);
      if (end - begin <= longest) {
        const int64_t count = min_of(end - begin, row_limit);
        of.finish(row, count, of.reduce(row, begin, begin + count));
      }
      begin = end;
    }
  });
  over_chunked_rows(csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    auto reduced = of.load_partial(first);
    for (int64_t part = first + 1; part < last; ++part) {
      reduced = of.unite(reduced, of.load_partial(part));
    }
    of.finish(row, row_begin(csr, row + 1) - row_begin(csr, row), reduced);
  });
}

}  // namespace
}  // namespace jaxgnn::aggregation
