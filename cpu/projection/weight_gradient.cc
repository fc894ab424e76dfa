#include "cpu/projection/weight_gradient.h"

#include <utility>

#include "cpu/core/rows.h"

namespace jaxgnn::projection {
namespace {

// Rows taken at a time: those of a strip of g stay in the L1 cache.
constexpr int64_t kRowsTogether = 128;

// A tile of the result: features of x by vectors of g's, in as many sums as registers hold.
constexpr int kTileFeatures = kRegisters >= 32 ? 8 : kRegisters >= 16 ? 6 : 2;
constexpr int kTileVectors = 2;

// Copies `width` numbers of each row, and zeros up to kWidth.
template <int kWidth, class T>
void pack(const T* from, int64_t stride, int64_t width, int64_t rows, Accumulator<T>* to) {
  // As many numbers at a time as divide the row, and a vector holds.
  constexpr int kHeld = kLanes<T> < 8 ? kLanes<T> : 8;
  constexpr int N = kWidth % kHeld == 0 ? kHeld : 2;
  for (int64_t row = 0; row < rows; ++row) {
    const T* numbers = from + row * stride;
    if (width == kWidth) {
      JAXGNN_UNROLL
      for (int f = 0; f < kWidth; f += N) {
        const Sum<T, N> wide = load<N>(numbers + f);
        std::memcpy(to + f, &wide, sizeof(wide));
      }
    } else {
      for (int f = 0; f < kWidth; ++f) to[f] = f < width ? load<1>(numbers + f)[0] : 0;
    }
    to += kWidth;
  }
}

// Adds to sums[f, c], of which there are `features` and `columns`, the products of x[f] and g[c]
// of all rows. The rows of `g` are packed: kVectors vectors each.
template <class A, int kFeatures, int kVectors>
void add_tile(const A* x, int64_t stride, const A* g, int64_t rows, int64_t features,
              int64_t columns, A* sums, int64_t sums_stride) {
  constexpr int N = kLanes<A>;
  Vector<A, N> tile[kFeatures][kVectors] = {};
  for (int64_t row = 0; row < rows; ++row) {
    Vector<A, N> right[kVectors];
    JAXGNN_UNROLL
    for (int v = 0; v < kVectors; ++v) right[v] = load<N>(g + v * N);
    JAXGNN_UNROLL
    for (int f = 0; f < kFeatures; ++f) {
      const A left = x[f];
      JAXGNN_UNROLL
      for (int v = 0; v < kVectors; ++v) tile[f][v] += left * right[v];
    }
    x += stride;
    g += kVectors * N;
  }
  if (features == kFeatures && columns == kVectors * N) {
    JAXGNN_UNROLL
    for (int f = 0; f < kFeatures; ++f) {
      JAXGNN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        A* to = sums + f * sums_stride + v * N;
        store<N>(to, load<N>(to) + tile[f][v]);
      }
    }
    return;
  }
  A products[kFeatures][kVectors * N];
  std::memcpy(products, tile, sizeof(products));
  for (int64_t f = 0; f < features; ++f) {
    for (int64_t c = 0; c < columns; ++c) sums[f * sums_stride + c] += products[f][c];
  }
}

// The same, with the rows of x packed first.
template <class T, int kFeatures, int kVectors>
void add_packed_tile(const T* x, int64_t stride, const Accumulator<T>* g, int64_t rows,
                     int64_t features, int64_t columns, Accumulator<T>* sums, int64_t sums_stride) {
  Accumulator<T> left[kRowsTogether * kFeatures];
  pack<kFeatures>(x, stride, features, rows, left);
  add_tile<Accumulator<T>, kFeatures, kVectors>(left, kFeatures, g, rows, features, columns, sums,
                                                sums_stride);
}

// All of x's features with g's in one tile's vectors, of which `columns` are there.
template <class T, int kVectors>
void add_strip(const T* x, int64_t x_width, const T* g, int64_t g_width, int64_t columns,
               int64_t rows, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  constexpr int kColumns = kVectors * kLanes<A>;
  alignas(kVectorBytes) A right[kRowsTogether * kColumns];
  pack<kColumns>(g, g_width, columns, rows, right);
  for (int64_t f = 0; f < x_width; f += kTileFeatures) {
    const int64_t features = min_of(kTileFeatures, x_width - f);
    A* to = sums + f * g_width;
    if constexpr (sizeof(T) == sizeof(A)) {
      if (features == kTileFeatures) {
        add_tile<A, kTileFeatures, kVectors>(x + f, x_width, right, rows, features, columns, to,
                                             g_width);
        continue;
      }
    }
    if (features <= 2) {
      add_packed_tile<T, 2, kVectors>(x + f, x_width, right, rows, features, columns, to, g_width);
    } else {
      add_packed_tile<T, kTileFeatures, kVectors>(x + f, x_width, right, rows, features, columns,
                                                  to, g_width);
    }
  }
}

template <class T>
void add_rows(const T* x, int64_t x_width, const T* g, int64_t g_width, int64_t rows,
              Accumulator<T>* sums) {
  constexpr int64_t N = kLanes<T>, kColumns = kTileVectors * N;
  for (int64_t c = 0; c < g_width; c += kColumns) {
    const int64_t columns = min_of(kColumns, g_width - c);
    if (columns > N) {
      add_strip<T, kTileVectors>(x, x_width, g + c, g_width, columns, rows, sums + c);
    } else {
      add_strip<T, 1>(x, x_width, g + c, g_width, columns, rows, sums + c);
    }
  }
}

template <class T>
void sum_rows(const WeightGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const T *x = static_cast<const T*>(args.x), *g = static_cast<const T*>(args.g);
  int64_t x_width = args.in_features, g_width = args.out_features;
  // Vectors are of the wider operand where the other one does not fill any.
  const bool swapped = g_width < kLanes<A> && g_width < x_width;
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
