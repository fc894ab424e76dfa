// Weighted sums of the rows that a chunk of edges reads, in registers.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "cpu/attention/edge_chunks.h"
#include "cpu/core/slices.h"

namespace jaxgnn::attention {
namespace {

// The heads that a slice touches, and where its vectors begin.
template <int N, int kVectors, Weighting kWeighting>
struct SliceShape {
  int64_t first, count;  // heads
  int64_t features[kVectors];
  int64_t weights[kVectors];  // of a vector, among an edge's

  JAXGNN_INLINE SliceShape(const Slice& slice, int64_t head_width)
      : first(slice.head), count((slice.feature + slice.width - 1) / head_width - slice.head + 1) {
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) {
      features[k] = vector_begin<N, kVectors>(k, slice.width);
      weights[k] = weight_at<kWeighting>(slice, features[k], head_width);
    }
  }
};

// sums[s][k] += weights[s][c] x[c's column] for the edges c of a chunk. `x` points at the slice,
// the weights are [chunk, stride].
template <class T, int N, int kVectors, Weighting kWeighting, int kSums>
JAXGNN_INLINE void add_rows(const Rows& csr, const Chunk& chunk, const T* x, int64_t width,
                            const SliceShape<N, kVectors, kWeighting>& shape, int64_t stride,
                            const Accumulator<T>* const (&weights)[kSums],
                            Vector<Accumulator<T>, N> (&sums)[kSums][kVectors]) {
  constexpr int64_t kBytes = int64_t{kVectors} * N * sizeof(T);
  for (int c = 0; c < chunk.count; ++c) {
    const T* from = x + chunk.columns[c] * width;
    if (c >= chunk.loops) prefetch_ahead<kBytes>(csr, chunk.place + c, x, width);
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) {
      const auto value = load<N>(from + shape.features[k]);
      JAXGNN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        const Accumulator<T>* weight = weights[s] + c * stride + shape.weights[k];
        sums[s][k] += load_weight<N, kWeighting>(weight) * value;
      }
    }
  }
}

}  // namespace
}  // namespace jaxgnn::attention
