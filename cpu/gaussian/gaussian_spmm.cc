// The sums of a row stay in the L1 cache, one slice of the features at a time. Several gathered
// rows, or the sums of several kernels, are accumulated between a load and a store of them.
#include "cpu/gaussian/gaussian_spmm.h"

#include "cpu/gaussian/gaussian.h"

namespace jaxgnn::gaussian {
namespace {

// Features of a slice.
constexpr int64_t kSlice = 256;

// Calls body(Constant<lanes>, f) for the vectors of [f, width), full ones and then narrower ones.
template <int N, class Body>
JAXGNN_INLINE void over_vectors(int64_t f, int64_t width, const Body& body) {
  for (; f + N <= width; f += N) body(Constant<N>{}, f);
  if constexpr (N > 1) {
    if (f < width) over_vectors<N / 2>(f, width, body);
  }
}

// sums += sum_i weights[i] rows[i].
template <int kCount, class T>
JAXGNN_INLINE void add_rows(const T* const* rows, const Accumulator<T>* weights, int64_t width,
                            Accumulator<T>* sums) {
  over_vectors<kLanes<T>>(0, width, [&](auto lanes, int64_t f) {
    constexpr int N = decltype(lanes)::value;
    auto sum = load<N>(sums + f);
    JAXGNN_UNROLL
    for (int i = 0; i < kCount; ++i) sum += weights[i] * load<N>(rows[i] + f);
    store<N>(sums + f, sum);
  });
}

// sums[k] += sum_c weights[k][c] rows[c] for a block of kernels.
template <int kCount, class T>
JAXGNN_INLINE void add_to_kernels(const T* const* rows, const Accumulator<T> (*weights)[kChunk],
                                  int first, int64_t kernels, int64_t width,
                                  Accumulator<T> (*sums)[kSlice]) {
  over_vectors<kLanes<T>>(0, width, [&](auto lanes, int64_t f) {
    constexpr int N = decltype(lanes)::value;
    Sum<T, N> values[kCount];
    JAXGNN_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = load<N>(rows[first + i] + f);
    for (int64_t k = 0; k < kernels; ++k) {
      auto sum = load<N>(sums[k] + f);
      JAXGNN_UNROLL
      for (int i = 0; i < kCount; ++i) sum += weights[k][first + i] * values[i];
      store<N>(sums[k] + f, sum);
    }
  });
}

struct Slice {
  int64_t feature, width;

