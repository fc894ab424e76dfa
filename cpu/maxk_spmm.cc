#include "maxk_spmm.h"

#include <type_traits>

#include "dot.h"
#include "records.h"

namespace jaxgnn {
namespace {

// Edge e is about to be read: prefetches the record that an edge some way on will read.
template <class T, class Index>
JAXGNN_INLINE void prefetch_record(const Csr& csr, int64_t e, const Cbsr& cbsr) {
  const int64_t values = cbsr.k * static_cast<int64_t>(sizeof(T));
  const int64_t indices = cbsr.k * static_cast<int64_t>(sizeof(Index));
  const int64_t distance = prefetch_distance(values + indices);
  const int64_t row = index_of(csr, min_of(e + distance, csr.num_edges - 1));
  const char* from = reinterpret_cast<const char*>(values_of<T>(cbsr, row));
  for (int64_t offset = 0; offset < values; offset += 64) __builtin_prefetch(from + offset);
  __builtin_prefetch(from + values - 1);
  from = reinterpret_cast<const char*>(indices_of<Index>(cbsr, row));
  for (int64_t offset = 0; offset < indices; offset += 64) __builtin_prefetch(from + offset);
  __builtin_prefetch(from + indices - 1);
}

// sums[indices[c]] += weight * values[c]. The columns of a record are distinct, so that several
// sums are read before the first is written back.
template <int N, class T, class Index, class A>
JAXGNN_INLINE void add_terms(A* sums, const T* values, const Index* indices, A weight) {
  const Vector<A, N> terms = weight * load<N>(values);
  A next[N];
  JAXGNN_UNROLL
  for (int i = 0; i < N; ++i) next[i] = sums[indices[i]] + terms[i];
  JAXGNN_UNROLL
  for (int i = 0; i < N; ++i) sums[indices[i]] = next[i];
}

template <class T, class Index, class A>
JAXGNN_INLINE void add_record(A* __restrict sums, const T* values, const Index* indices, int64_t k,
                              A weight) {
  constexpr int N = kLanes<T> < 8 ? kLanes<T> : 8;
  int64_t c = 0;
  for (; c + N <= k; c += N) add_terms<N>(sums, values + c, indices + c, weight);
  for (; c < k; ++c) add_terms<1>(sums, values + c, indices + c, weight);
}

JAXGNN_INLINE uint16_t storage(bfloat16 x) { return x.bits; }
JAXGNN_INLINE uint16_t storage(float16 x) { return x.bits; }
JAXGNN_INLINE float storage(float x) { return x; }
JAXGNN_INLINE double storage(double x) { return x; }

// The lanes from[indices[i]].
template <int N, class T, class Index>
JAXGNN_INLINE Sum<T, N> gather(const T* from, const Index* indices) {
#if defined(__AVX512F__)
  if constexpr (N == 16 && std::is_same_v<T, float>) {
    Vector<Index, N> narrow;
    std::memcpy(&narrow, indices, sizeof(narrow));
    const auto offsets = __builtin_convertvector(narrow, Vector<int32_t, N>);
    return (Sum<T, N>)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, (__m512i)offsets, from,
                                               4);
  }
#endif
  Stored<T, N> lanes;
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

// Reduces all rows into `width` sums each: row(first edge, last edge, row, sums) adds to zeros.
template <class T, class F>
void reduce_rows(const MaxkProductArgs& args, int64_t width, int64_t edge_bytes,
                 const Executor& executor, const F& add_edges) {
  using A = Accumulator<T>;
  const Csr& csr = args.csr;
  const size_t bytes = static_cast<size_t>(width) * sizeof(A);
  const int64_t longest = longest_whole_row(csr);
  T* out = static_cast<T*>(args.out);
  A* partials = static_cast<A*>(args.partials);
  auto store_sums = [&](int64_t row, const A* sums) {
    const int64_t edges = row_begin(csr, row + 1) - row_begin(csr, row);
    if (args.reduce == Reduce::mean && edges > 1) {
      store_mean(out + row * width, sums, width, static_cast<A>(edges));
    } else {
      store_row(out + row * width, sums, width);
    }
  };
  over_rows(csr, executor, 1, edge_bytes, [&](int64_t, const Work& work) {
    if (work.part >= 0) {
      A* sums = partials + work.part * width;
      std::memset(sums, 0, bytes);
      add_edges(work.first, work.begin, work.end, sums);
      return;
    }
    alignas(64) A sums[kMaxWidth];
    for (int64_t row = work.first; row < work.last; ++row) {
      const int64_t begin = row_begin(csr, row), end = row_begin(csr, row + 1);
      if (end - begin > longest) continue;
      std::memset(sums, 0, bytes);
      add_edges(row, begin, end, sums);
      store_sums(row, sums);
    }
  });
  over_split_rows(csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = partials + first * width;
    for (int64_t part = first + 1; part < last; ++part) {
      const A* more = partials + part * width;
      for (int64_t f = 0; f < width; ++f) sums[f] += more[f];
    }
    store_sums(row, sums);
  });
}

template <class T, class Index>
void spgemm(const MaxkProductArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const Csr csr = args.csr;
  const Cbsr cbsr = args.cbsr;
  const A* weights = static_cast<const A*>(args.weights);
  const int64_t bytes = cbsr.k * static_cast<int64_t>(sizeof(T) + sizeof(Index));
  reduce_rows<T>(args, cbsr.width, bytes, executor,
                 [=](int64_t, int64_t begin, int64_t end, A* sums) {
                   for (int64_t e = begin; e < end; ++e) {
                     prefetch_record<T, Index>(csr, e, cbsr);
                     const int64_t column = index_of(csr, e);
                     add_record(sums, values_of<T>(cbsr, column), indices_of<Index>(cbsr, column),
                                cbsr.k, weights == nullptr ? A{1} : weights[e]);
                   }
                 });
}

template <class T, class Index>
void sspmm(const MaxkProductArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  constexpr int kFull = kLanes<T>;
  const Csr csr = args.csr;
  const Cbsr cbsr = args.cbsr;
  const A* weights = static_cast<const A*>(args.weights);
  const T* y = static_cast<const T*>(args.y);
  const int64_t k = cbsr.k, width = cbsr.width, bytes = width * static_cast<int64_t>(sizeof(T));
  reduce_rows<T>(args, k, bytes, executor, [=](int64_t row, int64_t begin, int64_t end, A* sums) {
    const Index* indices = indices_of<Index>(cbsr, row);
    for (int64_t e = begin; e < end; ++e) {
      prefetch_ahead(csr, e, y, width, bytes);
      const T* from = y + index_of(csr, e) * width;
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
  const Csr csr = args.csr;
  const Cbsr cbsr = args.cbsr;
  const T* y = static_cast<const T*>(args.y);
  A* out = static_cast<A*>(args.out);
  const int64_t bytes = cbsr.k * static_cast<int64_t>(sizeof(T) + sizeof(Index));
  over_edges(csr, executor, bytes, [=](int64_t row, int64_t e, int64_t column) {
    prefetch_record<T, Index>(csr, e, cbsr);
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
    with_index(args.cbsr.wide_indices,
               [&](auto index) { spgemm<decltype(type), decltype(index)>(args, executor); });
  });
}

void maxk_sspmm(const MaxkProductArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.wide_indices,
               [&](auto index) { sspmm<decltype(type), decltype(index)>(args, executor); });
  });
}

void maxk_sddmm(const MaxkProductArgs& args, const Executor& executor) {
  if (args.csr.num_edges == 0) return;
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.wide_indices,
               [&](auto index) { sddmm<decltype(type), decltype(index)>(args, executor); });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn
