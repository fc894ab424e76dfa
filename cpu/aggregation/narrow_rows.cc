// Rows narrower than a vector. A loop over a short row costs more for where it ends than for its
// edges, so that gathers are loops of their own, over some hundred edges of several rows.
//
// Edge values, and what extrema over neighbors gather, are reduced several edges a vector. Sums
// over neighbors take the edges in order: a column's does not depend on how many columns there are,
// so that features shared out over devices have the bits that they have on one.
#include "cpu/aggregation/narrow_rows.h"

#include "cpu/core/edge_values.h"

namespace jaxgnn::aggregation {
namespace {

constexpr int64_t kGathered = 1024;  // values

bool has_edge_values(const SpmmArgs& args) {
  return args.rows.columns == nullptr && args.weights == nullptr;
}

template <class T, bool kSums, int N, bool kPacked>
struct Reduction {
  using A = Accumulator<T>;
  using V = Vector<A, N>;
  static constexpr A kStart = kSums ? A{0} : -static_cast<A>(__builtin_inf());
  static constexpr auto combine = [](V a, V b) { return kSums ? a + b : maximum(a, b); };

  const SpmmArgs& args;
  const HeadBlock block;
  const A sign;  // min is the max of the negated values, negated

  // Reduces the edges [begin, end) of an array that ends with `last` to the first lanes.
  template <class S>
  JAXGNN_INLINE V reduce(const S* values, int64_t begin, int64_t end, int64_t last) const {
    V result = V{} + kStart;
    over_values<N>(row_values<N, kPacked>(values, block, begin, end, last), sign * kStart,
                   [&](V v) { result = combine(result, sign * v); });
    return kPacked ? over_lanes<A, N>(result, block.heads, combine) : result;
  }

  JAXGNN_INLINE void finish(int64_t row, int64_t count, V sums) const {
    sums *= sign;
    if (args.reduce == Reduce::kMean) sums /= static_cast<A>(max_of(count, 1));
    if (count <= 0) sums = V{};
    T stored[N];
    store<N>(stored, sums);
    T* out = static_cast<T*>(args.out) + row * args.width;
    for (int64_t f = 0; f < args.width; ++f) out[f] = stored[f];
  }

  // Where edges have values of their own.
  JAXGNN_OUTLINE void run_edges(const Work& work) const {
    const Rows& csr = args.rows;
    const T* values = static_cast<const T*>(args.x);
    if (work.part >= 0) {
      return put_partial(work.part, reduce(values, work.begin, work.end, csr.num_edges));
    }
    const int64_t longest = longest_whole_row(csr);
    for (int64_t row = work.first; row < work.last; ++row) {
      const int64_t begin = row_begin(csr, row), end = row_begin(csr, row + 1);
      if (end - begin > longest) continue;
      finish(row, end - begin, reduce(values, begin, end, csr.num_edges));
    }
  }

  // Where they are gathered. `kWidth`: the features of a row, or 0 if that is no power of two.
  template <int kWidth>
  JAXGNN_OUTLINE void run_gathered(const Work& work) const {
    const Rows& csr = args.rows;
    const int64_t most = kGathered / args.width;  // edges
    A values[kGathered + N];  // a vector may be read from the last row's beginning
    if (work.part >= 0) {
      return put_partial(work.part, reduce_gathered<kWidth>(work.begin, work.end, values));
    }
    const int64_t longest = longest_whole_row(csr);
    for (int64_t row = work.first; row < work.last;) {
      const int64_t first = row_begin(csr, row);
      int64_t next = row + 1, end = row_begin(csr, next);
      if (end - first > most || end - first > longest) {
        if (end - first <= longest) {
          finish(row, end - first, reduce_gathered<kWidth>(first, end, values));
        }
        row = next;
        continue;
      }
      while (next < work.last) {
        const int64_t more = row_begin(csr, next + 1);
        if (more - first > most || more - end > longest) break;
        end = max_of(end, more);
        ++next;
      }
      gather<kWidth>(first, end, values);
      const V start = V{} + kStart;
      for (; row < next; ++row) {
        const int64_t begin = max_of(row_begin(csr, row), first) - first;
        const int64_t stop = min_of(row_begin(csr, row + 1), end) - first;
        finish(row, stop - begin, combine_gathered<kWidth>(start, values, begin, stop, first));
      }
    }
  }

  // Reduces [begin, end), gathered part by part.
  template <int kWidth>
  JAXGNN_INLINE V reduce_gathered(int64_t begin, int64_t end, A* values) const {
    const int64_t most = kGathered / args.width;
    V result = V{} + kStart;
    for (; begin < end; begin += most) {
      const int64_t count = min_of(end - begin, most);
      gather<kWidth>(begin, begin + count, values);
      result = combine_gathered<kWidth>(result, values, 0, count, begin);
    }
    return result;
  }

