#include "cpu/maxk/maxk_spmm.h"

#include "cpu/core/dot.h"
#include "cpu/maxk/cbsr.h"

namespace jaxgnn::maxk {
namespace {

constexpr int64_t kLine = 64;  // of a cache

// Prefetches the cache lines of the CBSR rows that later edges will read.
template <class T, class Index>
class CbsrPrefetch {
 public:
  explicit CbsrPrefetch(const Cbsr& cbsr)
      : cbsr_(cbsr),
        values_(cbsr.k * static_cast<int64_t>(sizeof(T))),
        indices_(cbsr.k * static_cast<int64_t>(sizeof(Index))),
        distance_(max_of(min_of(2048 / (values_ + indices_), 32), 4)) {}

  // Edge e is about to be read.
  JAXGNN_INLINE void before(const Rows& csr, int64_t e) const {
    prefetch_beginnings(csr, e, distance_, values_of<T>(cbsr_, 0), cbsr_.k);
    prefetch_beginnings(csr, e, distance_, indices_of<Index>(cbsr_, 0), cbsr_.k);
    const int64_t row = column_of(csr, min_of(e + distance_, csr.num_edges - 1));
    lines(values_of<T>(cbsr_, row), values_);
    lines(indices_of<Index>(cbsr_, row), indices_);
  }

 private:
  static JAXGNN_INLINE void lines(const void* data, int64_t bytes) {
    const char* from = static_cast<const char*>(data);
    for (int64_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(from + offset);
    if (bytes % kLine != 0) __builtin_prefetch(from + bytes - 1);
  }

  const Cbsr cbsr_;
  const int64_t values_, indices_, distance_;
};

// Prefetches what later edges of a row gather from rows of y: their lines with the row's columns,
// if those are fewer than the lines of a row. Else, and beyond the row's end, the whole rows.
template <class T, class Index>
class GatherPrefetch {
 public:
  GatherPrefetch(const Rows& csr, const T* y, int64_t width, const Index* indices, int64_t k,
                 int64_t end)
      : csr_(csr), y_(y), width_(width), bytes_(width * static_cast<int64_t>(sizeof(T))) {
    if (k >= bytes_ / kLine) return;
    last_ = end - prefetch_distance(bytes_);
    for (int64_t c = 0; c < k; ++c) {
      const int64_t start = indices[c] / kInLine * kInLine;
      if (count_ == 0 || starts_[count_ - 1] != start)
        starts_[count_++] = static_cast<uint16_t>(start);
    }
  }

  // Edge e is about to be read.
  JAXGNN_INLINE void before(int64_t e) const {
    if (e >= last_) {
      prefetch_ahead(csr_, e, y_, width_, bytes_);
      return;
    }
    const int64_t distance = prefetch_distance(bytes_);
    prefetch_beginnings(csr_, e, distance, y_, width_);
    const T* row = y_ + column_of(csr_, e + distance) * width_;
    for (int64_t i = 0; i < count_; ++i) __builtin_prefetch(row + starts_[i]);
  }

 private:
  static constexpr int64_t kInLine = kLine / static_cast<int64_t>(sizeof(T));

