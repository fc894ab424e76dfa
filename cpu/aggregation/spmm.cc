#include "cpu/aggregation/spmm.h"

#include <algorithm>

#include "cpu/aggregation/narrow_rows.h"
#include "cpu/aggregation/reductions.h"
#include "cpu/core/rows.h"
#include "cpu/core/slices.h"

namespace jaxgnn::aggregation {
namespace {

// Sums that stay in registers: up to 256 floats with AVX-512. Fewer, in more passes, gather less
// at a time than the caches and the page tables are good at.
constexpr int kMaxVectors = kRegisters / 2;

// Of rows with a limit, the edge to prefetch: so many of those that count after the one that is
// read.
class EdgeAhead {
 public:
  EdgeAhead(const Rows& csr, int64_t limit, int64_t row, int64_t distance)
      : csr_(csr), limit_(limit), column_bytes_(csr.wide_columns ? 8 : 4), row_(row - 1) {
    for (int64_t i = 0; i < distance; ++i) next();
  }

  JAXGNN_INLINE int64_t next() {
    if (++edge_ < end_) return edge_;
    while (row_ + 1 < csr_.num_rows) {
      edge_ = row_begin(csr_, ++row_);
      end_ = edge_ + min_of(row_begin(csr_, row_ + 1) - edge_, limit_);
      // Columns of different rows lie too far apart for the processor to expect them.
      constexpr int64_t kRows = 8;
      const int64_t soon = row_begin(csr_, min_of(row_ + kRows, csr_.num_rows));
      __builtin_prefetch(static_cast<const char*>(csr_.columns) + soon * column_bytes_);
      if (edge_ < end_) return edge_;
    }
    return edge_ = max_of(end_, 1) - 1;
  }

 private:
  const Rows& csr_;
  const int64_t limit_, column_bytes_;
  int64_t row_, edge_ = 0, end_ = 0;
};

// With kLimited, of sums, rows have a limit, and what is prefetched follows it. A function of its
// own: the loop has no register to spare, and with one value more rows of 16 features took a
// quarter longer.
template <class T, int N, int kVectors, Weighting kWeighting, Kind kKind, bool kLimited>
JAXGNN_OUTLINE void run(const SpmmArgs& args, const Slice& slice, int64_t head_width,
                        const Work& work) {
  using A = Accumulator<T>;
  using V = Vector<A, N>;
  constexpr int64_t kBytes = int64_t{kVectors} * N * sizeof(T);
  const Rows& csr = args.rows;
  const int64_t width = args.width, heads = args.heads;
  const int64_t longest = longest_whole_row(csr);
  const T* x = static_cast<const T*>(args.x) + slice.feature;
  const A* weights =
      args.weights == nullptr ? nullptr : static_cast<const A*>(args.weights) + slice.head;
  const A sign = args.reduce == Reduce::kMin ? A{-1} : A{1};
  int64_t features[kVectors];  // where each vector begins
  int64_t weight_offsets[kVectors];
  JAXGNN_UNROLL
  for (int k = 0; k < kVectors; ++k) {
    features[k] = vector_begin<N, kVectors>(k, slice.width);
    weight_offsets[k] = weight_at<kWeighting>(slice, features[k], head_width);
  }

  const bool prefetches = kLimited && csr.columns != nullptr;
  EdgeAhead ahead(csr, args.row_limit, work.first, prefetches ? prefetch_distance(kBytes) : 0);
  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    if constexpr (kLimited) end = min_of(end, begin + args.row_limit);
    V sums[kVectors];
    V ties[kVectors] = {};
    constexpr A start = kKind == Kind::sum ? A{0} : -static_cast<A>(__builtin_inf());
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) sums[k] = V{} + start;
    for (int64_t e = begin; e < end; ++e) {
      const T* from = x + column_of(csr, e) * width;
      if constexpr (kLimited) {
        if (prefetches) prefetch_bytes<kBytes>(x + column_of(csr, ahead.next()) * width);
      } else if (csr.columns != nullptr) {
        prefetch_ahead<kBytes>(csr, e, x, width);
      }
      JAXGNN_UNROLL
      for (int k = 0; k < kVectors; ++k) {
        const V value = load<N>(from + features[k]);
        auto take = [&](V term) {
          if constexpr (kKind == Kind::max) sums[k] = maximum(sums[k], term * sign);
          if constexpr (kKind == Kind::ties)
            unite_ties(sums[k], ties[k], term * sign, V{} + A{kTie});
        };
        if (kWeighting == Weighting::shared && weights == nullptr) {
          if constexpr (kKind == Kind::sum) sums[k] += value;
          if constexpr (kKind != Kind::sum) take(value);
          continue;
        }
        const auto weight = load_weight<N, kWeighting>(weights + e * heads + weight_offsets[k]);
        if constexpr (kKind == Kind::sum) sums[k] += weight * value;
        if constexpr (kKind != Kind::sum) take(Convert<T, N>::rounded(weight * value));
      }
    }
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) {
      const int64_t feature = slice.feature + features[k];
      if (!whole) {
        A* partial = static_cast<A*>(args.partials) + work.part * width + feature;
        std::memcpy(partial, &sums[k], sizeof(V));
        if constexpr (kKind == Kind::ties) {
          std::memcpy(partial + csr.num_chunks * width, &ties[k], sizeof(V));
        }
        continue;
      }
      if constexpr (kKind == Kind::ties) {
        store<N>(static_cast<Ties<T>*>(args.ties) + row * width + feature, ties[k]);
      }
      V result = begin == end ? V{} : sums[k] * sign;
      if (args.reduce == Reduce::kMean && end > begin) result /= static_cast<A>(end - begin);
      store<N>(static_cast<T*>(args.out) + row * width + feature, result);
    }
  }
}