  // Adds the gathered edges [begin, end), which are those of the graph from `first` on.
  template <int kWidth>
  JAXGNN_INLINE V combine_gathered(V result, const A* values, int64_t begin, int64_t end,
                                   int64_t first) const {
    if constexpr (kSums) {
      constexpr int kLanesOfRow = kWidth > 0 ? kWidth : N;
      // GCC keeps a vector of one lane in memory.
      using Sum = std::conditional_t<kLanesOfRow == 1, A, Vector<A, kLanesOfRow>>;
      const A* weights = static_cast<const A*>(args.weights);
      const int64_t width = kWidth > 0 ? kWidth : args.width;
      Sum sum, value;
      std::memcpy(&sum, &result, sizeof(sum));
      const A* from = values + begin * width;
      if (args.weights == nullptr) {
        for (int64_t e = begin; e < end; ++e, from += width) {
          std::memcpy(&value, from, sizeof(value));
          sum += value;
        }
      } else {
        for (int64_t e = begin; e < end; ++e, from += width) {
          std::memcpy(&value, from, sizeof(value));
          sum += weights[first + e] * value;
        }
      }
      std::memcpy(&result, &sum, sizeof(sum));
      return result;
    } else {
      return combine(result, reduce<A>(values, begin, end, kGathered / args.width));
    }
  }

  // The rows of x of the edges [begin, end), side by side; for extrema weighted ones.
  template <int kWidth>
  JAXGNN_INLINE void gather(int64_t begin, int64_t end, A* to) const {
    const Rows& csr = args.rows;
    const T* x = static_cast<const T*>(args.x);
    const A* weights = static_cast<const A*>(args.weights);
    const int64_t width = kWidth > 0 ? kWidth : args.width;
    const bool near = stays_near(args.num_columns, width * int64_t{sizeof(T)});
    for (int64_t e = begin; e < end; ++e, to += width) {
      const T* from = x + column_of(csr, e) * width;
      if (!near) {
        __builtin_prefetch(x + column_of(csr, min_of(e + 32, csr.num_edges - 1)) * width);
      }
      const A weight = weights == nullptr ? A{1} : weights[e];
      if constexpr (kWidth > 0) {
        copy<kWidth>(from, weight, weights != nullptr, to);
      } else {
        // Two halves of a vector that overlap.
        copy<N / 2>(from, weight, weights != nullptr, to);
        copy<N / 2>(from + width - N / 2, weight, weights != nullptr, to + width - N / 2);
      }
    }
  }
  template <int kCount>
  static JAXGNN_INLINE void copy(const T* from, A weight, bool weighted, A* to) {
    auto v = load<kCount>(from);
    // As the product would be stored; sums take the weight when they add.
    if (!kSums && weighted) v = Convert<T, kCount>::rounded(weight * v);
    std::memcpy(to, &v, sizeof(v));
  }

  JAXGNN_INLINE void put_partial(int64_t part, V sums) const {
    std::memcpy(static_cast<A*>(args.partials) + part * args.width, &sums, args.width * sizeof(A));
  }

  void run(const Work& work) const {
    if (has_edge_values(args)) return run_edges(work);
    if constexpr (kPacked) {
      if (args.width == 1) return run_gathered<1>(work);
      if (args.width == 2) return run_gathered<2>(work);
      if constexpr (N > 4) {
        if (args.width == 4) return run_gathered<4>(work);
      }
      if constexpr (N > 8) {
        if (args.width == 8) return run_gathered<8>(work);
      }
    } else {
      run_gathered<0>(work);
    }
  }
};

template <class T, bool kSums>
void reduce(const SpmmArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const A sign = args.reduce == Reduce::kMin ? A{-1} : A{1};
  with_head_lanes<A>(args.width, [&](auto lanes, auto packed) {
    constexpr int N = decltype(lanes)::value;
    const Reduction<T, kSums, N, decltype(packed)::value != 0> of{
        args, {args.width, 0, static_cast<int>(args.width)}, sign};
    const int64_t edge_bytes = 32;  // however narrow, an edge costs as much as that
    over_rows(args.rows, executor, 1, edge_bytes, [&](int64_t, const Work& work) { of.run(work); });
    over_split_rows(args.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
      const A* parts = static_cast<const A*>(args.partials);
      Vector<A, N> sums = Vector<A, N>{} + of.kStart;
      for (int64_t part = first; part < last; ++part) {
        Vector<A, N> more{};
        std::memcpy(&more, parts + part * args.width, args.width * sizeof(A));
        sums = of.combine(sums, more);
      }
      of.finish(row, row_begin(args.rows, row + 1) - row_begin(args.rows, row), sums);
    });
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
