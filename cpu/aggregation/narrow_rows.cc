// Rows narrower than a vector.
//
// Edge values are reduced several edges a vector. Neighbors are taken one by one, in vectors of as
// many lanes as there are features: in the order of the edges, so that a column's sum does not
// depend on how many columns there are, and features shared out over devices have the bits that
// they have on one.
#include "cpu/aggregation/narrow_rows.h"

#include "cpu/core/edge_values.h"

namespace jaxgnn::aggregation {
namespace {

template <class A, bool kSums>
constexpr A kStart = kSums ? A{0} : -static_cast<A>(__builtin_inf());

template <bool kSums, class V>
JAXGNN_INLINE V combine(V a, V b) {
  return kSums ? a + b : maximum(a, b);
}

// min is the max of the negated values, negated.
template <class A>
A sign_of(const SpmmArgs& args) {
  return args.reduce == Reduce::kMin ? A{-1} : A{1};
}

// The result of a row, of what its `edges` were reduced to.
template <class A, class V>
JAXGNN_INLINE V result_of(const SpmmArgs& args, int64_t edges, V reduced) {
  if (edges <= 0) return V{};
  reduced *= sign_of<A>(args);
  return args.reduce == Reduce::kMean ? reduced / static_cast<A>(edges) : reduced;
}

// Values of the edges: H of an edge, in vectors of N lanes.
template <class T, bool kSums, int N, bool kPacked>
struct EdgeValues {
  using A = Accumulator<T>;
  using Reduced = Vector<A, N>;

  const SpmmArgs& args;
  const A sign = sign_of<A>(args);
  const HeadBlock block{args.width, 0, static_cast<int>(args.width)};

  JAXGNN_INLINE Reduced reduce(int64_t begin, int64_t end) const {
    const auto of_row = row_values<N, kPacked>(static_cast<const T*>(args.x), block, begin, end,
                                               args.rows.num_edges);
    Reduced reduced = Reduced{} + kStart<A, kSums>;
    over_values<N>(of_row, sign * kStart<A, kSums>,
                   [&](Reduced v) { reduced = combine<kSums>(reduced, sign * v); });
    if constexpr (!kPacked) return reduced;
    return over_lanes<A, N>(reduced, block.heads, combine<kSums, Reduced>);
  }

  static JAXGNN_INLINE Reduced unite(Reduced a, Reduced b) { return combine<kSums>(a, b); }
  JAXGNN_INLINE Reduced result(int64_t edges, Reduced reduced) const {
    return result_of<A>(args, edges, reduced);
  }

  JAXGNN_INLINE Reduced load_partial(const A* from) const {
    Reduced reduced{};
    std::memcpy(&reduced, from, args.width * sizeof(A));
    return reduced;
  }

  template <class S>
  JAXGNN_INLINE void store_values(S* to, Reduced reduced) const {
    S stored[N];
    store<N>(stored, reduced);
    for (int64_t f = 0; f < args.width; ++f) to[f] = stored[f];
  }
};

// The neighbors' features, with the edges' weights if there are any: a vector of N lanes, or two
// that overlap of a width that is no power of two.
template <class T, bool kSums, int N, int kVectors>
struct Neighbors {
  using A = Accumulator<T>;
  // GCC keeps a vector of one lane in memory.
  using V = std::conditional_t<N == 1, A, Vector<A, N>>;
  struct Reduced {
    V of[kVectors];
  };

  const SpmmArgs& args;
  const A sign = sign_of<A>(args);
  const int64_t width = kVectors == 1 ? N : args.width;
  const int64_t last = width - N;  // where the last vector begins
  const bool near = stays_near(args.num_columns, width* int64_t{sizeof(T)});

  JAXGNN_INLINE Reduced reduce(int64_t begin, int64_t end) const {
    return args.weights == nullptr ? reduce_edges<false>(begin, end)
                                   : reduce_edges<true>(begin, end);
  }

  // Loops of their own for the usual columns: each test within one takes as long as an edge.
  template <bool kWeighted>
  JAXGNN_INLINE Reduced reduce_edges(int64_t begin, int64_t end) const {
    const Rows& csr = args.rows;
    if (csr.columns == nullptr || csr.wide_columns) {
      return add_edges<kWeighted>(begin, end, [&](int64_t e) { return column_of(csr, e); });
    }
    const int32_t* columns = static_cast<const int32_t*>(csr.columns);
    if (near) return add_edges<kWeighted>(begin, end, [=](int64_t e) { return columns[e]; });
    const char* x = static_cast<const char*>(args.x);
    const int64_t row_bytes = width * sizeof(T), last_edge = csr.num_edges - 1;
    return add_edges<kWeighted>(begin, end, [=](int64_t e) {
      __builtin_prefetch(x + columns[min_of(e + kAhead, last_edge)] * row_bytes);
      return columns[e];
    });
  }

