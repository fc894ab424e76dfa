// The gradients of the coordinates and of the Gaussians' parameters, by the rows of either end:
// dot products of the two ends' features, edge by edge and kernel by kernel.
#include "cpu/core/dot.h"
#include "cpu/gaussian/gaussian.h"
#include "cpu/gaussian/gaussian_spmm.h"

namespace jaxgnn::gaussian {
namespace {

// Rows whose partial sums one worker adds, independent of the number of workers.
constexpr int64_t kBlockSums = 1024;

// A row's sums over its edges of g (p - mu), and then of g (p - mu)^2, by kernel and coordinate.
template <class A>
JAXGNN_INLINE A* block_sum_of(const GaussianGradientArgs& args, int64_t number) {
  return static_cast<A*>(args.block_sums) + number * 2 * args.gaussian.kernels * args.gaussian.dims;
}

// g of a chunk's edges under the kernels [first, first + some), from their weights.
template <class T, class A>
JAXGNN_INLINE void add_dots(const GaussianGradientArgs& args, const Chunk<A>& chunk, int64_t row,
                            int64_t first, int64_t some, A (*g)[kChunk]) {
  const int64_t width = args.gaussian.width, kernels = args.gaussian.kernels;
  for (int c = 0; c < chunk.count; ++c) {
    const int64_t one = args.rows_stacked ? chunk.columns[c] : row;
    const int64_t many = args.rows_stacked ? row : chunk.columns[c];
    const T* a = static_cast<const T*>(args.single) + one * width;
    const T* x = static_cast<const T*>(args.stacked) + (many * kernels + first) * width;
    for (int64_t k = 0; k < some; ++k) {
      const T* b = x + k * width;
      g[k][c] *= sum_terms<A, kLanes<T>>(0, width, [a, b](auto lanes, int64_t f) {
        constexpr int N = decltype(lanes)::value;
        return load<N>(a + f) * load<N>(b + f);
      });
    }
  }
}

// Adds a kernel's g to the gradients of the coordinates, and to the row's partial sums if not null.
template <class A>
JAXGNN_INLINE void add_kernel(const GaussianArgs& args, const Chunk<A>& chunk, int64_t k,
                              const A* g, A (*coordinates)[kChunk], A* block_sum) {
  constexpr int N = kLanes<A>;
  for (int64_t d = 0; d < args.dims; ++d) {
    const A mu = static_cast<const A*>(args.mu)[k * args.dims + d];
    const A inv_sigma = static_cast<const A*>(args.inv_sigma)[k * args.dims + d];
    const A scale = -inv_sigma * inv_sigma;
    Vector<A, N> sums = {}, squares = {};
    for (int c = 0; c < kChunk; c += N) {
      const Vector<A, N> distance = load<N>(chunk.coordinates[d] + c) - mu;
      const Vector<A, N> product = load<N>(g + c) * distance;
      sums += product;
      squares += product * distance;
      store<N>(coordinates[d] + c, load<N>(coordinates[d] + c) + product * scale);
    }
    if (block_sum == nullptr) continue;
    block_sum[k * args.dims + d] += sum_lanes<A, N>(sums);
    block_sum[(args.kernels + k) * args.dims + d] += sum_lanes<A, N>(squares);
  }
}

template <class T>
__attribute__((noinline)) void run(const GaussianGradientArgs& args, const Work& work) {
  using A = Accumulator<T>;
  const GaussianArgs& gaussian = args.gaussian;
  const Rows& csr = gaussian.rows;
  const int64_t dims = gaussian.dims, kernels = gaussian.kernels;
  const bool recorded = args.mu_gradient != nullptr;
  A* edge_gradient = static_cast<A*>(args.edge_gradient);
  const T* gathered = static_cast<const T*>(args.rows_stacked ? args.single : args.stacked);
  const int64_t stride = gaussian.width * (args.rows_stacked ? 1 : kernels);
  const int64_t bytes = min_of(stride * static_cast<int64_t>(sizeof(T)), 2048);
  A g[kKernels][kChunk] = {}, coordinates[kMaxDims][kChunk], totals[kMaxDims];

  for (int64_t row = work.first; row < work.last; ++row) {
    const Stretch stretch(csr, work, row);
    A* block_sum = nullptr;
    if (recorded) {
      block_sum = block_sum_of<A>(args, stretch.whole ? csr.num_chunks + row : work.part);
      std::memset(block_sum, 0, sizeof(A) * static_cast<size_t>(2 * kernels * dims));
    }
    if (stretch.elsewhere) continue;
    for (int64_t d = 0; d < dims; ++d) totals[d] = 0;
    over_chunks<A>(gaussian, row, stretch.begin, stretch.end, [&](const auto& chunk, int64_t e) {
      for (int c = 0; c < chunk.count; ++c) prefetch_ahead(csr, e + c, gathered, stride, bytes);
      std::memset(coordinates, 0, sizeof(coordinates[0]) * static_cast<size_t>(dims));
      for (int64_t first = 0; first < kernels; first += kKernels) {
        const int64_t some = min_of(kernels - first, kKernels);
        for (int64_t k = 0; k < some; ++k) weigh(gaussian, chunk, first + k, g[k]);
        add_dots<T>(args, chunk, row, first, some, g);
        for (int64_t k = 0; k < some; ++k) {
          for (int c = chunk.count; c < kChunk; ++c) g[k][c] = 0;
          add_kernel(gaussian, chunk, first + k, g[k], coordinates, block_sum);
        }
      }
      for (int64_t d = 0; d < dims; ++d) {
        for (int c = 0; c < chunk.count; ++c) {
          const A place = chunk.coordinates[d][c];
          const A gradient = coordinates[d][c] * (gaussian.tanh ? 1 - place * place : A{1});
          if (edge_gradient != nullptr) edge_gradient[chunk.numbers[c] * dims + d] = gradient;
          totals[d] += gradient;
        }
      }
    });
    if (args.row_terms_gradient == nullptr) continue;
    A* to = stretch.whole ? static_cast<A*>(args.row_terms_gradient) + row * dims
                          : static_cast<A*>(args.partials) + work.part * dims;
    for (int64_t d = 0; d < dims; ++d) to[d] = totals[d];
  }
}

// The parameters' gradients: the rows' partial sums, added block by block and then over the blocks.
template <class A>
void add_block_sums(const GaussianGradientArgs& args, const Executor& executor) {
  const GaussianArgs& gaussian = args.gaussian;
  const Rows& csr = gaussian.rows;
  const int64_t each = gaussian.kernels * gaussian.dims;
  const int64_t count = csr.num_chunks + csr.num_rows;
  const int64_t blocks = (count + kBlockSums - 1) / kBlockSums;
  auto add = [&](int64_t first, int64_t last, int64_t step) {
    A* sums = block_sum_of<A>(args, first);
    for (int64_t i = first + step; i < last; i += step) {
      const A* more = block_sum_of<A>(args, i);
      for (int64_t n = 0; n < 2 * each; ++n) sums[n] += more[n];
    }
  };
  for (int64_t part = 0; part < csr.num_chunks; ++part) {  // nobody took the padding
    const int64_t row = csr.chunks[part].row;
    if (row >= 0 && row < csr.num_rows) continue;
    std::memset(block_sum_of<A>(args, part), 0, sizeof(A) * static_cast<size_t>(2 * each));
  }
  parallel_for(executor, blocks, [&](int64_t block) {
    add(block * kBlockSums, min_of((block + 1) * kBlockSums, count), 1);
  });
  add(0, count, kBlockSums);
  const A* sums = block_sum_of<A>(args, 0);
  const A* inv_sigma = static_cast<const A*>(gaussian.inv_sigma);
  for (int64_t n = 0; n < each; ++n) {
    static_cast<A*>(args.mu_gradient)[n] = sums[n] * inv_sigma[n] * inv_sigma[n];
    static_cast<A*>(args.inv_sigma_gradient)[n] = -sums[each + n] * inv_sigma[n];
  }
}

template <class T>
void coordinates(const GaussianGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const GaussianArgs& gaussian = args.gaussian;
  const int64_t numbers = gaussian.kernels * gaussian.width;
  over_rows(gaussian.rows, executor, 1, numbers * static_cast<int64_t>(sizeof(T)),
            [&](int64_t, const Work& work) { run<T>(args, work); });
  if (args.row_terms_gradient != nullptr) {
    const int64_t dims = gaussian.dims;
    over_chunked_rows(gaussian.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
      const A* sums = sum_parts(static_cast<A*>(args.partials), dims, first, last);
      std::memcpy(static_cast<A*>(args.row_terms_gradient) + row * dims, sums,
                  sizeof(A) * static_cast<size_t>(dims));
    });
  }
  if (args.mu_gradient != nullptr) add_block_sums<A>(args, executor);
}

}  // namespace

namespace JAXGNN_ISA {

void gaussian_coordinates(const GaussianGradientArgs& args, const Executor& executor) {
  if (args.gaussian.rows.num_rows == 0 || args.gaussian.kernels == 0) return;
  with_type(args.gaussian.type, [&](auto type) { coordinates<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::gaussian
