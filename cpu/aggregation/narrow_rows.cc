// Sums and extrema of rows narrower than a vector.
//
// Edge values are reduced several edges a vector. Neighbors are taken one by one, in vectors of as
// many lanes as there are features: in the order of the edges, so that a column's sum does not
// depend on how many columns there are, and features shared out over devices have the bits that
// they have on one.
#include "cpu/aggregation/narrow_rows.h"

#include "cpu/aggregation/reductions.h"
#include "cpu/aggregation/row_lanes.h"
#include "cpu/core/edge_values.h"

namespace jaxgnn::aggregation {
namespace {

// What a reduction begins with.
template <class A, Kind kKind>
constexpr A kStart = kKind == Kind::sum ? A{0} : -static_cast<A>(__builtin_inf());

template <Kind kKind, class V>
JAXGNN_INLINE V combine(V a, V b) {
  return kKind == Kind::sum ? a + b : maximum(a, b);
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
template <class T, Kind kKind, int N, bool kPacked>
struct EdgeValues {
  using A = Accumulator<T>;
  using Reduced = Vector<A, N>;

  const SpmmArgs& args;
  const A sign = sign_of<A>(args);
  const HeadBlock block{args.width, 0, static_cast<int>(args.width)};

  JAXGNN_INLINE Reduced reduce(int64_t, int64_t begin, int64_t end) const {
    const auto of_row = row_values<N, kPacked>(static_cast<const T*>(args.x), block, begin, end,
                                               args.rows.num_edges);
    Reduced reduced = Reduced{} + kStart<A, kKind>;
    over_values<N>(of_row, sign * kStart<A, kKind>, [&](Reduced v) {
      reduced = combine<kKind>(reduced, kKind == Kind::sum ? v : sign * v);
    });
    return kPacked ? over_lanes<A, N>(reduced, block.heads, combine<kKind, Reduced>) : reduced;
  }

  JAXGNN_INLINE void finish(int64_t row, int64_t edges, Reduced reduced) const {
    T* out = static_cast<T*>(args.out) + row * args.width;
    store_few<N>(out, result_of<A>(args, edges, reduced), args.width);
  }

  static JAXGNN_INLINE Reduced unite(Reduced a, Reduced b) { return combine<kKind>(a, b); }
  JAXGNN_INLINE void store_partial(int64_t part, Reduced reduced) const {
    std::memcpy(partial_of<A>(args, part), &reduced, args.width * sizeof(A));
  }
  JAXGNN_INLINE Reduced load_partial(int64_t part) const {
    Reduced reduced{};
    std::memcpy(&reduced, partial_of<A>(args, part), args.width * sizeof(A));
    return reduced;
  }
};

// The neighbors' features, with the edges' weights if there are any.
template <class T, Kind kKind, class Lanes>
struct Neighbors {
  using A = Accumulator<T>;
  using V = typename Lanes::V;
  using Values = typename Lanes::Values;
  struct Reduced {
    Values values, ties;
  };

  const SpmmArgs& args;
  const Lanes lanes;
  const A sign = sign_of<A>(args);
  const bool near = stays_near(args.num_columns, args.width* int64_t{sizeof(T)});

  JAXGNN_INLINE Reduced reduce(int64_t, int64_t begin, int64_t end) const {
    return args.weights == nullptr ? reduce_edges<false>(begin, end)
                                   : reduce_edges<true>(begin, end);
  }

  template <bool kWeighted>
  JAXGNN_INLINE Reduced reduce_edges(int64_t begin, int64_t end) const {
    const T* x = static_cast<const T*>(args.x);
    const A* weights = static_cast<const A*>(args.weights);
    const int64_t width = lanes.width;
    Reduced reduced{};
    reduced.values.each([](V& v, int) { v += kStart<A, kKind>; });
    over_neighbors(
        args.rows, near, begin, end,
        [=, this](int64_t column) { lanes.prefetch_row(x + column * width); },
        [&](int64_t e, int64_t column) {
          reduced.values.each([&](V& v, int k) {
            V value = lanes.load_part(x + column * width, k);
            if constexpr (kKind == Kind::sum) {
              v += kWeighted ? weights[e] * value : value;
              return;
            }
            // Extrema are of the products as they would be stored.
            if (kWeighted) value = Lanes::rounded(weights[e] * value);
            if constexpr (kKind == Kind::max) v = maximum(v, sign * value);
            if constexpr (kKind == Kind::ties) {
              unite_ties(v, reduced.ties.of[k], sign * value, V{} + A{kTie});
            }
          });
        });
    return reduced;
  }

  JAXGNN_INLINE void finish(int64_t row, int64_t edges, Reduced reduced) const {
    const int64_t at = row * lanes.width;
    if constexpr (kKind == Kind::ties) {
      reduced.ties.each([](V& v, int) { v = v < A{kMostTies} ? v : V{} + A{kMostTies}; });
      lanes.store_row(static_cast<Ties<T>*>(args.ties) + at, reduced.ties);
    }
    reduced.values.each([&](V& v, int) { v = result_of<A>(args, edges, v); });
    lanes.store_row(static_cast<T*>(args.out) + at, reduced.values);
  }

  static JAXGNN_INLINE Reduced unite(Reduced a, Reduced b) {
    a.values.each([&](V& v, int k) {
      if constexpr (kKind == Kind::ties) {
        unite_ties(v, a.ties.of[k], b.values.of[k], b.ties.of[k]);
      } else {
        v = combine<kKind>(v, b.values.of[k]);
      }
    });
    return a;
  }
  // The parts' ties follow all of their values.
  JAXGNN_INLINE void store_partial(int64_t part, Reduced reduced) const {
    lanes.store_row(partial_of<A>(args, part), reduced.values);
    if (kKind == Kind::ties)
      lanes.store_row(partial_of<A>(args, args.rows.num_chunks + part), reduced.ties);
  }
  JAXGNN_INLINE Reduced load_partial(int64_t part) const {
    Reduced reduced{lanes.load_row(partial_of<A>(args, part)), {}};
    if (kKind == Kind::ties)
      reduced.ties = lanes.load_row(partial_of<A>(args, args.rows.num_chunks + part));
    return reduced;
  }
};

template <class T, Kind kKind>
void reduce(const SpmmArgs& args, const Executor& executor) {
  if (kKind != Kind::ties && args.rows.columns == nullptr && args.weights == nullptr) {
    return with_head_lanes<Accumulator<T>>(args.width, [&](auto lanes, auto packed) {
      using Of = EdgeValues<T, kKind, decltype(lanes)::value, decltype(packed)::value != 0>;
      reduce_rows(args.rows, executor, Of{args}, args.row_limit);
    });
  }
  constexpr int kMost = kKind == Kind::ties ? kWidestCompared<T> : kWidest<T>;
  with_row_lanes<T, kMost>(args.width, [&](auto lanes) {
    reduce_rows(args.rows, executor, Neighbors<T, kKind, decltype(lanes)>{args, lanes},
                args.row_limit);
  });
}

}  // namespace

namespace JAXGNN_ISA {

bool takes_narrow_rows(const SpmmArgs& args) { return takes_row_lanes(args, args.ties != nullptr); }

void reduce_narrow_rows(const SpmmArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    using T = decltype(type);
    with_kind(args, [&](auto kind) { reduce<T, decltype(kind)::value>(args, executor); });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