  template <bool kWeighted, class Column>
  JAXGNN_INLINE Reduced add_edges(int64_t begin, int64_t end, const Column& column) const {
    const T* x = static_cast<const T*>(args.x);
    const A* weights = static_cast<const A*>(args.weights);
    Reduced reduced;
    for (V& v : reduced.of) v = V{} + kStart<A, kSums>;
    for (int64_t e = begin; e < end; ++e) {
      const T* from = x + int64_t{column(e)} * width;
      JAXGNN_UNROLL
      for (int k = 0; k < kVectors; ++k) {
        V value = load_lanes(from + k * last);
        // Extrema are of the products as they would be stored.
        if (kWeighted) value = kSums ? weights[e] * value : rounded(weights[e] * value);
        reduced.of[k] = combine<kSums>(reduced.of[k], kSums ? value : sign * value);
      }
    }
    return reduced;
  }

  static JAXGNN_INLINE Reduced unite(Reduced a, const Reduced& b) {
    for (int k = 0; k < kVectors; ++k) a.of[k] = combine<kSums>(a.of[k], b.of[k]);
    return a;
  }
  JAXGNN_INLINE Reduced result(int64_t edges, Reduced reduced) const {
    for (V& v : reduced.of) v = result_of<A>(args, edges, v);
    return reduced;
  }

  JAXGNN_INLINE Reduced load_partial(const A* from) const {
    Reduced reduced;
    for (int k = 0; k < kVectors; ++k) reduced.of[k] = load_lanes(from + k * last);
    return reduced;
  }

  template <class S>
  JAXGNN_INLINE void store_values(S* to, const Reduced& reduced) const {
    for (int k = 0; k < kVectors; ++k) {
      if constexpr (N == 1) {
        store<1>(to, Vector<A, 1>{reduced.of[k]});
      } else {
        store<N>(to + k * last, reduced.of[k]);
      }
    }
  }

 private:
  static constexpr int64_t kAhead = 32;  // edges

  template <class S>
  static JAXGNN_INLINE V load_lanes(const S* from) {
    if constexpr (N == 1) {
      return load<1>(from)[0];
    } else {
      return load<N>(from);
    }
  }
  static JAXGNN_INLINE V rounded(V v) {
    if constexpr (N == 1) {
      return Convert<T, 1>::rounded(Vector<A, 1>{v})[0];
    } else {
      return Convert<T, N>::rounded(v);
    }
  }
};

template <class T, class Of>
void reduce_rows(const Of& of, const Executor& executor) {
  using A = Accumulator<T>;
  const SpmmArgs& args = of.args;
  const Rows& csr = args.rows;
  const int64_t width = args.width, longest = longest_whole_row(csr);
  A* partials = static_cast<A*>(args.partials);
  const auto finish = [&](int64_t row, int64_t edges, const typename Of::Reduced& reduced) {
    of.store_values(static_cast<T*>(args.out) + row * width, of.result(edges, reduced));
  };
  constexpr int64_t kEdgeBytes = 32;  // however narrow, an edge costs as much as that
  over_rows(csr, executor, 1, kEdgeBytes, [&](int64_t, const Work& work) {
    if (work.part >= 0) {
      return of.store_values(partials + work.part * width, of.reduce(work.begin, work.end));
    }
    int64_t begin = row_begin(csr, work.first);
    for (int64_t row = work.first; row < work.last; ++row) {
      const int64_t end = row_begin(csr, row + 1);
      if (end - begin <= longest) finish(row, end - begin, of.reduce(begin, end));
      begin = end;
    }
  });
  over_split_rows(csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    auto reduced = of.load_partial(partials + first * width);
    for (int64_t part = first + 1; part < last; ++part) {
      reduced = of.unite(reduced, of.load_partial(partials + part * width));
    }
    finish(row, row_begin(csr, row + 1) - row_begin(csr, row), reduced);
  });
}

// Calls f(Constant<N>, Constant<vectors>) for the vectors of a row of fewer than kLanes values.
template <class A, int N = 1, class F>
JAXGNN_INLINE void with_row_lanes(int64_t width, const F& f) {
  if constexpr (2 * N < kLanes<A>) {
    if (width >= 2 * N) return with_row_lanes<A, 2 * N>(width, f);
  }
  if (width == N) return f(Constant<N>{}, Constant<1>{});
  f(Constant<N>{}, Constant<2>{});
}

template <class T, bool kSums>
void reduce(const SpmmArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  if (args.rows.columns == nullptr && args.weights == nullptr) {
    return with_head_lanes<A>(args.width, [&](auto lanes, auto packed) {
      using Of = EdgeValues<T, kSums, decltype(lanes)::value, decltype(packed)::value != 0>;
      reduce_rows<T>(Of{args}, executor);
    });
  }
  with_row_lanes<A>(args.width, [&](auto lanes, auto vectors) {
    using Of = Neighbors<T, kSums, decltype(lanes)::value, decltype(vectors)::value>;
    reduce_rows<T>(Of{args}, executor);
  });
}

}  // namespace

namespace JAXGNN_ISA {

bool takes_narrow_rows(const SpmmArgs& args) {
  const int64_t lanes = args.type == Type::kF64 ? kLanes<double> : kLanes<float>;
  return args.width < lanes && args.ties == nullptr && (args.weights == nullptr || args.heads == 1);
}

void reduce_narrow_rows(const SpmmArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    using T = decltype(type);
    if (args.reduce == Reduce::kSum || args.reduce == Reduce::kMean) {
      reduce<T, true>(args, executor);
    } else {
      reduce<T, false>(args, executor);
    }
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