  Slice(int64_t all, int64_t number)
      : feature(number * kSlice), width(min_of(all - number * kSlice, kSlice)) {}
};

int64_t slices_of(int64_t width) { return (width + kSlice - 1) / kSlice; }

// Divides a row's sums if means are wanted.
template <class A>
void finish(const GaussianSumArgs& args, int64_t edges, int64_t width, A* sums) {
  if (!args.mean || edges == 0) return;
  const A count = static_cast<A>(edges);
  for (int64_t f = 0; f < width; ++f) sums[f] /= count;
}

// The sums of a row or a part, in T or where the parts are joined.
template <class T>
void put(const Accumulator<T>* sums, int64_t width, T* out, Accumulator<T>* partial) {
  if (partial == nullptr) return store_row(out, sums, width);
  std::memcpy(partial, sums, sizeof(*sums) * static_cast<size_t>(width));
}

// One sum, of rows for each kernel.

template <class T>
__attribute__((noinline)) void run_all(const GaussianSumArgs& args, const Slice& slice,
                                       const Work& work) {
  using A = Accumulator<T>;
  const GaussianArgs& gaussian = args.gaussian;
  const Rows& csr = gaussian.rows;
  const int64_t width = gaussian.width, kernels = gaussian.kernels;
  const T* x = static_cast<const T*>(args.x) + slice.feature;
  const int64_t read = (slice.width == width ? kernels * width : slice.width) * sizeof(T);
  const int64_t bytes = min_of(read, 2048);
  A sums[kSlice], held[kKernels][kChunk], weights[kKernels * kChunk];
  const T* rows[kKernels * kChunk];

  for (int64_t row = work.first; row < work.last; ++row) {
    const Stretch stretch(csr, work, row);
    if (stretch.elsewhere) continue;
    std::memset(sums, 0, sizeof(A) * static_cast<size_t>(slice.width));
    over_chunks<A>(gaussian, row, stretch.begin, stretch.end, [&](const auto& chunk, int64_t e) {
      for (int c = 0; c < chunk.count; ++c) prefetch_ahead(csr, e + c, x, kernels * width, bytes);
      for (int64_t first = 0; first < kernels; first += kKernels) {
        const int64_t some = min_of(kernels - first, kKernels);
        for (int64_t k = 0; k < some; ++k) weigh(gaussian, chunk, first + k, held[k]);
        int pairs = 0, p = 0;
        for (int c = 0; c < chunk.count; ++c) {
          for (int64_t k = 0; k < some; ++k, ++pairs) {
            rows[pairs] = x + (chunk.columns[c] * kernels + first + k) * width;
            weights[pairs] = held[k][c];
          }
        }
        for (; p + 8 <= pairs; p += 8) add_rows<8>(rows + p, weights + p, slice.width, sums);
        for (; p + 2 <= pairs; p += 2) add_rows<2>(rows + p, weights + p, slice.width, sums);
        if (p < pairs) add_rows<1>(rows + p, weights + p, slice.width, sums);
      }
    });
    if (stretch.whole) finish(args, stretch.end - stretch.begin, slice.width, sums);
    const int64_t part = work.part * width + slice.feature;
    put(sums, slice.width, static_cast<T*>(args.out) + row * width + slice.feature,
        stretch.whole ? nullptr : static_cast<A*>(args.partials) + part);
  }
}

template <class T>
void sum_all(const GaussianSumArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const GaussianArgs& gaussian = args.gaussian;
  const int64_t width = gaussian.width, slices = slices_of(width);
  const int64_t edge_bytes = gaussian.kernels * width * static_cast<int64_t>(sizeof(T)) / slices;
  over_rows(gaussian.rows, executor, slices, edge_bytes,
            [&](int64_t slice, const Work& work) { run_all<T>(args, Slice(width, slice), work); });
  over_chunked_rows(gaussian.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = sum_parts(static_cast<A*>(args.partials), width, first, last);
    finish(args, row_begin(gaussian.rows, row + 1) - row_begin(gaussian.rows, row), width, sums);
    store_row(static_cast<T*>(args.out) + row * width, sums, width);
  });
}

// A sum for each kernel, of rows for all of them; a block of kernels at a time.

template <class T>
__attribute__((noinline)) void run_each(const GaussianSumArgs& args, int64_t first,
                                        const Slice& slice, const Work& work) {
  using A = Accumulator<T>;
  const GaussianArgs& gaussian = args.gaussian;
  const Rows& csr = gaussian.rows;
  const int64_t width = gaussian.width, all = gaussian.kernels * width;
  const int64_t kernels = min_of(gaussian.kernels - first, kKernels);
  const T* x = static_cast<const T*>(args.x) + slice.feature;
  const int64_t bytes = slice.width * static_cast<int64_t>(sizeof(T));
  A sums[kKernels][kSlice], weights[kKernels][kChunk];
  const T* rows[kChunk];

  for (int64_t row = work.first; row < work.last; ++row) {
    const Stretch stretch(csr, work, row);
    if (stretch.elsewhere) continue;
    std::memset(sums, 0, sizeof(sums[0]) * static_cast<size_t>(kernels));
    over_chunks<A>(gaussian, row, stretch.begin, stretch.end, [&](const auto& chunk, int64_t e) {
      for (int64_t k = 0; k < kernels; ++k) weigh(gaussian, chunk, first + k, weights[k]);
      for (int c = 0; c < chunk.count; ++c) {
        prefetch_ahead(csr, e + c, x, width, bytes);
        rows[c] = x + chunk.columns[c] * width;
      }
      int c = 0;
      for (; c + 4 <= chunk.count; c += 4) {
        add_to_kernels<4>(rows, weights, c, kernels, slice.width, sums);
      }
      for (; c < chunk.count; ++c) {
        add_to_kernels<1>(rows, weights, c, kernels, slice.width, sums);
      }
    });
    for (int64_t k = 0; k < kernels; ++k) {
      const int64_t feature = (first + k) * width + slice.feature;
      if (stretch.whole) finish(args, stretch.end - stretch.begin, slice.width, sums[k]);
      put(sums[k], slice.width, static_cast<T*>(args.out) + row * all + feature,
          stretch.whole ? nullptr : static_cast<A*>(args.partials) + work.part * all + feature);
    }
  }
}

template <class T>
void sum_each(const GaussianSumArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const GaussianArgs& gaussian = args.gaussian;
  const int64_t width = gaussian.width, all = gaussian.kernels * width;
  const int64_t slices = slices_of(width);
  const int64_t blocks = (gaussian.kernels + kKernels - 1) / kKernels;
  const int64_t edge_bytes = width * static_cast<int64_t>(sizeof(T)) / slices;
  over_rows(gaussian.rows, executor, slices * blocks, edge_bytes,
            [&](int64_t slice, const Work& work) {
              run_each<T>(args, slice % blocks * kKernels, Slice(width, slice / blocks), work);
            });
  over_chunked_rows(gaussian.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = sum_parts(static_cast<A*>(args.partials), all, first, last);
    finish(args, row_begin(gaussian.rows, row + 1) - row_begin(gaussian.rows, row), all, sums);
    store_row(static_cast<T*>(args.out) + row * all, sums, all);
  });
}

bool is_empty(const GaussianArgs& args) {
  return args.rows.num_rows == 0 || args.width == 0 || args.kernels == 0;
}

}  // namespace

namespace JAXGNN_ISA {

void gaussian_spmm(const GaussianSumArgs& args, const Executor& executor) {
  if (is_empty(args.gaussian)) return;
  with_type(args.gaussian.type, [&](auto type) {
    using T = decltype(type);
    args.shared_input ? sum_each<T>(args, executor) : sum_all<T>(args, executor);
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::gaussian
