// What the kernels of Gaussian weights share: the coordinates and the weights of a chunk of edges.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include "common/gaussian.h"
#include "cpu/core/exp.h"
#include "cpu/core/rows.h"

namespace jaxgnn::gaussian {
namespace {

// Edges whose weights are computed together: a multiple of every vector width.
constexpr int kChunk = 32;

// Kernels whose weights are held at a time.
constexpr int kKernels = 8;

// Some edges of a row, and zeros beyond their number.
template <class A>
struct Chunk {
  int count;
  int64_t columns[kChunk];
  int64_t numbers[kChunk];  // in the graph's order
  A coordinates[kMaxDims][kChunk];
};

// For x close to 0 the absolute error is that of values close to 1, as in a coordinate's difference
// to a mean.
template <class A, int N>
JAXGNN_INLINE Vector<A, N> hyperbolic_tangent(Vector<A, N> x) {
  constexpr A kMost = A{20};  // 1 from there on
  const Vector<A, N> bounded = x < kMost ? x : (x == x ? Vector<A, N>{} + kMost : x);
  return A{1} - A{2} / (exponential<A, N>(bounded * A{2}) + A{1});
}

template <class A>
JAXGNN_INLINE void load_chunk(const GaussianArgs& args, int64_t row, int64_t begin, int64_t end,
                              Chunk<A>& chunk) {
  const Rows& csr = args.rows;
  const int64_t dims = args.dims;
  const A* edges = static_cast<const A*>(args.edges);
  const A* row_terms = static_cast<const A*>(args.row_terms) + (edges == nullptr ? row * dims : 0);
  const A* column_terms = static_cast<const A*>(args.column_terms);
  chunk.count = static_cast<int>(min_of(end - begin, kChunk));
  for (int c = 0; c < chunk.count; ++c) {
    chunk.columns[c] = column_of(csr, begin + c);
    chunk.numbers[c] = edge_number(args, begin + c);
  }
  for (int64_t d = 0; d < dims; ++d) {
    A* to = chunk.coordinates[d];
    for (int c = 0; c < chunk.count; ++c) {
      to[c] = edges != nullptr ? edges[chunk.numbers[c] * dims + d]
                               : row_terms[d] + column_terms[chunk.columns[c] * dims + d];
    }
    for (int c = chunk.count; c < kChunk; ++c) to[c] = 0;
    constexpr int N = kLanes<A>;
    if (!args.tanh) continue;
    for (int c = 0; c < chunk.count; c += N) {
      store<N>(to + c, hyperbolic_tangent<A, N>(load<N>(to + c)));
    }
  }
}

// Calls body(chunk, place) for the edges [begin, end) of a row.
template <class A, class Body>
JAXGNN_INLINE void over_chunks(const GaussianArgs& args, int64_t row, int64_t begin, int64_t end,
                               const Body& body) {
  Chunk<A> chunk;
  for (int64_t e = begin; e < end; e += kChunk) {
    load_chunk(args, row, e, end, chunk);
    body(chunk, e);
  }
}

// The weights of a chunk under kernel k.
template <class A>
JAXGNN_INLINE void weigh(const GaussianArgs& args, const Chunk<A>& chunk, int64_t k, A* weights) {
  constexpr int N = kLanes<A>;
  const A* mu = static_cast<const A*>(args.mu) + k * args.dims;
  const A* inv_sigma = static_cast<const A*>(args.inv_sigma) + k * args.dims;
  for (int c = 0; c < chunk.count; c += N) {
    Vector<A, N> sum = {};
    for (int64_t d = 0; d < args.dims; ++d) {
      const Vector<A, N> distance = (load<N>(chunk.coordinates[d] + c) - mu[d]) * inv_sigma[d];
      sum += distance * distance;
    }
    store<N>(weights + c, exponential<A, N>(sum * A{-0.5}));
  }
}

// The edges of a row for one worker; none for a whole row that is processed in chunks.
struct Stretch {
  int64_t begin, end;
  bool whole, elsewhere;

  JAXGNN_INLINE Stretch(const Rows& csr, const Work& work, int64_t row)
      : begin(work.begin), end(work.end), whole(work.part < 0), elsewhere(false) {
    if (!whole) return;
    begin = row_begin(csr, row);
    end = row_begin(csr, row + 1);
    elsewhere = end - begin > longest_whole_row(csr);
  }
};

}  // namespace
}  // namespace jaxgnn::gaussian
