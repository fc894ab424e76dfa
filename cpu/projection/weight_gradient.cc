#include "cpu/projection/weight_gradient.h"

#include <utility>

#include "cpu/core/rows.h"

namespace jaxgnn::projection {
namespace {

// Rows taken at a time: their numbers that a tile reads stay in the L1 cache.
constexpr int64_t kRowsTogether = 256;

// Features of x in a tile: with two vectors of g's, as many sums as registers hold.
template <class T>
constexpr int kTileFeatures = kRegisters >= 32 ? 8 : 4;

// Adds to sums[f, c] the products of the rows' x[f] and g[c], for kFeatures of x and kVectors
// vectors of g. `x`, `g` and `sums` begin with the tile's first feature. A tile at an end overlaps
// the one before it: the first `old_features` and `old_columns` are left as they are.
template <class T, int kFeatures, int N, int kVectors>
void add_tile(const T* x, int64_t x_width, const T* g, int64_t g_width, int64_t rows,
              int64_t old_features, int64_t old_columns, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  Vector<A, N> tile[kFeatures][kVectors] = {};
  for (int64_t row = 0; row < rows; ++row) {
    Vector<A, N> right[kVectors];
    JAXGNN_UNROLL
    for (int v = 0; v < kVectors; ++v) right[v] = load<N>(g + v * N);
    JAXGNN_UNROLL
    for (int f = 0; f < kFeatures; ++f) {
      const A left = load<1>(x + f)[0];
      JAXGNN_UNROLL
      for (int v = 0; v < kVectors; ++v) tile[f][v] += left * right[v];
    }
    x += x_width;
    g += g_width;
  }
  A products[kFeatures][kVectors * N];
  std::memcpy(products, tile, sizeof(products));
  for (int64_t f = old_features; f < kFeatures; ++f) {
    A* to = sums + f * g_width;
    for (int64_t c = old_columns; c < kVectors * N; ++c) to[c] += products[f][c];
  }
}

// All of x's features with those of g in one tile's vectors.
template <class T, int N, int kVectors>
void add_columns(const T* x, int64_t x_width, const T* g, int64_t g_width, int64_t rows,
                 int64_t old_columns, Accumulator<T>* sums) {
  constexpr int kFull = kTileFeatures<T>;
  auto add = [&](auto features, int64_t f, int64_t old_features) {
    add_tile<T, decltype(features)::value, N, kVectors>(
        x + f, x_width, g, g_width, rows, old_features, old_columns, sums + f * g_width);
  };
  int64_t f = 0;
  for (; f + kFull <= x_width; f += kFull) add(Constant<kFull>{}, f, 0);
  if (f < x_width && x_width >= kFull) {
    add(Constant<kFull>{}, x_width - kFull, kFull - (x_width - f));
    return;
  }
  for (; f + 2 <= x_width; f += 2) add(Constant<2>{}, f, 0);
  if (f < x_width) add(Constant<1>{}, f, 0);
}

// All columns, by vectors of N lanes; there are N at least.
template <class T, int N>
void add_vectors(const T* x, int64_t x_width, const T* g, int64_t g_width, int64_t rows,
                 Accumulator<T>* sums) {
  auto add = [&](auto vectors, int64_t c, int64_t old_columns) {
    add_columns<T, N, decltype(vectors)::value>(x, x_width, g + c, g_width, rows, old_columns,
                                                sums + c);
  };
  int64_t c = 0;
  for (; c + 2 * N <= g_width; c += 2 * N) add(Constant<2>{}, c, 0);
  const int64_t left = g_width - c;
  if (left > N && g_width >= 2 * N) {
    add(Constant<2>{}, g_width - 2 * N, 2 * N - left);
  } else if (left > 0) {
    if (left >= N) add(Constant<1>{}, c, 0);
    if (left != N) add(Constant<1>{}, g_width - N, N - left % N);
  }
}

template <class T>
void add_rows(const T* x, int64_t x_width, const T* g, int64_t g_width, int64_t rows,
              Accumulator<T>* sums) {
  if (g_width >= kLanes<T>) return add_vectors<T, kLanes<T>>(x, x_width, g, g_width, rows, sums);
  if constexpr (kLanes<T> > 4) {
    if (g_width >= 4) return add_vectors<T, 4>(x, x_width, g, g_width, rows, sums);
  }
  add_vectors<T, 1>(x, x_width, g, g_width, rows, sums);
}

template <class T>
void sum_rows(const WeightGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const T *x = static_cast<const T*>(args.x), *g = static_cast<const T*>(args.g);
  int64_t x_width = args.in_features, g_width = args.out_features;
  // Vectors are of the wider operand where the other one does not fill any.
  const bool swapped = g_width < kLanes<T> && g_width < x_width;
  if (swapped) {
    std::swap(x, g);
    std::swap(x_width, g_width);
  }
  const int64_t size = x_width * g_width, blocks = args.num_blocks;
  A* partials = static_cast<A*>(args.partials);
  parallel_for(executor, blocks, [&](int64_t block) {
    A* sums = partials + block * size;
    for (int64_t i = 0; i < size; ++i) sums[i] = 0;
    const int64_t last = args.num_rows * (block + 1) / blocks;
    for (int64_t row = args.num_rows * block / blocks; row < last; row += kRowsTogether) {
      add_rows(x + row * x_width, x_width, g + row * g_width, g_width,
               min_of(kRowsTogether, last - row), sums);
    }
  });
  T* out = static_cast<T*>(args.out);
  const int64_t row_bytes = g_width * blocks * static_cast<int64_t>(sizeof(A));
  const int64_t items = item_count(executor, x_width, row_bytes);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = x_width * (item + 1) / items;
    for (int64_t row = x_width * item / items; row < last; ++row) {
      A* sums = partials + row * g_width;
      for (int64_t block = 1; block < blocks; ++block) {
        for (int64_t c = 0; c < g_width; ++c) sums[c] += sums[block * size + c];
      }
      if (swapped) {
        for (int64_t c = 0; c < g_width; ++c) store<1>(out + c * x_width + row, load<1>(sums + c));
      } else {
        store_row(out + row * g_width, sums, g_width);
      }
    }
  });
}

}  // namespace

namespace JAXGNN_ISA {

void weight_gradient(const WeightGradientArgs& args, const Executor& executor) {
  if (args.in_features == 0 || args.out_features == 0) return;
  with_type(args.type, [&](auto type) { sum_rows<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::projection
