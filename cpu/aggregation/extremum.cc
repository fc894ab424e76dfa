#include "cpu/aggregation/extremum.h"

#include "cpu/aggregation/narrow_rows.h"
#include "cpu/core/dot.h"
#include "cpu/core/rows.h"
#include "cpu/core/slices.h"

namespace jaxgnn::aggregation {
namespace {

// All vectors of a slice, for the rows or the part of `work`. Products are compared exactly as
// spmm computes them: this file is compiled without contraction to fused multiply-adds.
template <class T, int N, int kVectors, Weighting kWeighting>
JAXGNN_OUTLINE void run(const ExtremumArgs& args, const Slice& slice, int64_t head_width,
                        const Work& work) {
  using A = Accumulator<T>;
  using V = Vector<A, N>;
  constexpr int64_t kBytes = int64_t{kVectors} * N * sizeof(T);
  const Rows& csr = args.rows;
  const int64_t width = args.width, heads = args.heads;
  const int64_t longest = longest_whole_row(csr);
  // The row's own operand stays put, the other is gathered.
  const T* own = static_cast<const T*>(args.transpose ? args.x : args.y) + slice.feature;
  const T* other = static_cast<const T*>(args.transpose ? args.y : args.x) + slice.feature;
  auto shifted = [](const void* p, int64_t by) {
    return p == nullptr ? nullptr : static_cast<const A*>(p) + by;
  };
  const T* values = static_cast<const T*>(args.values) + slice.feature;
  const A* weights = shifted(args.weights, slice.head);
  const A* scales = shifted(args.scale, slice.head);
  int64_t features[kVectors];  // where each vector begins
  int64_t weight_offsets[kVectors];
  JAXGNN_UNROLL
  for (int k = 0; k < kVectors; ++k) {
    features[k] = vector_begin<N, kVectors>(k, slice.width);
    weight_offsets[k] = weight_at<kWeighting>(slice, features[k], head_width);
  }

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    V sums[kVectors] = {};
    V mine[kVectors];
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) mine[k] = load<N>(own + row * width + features[k]);
    for (int64_t e = begin; e < end; ++e) {
      const int64_t index = column_of(csr, e) * width;
      prefetch_ahead<kBytes>(csr, e, other, width);
      prefetch_ahead<kBytes>(csr, e, values, width);
      JAXGNN_UNROLL
      for (int k = 0; k < kVectors; ++k) {
        const V theirs = load<N>(other + index + features[k]);
        V product = args.transpose ? mine[k] : theirs;
        V term = load<N>(values + index + features[k]);
        if (weights != nullptr) {
          const int64_t at = e * heads + weight_offsets[k];
          product = Convert<T, N>::rounded(load_weight<N, kWeighting>(weights + at) * product);
          term = load_weight<N, kWeighting>(scales + at) * term;
        }
        sums[k] += product == (args.transpose ? theirs : mine[k]) ? term : V{};
      }
    }
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) {
      const int64_t feature = slice.feature + features[k];
      if (whole) {
        store<N>(static_cast<T*>(args.out) + row * width + feature, sums[k]);
      } else {
        std::memcpy(static_cast<A*>(args.partials) + work.part * width + feature, &sums[k],
                    sizeof(V));
      }
    }
  }
}

template <class T, Weighting kWeighting>
void dispatch(const ExtremumArgs& args, const Slices& cut, const Slice& slice, const Work& work) {
  with_shape<kWeighting, kLanes<T>, kNarrowVectors<T>>(
      cut.lanes, slice.vectors, [&](auto lanes, auto vectors) {
        run<T, decltype(lanes)::value, decltype(vectors)::value, kWeighting>(args, slice,
                                                                             cut.head_width, work);
      });
}

template <class T>
void scatter_back(const ExtremumArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const Slices cut =
      cut_features<T>(args.width, args.heads, args.weights != nullptr, kNarrowVectors<T>);
  const int64_t edge_bytes = 2 * args.width * static_cast<int64_t>(sizeof(T)) / cut.count;
  over_rows(args.rows, executor, cut.count, edge_bytes, [&](int64_t s, const Work& work) {
    const Slice slice = cut[s];
    switch (cut.weighting) {
      case Weighting::shared:
        return dispatch<T, Weighting::shared>(args, cut, slice, work);
      case Weighting::per_vector:
        return dispatch<T, Weighting::per_vector>(args, cut, slice, work);
      case Weighting::per_feature:
        return dispatch<T, Weighting::per_feature>(args, cut, slice, work);
    }
  });
  over_chunked_rows(args.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    const int64_t width = args.width;
    A* sums = static_cast<A*>(args.partials) + first * width;
    for (int64_t part = first + 1; part < last; ++part) {
      const A* more = static_cast<const A*>(args.partials) + part * width;
      for (int64_t f = 0; f < width; ++f) sums[f] += more[f];
    }
    store_row(static_cast<T*>(args.out) + row * width, sums, width);
  });
}

template <class T>
void dots(const SddmmArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  constexpr int kFull = kLanes<T>;
  const int64_t width = args.width, heads = args.heads, head_width = width / heads;
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
  const T* own = static_cast<const T*>(args.a);
  const T* other = static_cast<const T*>(args.b);
  const T* senders = static_cast<const T*>(args.x);
  const T* extrema = static_cast<const T*>(args.y);
  const A* weights = static_cast<const A*>(args.weights);
  A* out = static_cast<A*>(args.out);
  const Rows csr = args.rows;
  over_edges(args.rows, executor, 2 * bytes, [=](int64_t row, int64_t e, int64_t index) {
    prefetch_ahead(csr, e, other, width, bytes);
    prefetch_ahead(csr, e, senders, width, bytes);
    const T* a = own + row * width;
    const T* b = other + index * width;
    const T* x = senders + index * width;
    const T* y = extrema + row * width;
    for (int64_t h = 0; h < heads; ++h) {
      const A* weight = weights == nullptr ? nullptr : weights + e * heads + h;
      auto term = [a, b, x, y, weight](auto lanes, int64_t f) {
        constexpr int N = decltype(lanes)::value;
        Sum<T, N> product = load<N>(x + f);
        if (weight != nullptr) product = Convert<T, N>::rounded(*weight * product);
        return product == load<N>(y + f) ? load<N>(a + f) * load<N>(b + f) : Sum<T, N>{};
      };
      out[e * heads + h] = sum_terms<A, kFull>(h * head_width, (h + 1) * head_width, term);
    }
  });
}

}  // namespace

namespace JAXGNN_ISA {

void spmm_extremum(const ExtremumArgs& args, const Executor& executor) {
  if (args.rows.num_rows == 0 || args.width == 0) return;
  if (takes_narrow_extremum(args)) return narrow_spmm_extremum(args, executor);
  with_type(args.type, [&](auto type) { scatter_back<decltype(type)>(args, executor); });
}

void sddmm_extremum(const SddmmArgs& args, const Executor& executor) {
  if (args.rows.num_edges == 0 || args.heads == 0) return;
  with_type(args.type, [&](auto type) { dots<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