template <class T, Kind kKind>
void reduce(const SpmmArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  constexpr int kMax = kKind == Kind::sum ? kMaxVectors : kNarrowVectors<T>;
  const Slices cut = cut_features<T>(args.width, args.heads, args.weights != nullptr, kMax);
  const int64_t edge_bytes = args.width * static_cast<int64_t>(sizeof(T)) / cut.count;
  over_rows(args.rows, executor, cut.count, edge_bytes, [&](int64_t s, const Work& work) {
    const Slice slice = cut[s];
    with_slice<T, kMax>(cut, slice, [&](auto lanes, auto vectors, auto weighting) {
      constexpr int kLanes = decltype(lanes)::value, kCount = decltype(vectors)::value;
      constexpr Weighting kWeighting = decltype(weighting)::value;
      if constexpr (kKind == Kind::sum) {
        if (args.row_limit != kNoLimit) {
          return run<T, kLanes, kCount, kWeighting, kKind, true>(args, slice, cut.head_width, work);
        }
      }
      run<T, kLanes, kCount, kWeighting, kKind, false>(args, slice, cut.head_width, work);
    });
  });
  over_chunked_rows(args.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    const int64_t width = args.width;
    A* sums = static_cast<A*>(args.partials) + first * width;
    A* ties = sums + args.rows.num_chunks * width;
    for (int64_t part = 1; part < last - first; ++part) {
      const A* more = sums + part * width;
      const A* more_ties = ties + part * width;
      for (int64_t f = 0; f < width; ++f) {
        if constexpr (kKind == Kind::sum) sums[f] += more[f];
        if constexpr (kKind == Kind::max) sums[f] = maximum(sums[f], more[f]);
        if constexpr (kKind == Kind::ties) unite_ties(sums[f], ties[f], more[f], more_ties[f]);
      }
    }
    if constexpr (kKind == Kind::ties) {
      for (int64_t f = 0; f < width; ++f) ties[f] = std::min(ties[f], A{kMostTies});
      store_row(static_cast<Ties<T>*>(args.ties) + row * width, ties, width);
    }
    if (args.reduce == Reduce::kMin) {
      for (int64_t f = 0; f < width; ++f) sums[f] = -sums[f];
    }
    if (args.reduce == Reduce::kMean) {
      const A count = static_cast<A>(row_begin(args.rows, row + 1) - row_begin(args.rows, row));
      for (int64_t f = 0; f < width; ++f) sums[f] /= count;
    }
    store_row(static_cast<T*>(args.out) + row * width, sums, width);
  });
}

}  // namespace

namespace JAXGNN_ISA {

void spmm(const SpmmArgs& args, const Executor& executor) {
  if (args.rows.num_rows == 0 || args.width == 0) return;
  if (takes_narrow_rows(args)) return reduce_narrow_rows(args, executor);
  with_type(args.type, [&](auto type) {
    using T = decltype(type);
    with_kind(args, [&](auto kind) { reduce<T, decltype(kind)::value>(args, executor); });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