  const Rows& csr_;
  const T* y_;
  const int64_t width_, bytes_;
  int64_t last_ = 0;  // from this edge on, whole rows
  int64_t count_ = 0;
  uint16_t starts_[kMaxWidth / kInLine];
};

// sums[indices[c]] += weight * values[c], in sequence, one store a cycle. Scatter instructions and
// masked expansions into registers are slower.
template <int N, class T, class Index, class A>
JAXGNN_INLINE void add_terms(A* sums, const T* values, const Index* indices, A weight) {
  JAXGNN_UNROLL
  for (int i = 0; i < N; ++i) sums[indices[i]] += weight * load<1>(values + i)[0];
}

template <class T, class Index, class A>
JAXGNN_INLINE void add_cbsr_row(A* __restrict sums, const T* values, const Index* indices,
                                int64_t k, A weight) {
  int64_t c = 0;
  for (; c + 8 <= k; c += 8) add_terms<8>(sums, values + c, indices + c, weight);
  for (; c < k; ++c) add_terms<1>(sums, values + c, indices + c, weight);
}

JAXGNN_INLINE uint16_t storage(bfloat16 x) { return x.bits; }
JAXGNN_INLINE uint16_t storage(float16 x) { return x.bits; }
JAXGNN_INLINE float storage(float x) { return x; }
JAXGNN_INLINE double storage(double x) { return x; }

// The lanes from[indices[i]], loaded one by one: faster than the gathers of many processors.
template <int N, class T, class Index>
JAXGNN_INLINE Sum<T, N> gather(const T* from, const Index* indices) {
  Stored<T, N> lanes{};
  JAXGNN_UNROLL
  for (int i = 0; i < N; ++i) lanes[i] = storage(from[indices[i]]);
  return Convert<T, N>::widen(lanes);
}

// Rounds a row of sums, divided by `count`, to T.
template <class T, class A>
void store_mean(T* to, const A* sums, int64_t width, A count) {
  int64_t f = 0;
  for (; f + kLanes<T> <= width; f += kLanes<T>) {
    store<kLanes<T>>(to + f, load<kLanes<T>>(sums + f) / count);
  }
  for (; f < width; ++f) store<1>(to + f, load<1>(sums + f) / count);
}

// Reduces all rows into `width` sums each: add_edges(row, begin, end, sums) adds those edges of the
// row to the sums.
template <class T, class F>
void reduce_rows(const MaxkProductArgs& args, int64_t width, int64_t edge_bytes,
                 const Executor& executor, const F& add_edges) {
  using A = Accumulator<T>;
  const Rows& csr = args.rows;
  const size_t sum_bytes = static_cast<size_t>(width) * sizeof(A);
  const int64_t longest = longest_whole_row(csr);
  T* out = static_cast<T*>(args.out);
  A* partials = static_cast<A*>(args.partials);
  auto store_sums = [&](int64_t row, int64_t edges, const A* sums) {
    T* to = out + row * width;
    if (args.reduce == Reduce::kMean && edges > 1) {
      store_mean(to, sums, width, static_cast<A>(edges));
    } else {
      store_row(to, sums, width);
    }
  };
  over_rows(csr, executor, 1, edge_bytes, [&](int64_t, const Work& work) {
    if (work.part >= 0) {
      A* sums = partials + work.part * width;
      std::memset(sums, 0, sum_bytes);
      add_edges(work.first, work.begin, work.end, sums);
      return;
    }
    alignas(kLine) A sums[kMaxWidth];
    for (int64_t row = work.first; row < work.last; ++row) {
      const int64_t begin = row_begin(csr, row), end = row_begin(csr, row + 1);
      if (end - begin > longest) continue;
      std::memset(sums, 0, sum_bytes);
      add_edges(row, begin, end, sums);
      store_sums(row, end - begin, sums);
    }
  });
  over_chunked_rows(csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = partials + first * width;
    for (int64_t part = first + 1; part < last; ++part) {
      const A* more = partials + part * width;
      for (int64_t f = 0; f < width; ++f) sums[f] += more[f];
    }
    store_sums(row, row_begin(csr, row + 1) - row_begin(csr, row), sums);
  });
}

template <class T, class Index>
void spgemm(const MaxkProductArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const Rows csr = args.rows;
  const Cbsr cbsr = args.cbsr;
  const A* weights = static_cast<const A*>(args.weights);
  const int64_t bytes = cbsr.k * static_cast<int64_t>(sizeof(T) + sizeof(Index));
  const CbsrPrefetch<T, Index> prefetch(cbsr);
  reduce_rows<T>(args, cbsr.width, bytes, executor,
                 [=](int64_t, int64_t begin, int64_t end, A* sums) {
                   for (int64_t e = begin; e < end; ++e) {
                     prefetch.before(csr, e);
                     const int64_t column = column_of(csr, e);
                     add_cbsr_row(sums, values_of<T>(cbsr, column), indices_of<Index>(cbsr, column),
                                  cbsr.k, weights == nullptr ? A{1} : weights[e]);
                   }
                 });
}

template <class T, class Index>
void sspmm(const MaxkProductArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  constexpr int kFull = kLanes<T>;
  const Rows csr = args.rows;
  const Cbsr cbsr = args.cbsr;
  const A* weights = static_cast<const A*>(args.weights);
  const T* y = static_cast<const T*>(args.dense);
  const int64_t k = cbsr.k, width = cbsr.width, bytes = width * static_cast<int64_t>(sizeof(T));
  reduce_rows<T>(args, k, bytes, executor, [=](int64_t row, int64_t begin, int64_t end, A* sums) {
    const Index* indices = indices_of<Index>(cbsr, row);
    const GatherPrefetch<T, Index> prefetch(csr, y, width, indices, k, end);
    for (int64_t e = begin; e < end; ++e) {
      prefetch.before(e);
      const T* from = y + column_of(csr, e) * width;
      const A weight = weights == nullptr ? A{1} : weights[e];
      auto add = [&](auto lanes, int64_t c) {
        constexpr int N = decltype(lanes)::value;
        store<N>(sums + c, load<N>(sums + c) + weight * gather<N>(from, indices + c));
      };
      int64_t c = 0;
      for (; c + kFull <= k; c += kFull) add(Constant<kFull>{}, c);
      for (; c < k; ++c) add(Constant<1>{}, c);
    }
  });
}

template <class T, class Index>
void sddmm(const MaxkProductArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const Rows csr = args.rows;
  const Cbsr cbsr = args.cbsr;
  const T* y = static_cast<const T*>(args.dense);
  A* out = static_cast<A*>(args.out);
  const int64_t bytes = cbsr.k * static_cast<int64_t>(sizeof(T) + sizeof(Index));
  const CbsrPrefetch<T, Index> prefetch(cbsr);
  over_edges(csr, executor, bytes, [=](int64_t row, int64_t e, int64_t column) {
    prefetch.before(csr, e);
    const T* from = y + row * cbsr.width;
    const T* values = values_of<T>(cbsr, column);
    const Index* indices = indices_of<Index>(cbsr, column);
    out[e] = sum_terms<A, kLanes<T>>(0, cbsr.k, [=](auto lanes, int64_t c) {
      constexpr int N = decltype(lanes)::value;
      return load<N>(values + c) * gather<N>(from, indices + c);
    });
  });
}

}  // namespace

namespace JAXGNN_ISA {

void maxk_spmm(const MaxkProductArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.width > 256,
               [&](auto index) { spgemm<decltype(type), decltype(index)>(args, executor); });
  });
}

void maxk_sspmm(const MaxkProductArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.width > 256,
               [&](auto index) { sspmm<decltype(type), decltype(index)>(args, executor); });
  });
}

void maxk_sddmm(const MaxkProductArgs& args, const Executor& executor) {
  if (args.rows.num_edges == 0) return;
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.width > 256,
               [&](auto index) { sddmm<decltype(type), decltype(index)>(args, executor); });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::maxk
