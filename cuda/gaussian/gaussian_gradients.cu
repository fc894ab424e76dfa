// The gradients of the coordinates and of the Gaussians' parameters, by the rows of either end.
//
// This file has the walk over rows that are long, or not read as 16-byte vectors, and the code
// shared with short rows, whose walk is in short_rows.cuh. A team processes a chunk of a long row,
// or several whole rows in sequence, and all features: its groups compute the dot products of the
// two ends' rows, eight edges at a time, and the lane that owns an edge stores those of up to four
// kernels. Contributions of an edge to sums over a row, or over all edges, accumulate in the owning
// lane until the rows are done. The parameters' sums are written team by team, in partial sums that
// two more kernels add in a fixed order. More than four kernels need further passes.
#include <type_traits>

#include "common/gaussian.h"
#include "cuda/core/reduce.cuh"
#include "cuda/gaussian/gaussian_gradients.cuh"
#include "cuda/gaussian/short_rows.cuh"

namespace jaxgnn::gaussian {
namespace {

// Whole rows that a team takes.
constexpr int kRowsEach = 4;

// The dot products of a tile's edges under the kernels from p.first on, each for the lane that
// weighs the edge; of those that are not there, the columns are any. With kStacked the row has the
// features of all kernels, and an edge's other end one row for all of them; else it is the other
// way round. Columns of 16-byte loads are of 32 bits.
template <bool kStacked, int V, typename Team, int kKernels, typename T, typename A>
__device__ inline void dot_edges(const CoordinateParams<T>& p, int64_t row, int64_t column,
                                 A (&dots)[kKernels]) {
  constexpr int kEdges = Team::kLanes;
  using Index = std::conditional_t<(V > 1), unsigned, int64_t>;
  const int last = p.gaussians.kernels - 1 - p.first;
  const int64_t of_kernels = p.gaussians.kernels * p.width;
  const T* own =
      kStacked ? p.stacked + row * of_kernels + p.first * p.width : p.single + row * p.width;
  const T* column_terms = kStacked ? p.single : p.stacked + p.first * p.width;
  Index others[kEdges];
#pragma unroll
  for (int u = 0; u < kEdges; ++u) {
    others[u] = static_cast<Index>(Team::from(column, u));
  }
  const auto other = [&](const T* from, Index u) {
    if constexpr (V > 1)
      return row_of(from, u, kStacked ? p.single_bytes : p.stacked_bytes);
    else
      return from + u * (kStacked ? p.width : of_kernels);
  };
  A sums[kKernels][kEdges] = {};
#pragma unroll 1
  for (int64_t f = Team::local() * V; f < p.width; f += Team::kLanes * V) {
    // Beyond the last kernel its row is read again; the result is unused.
    const auto at = [&](int k) { return min(k, last) * p.width + f; };
    Vector<T, V> row_terms[kStacked ? kKernels : 1];
#pragma unroll
    for (int k = 0; k < (kStacked ? kKernels : 1); ++k)
      row_terms[k] = load_vector<T, V>(own + at(k));
#pragma unroll
    for (int k = 0; k < (kStacked ? 1 : kKernels); ++k) {
      Vector<T, V> vectors[kEdges];
#pragma unroll
      for (int u = 0; u < kEdges; ++u)
        vectors[u] = load_vector<T, V>(other(column_terms + at(k), others[u]));
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if constexpr (kStacked) {
#pragma unroll
          for (int i = 0; i < kKernels; ++i) add_product(row_terms[i], vectors[u], sums[i][u]);
        } else {
          add_product(row_terms[0], vectors[u], sums[k][u]);
        }
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kKernels; ++k) {
    dots[k] = scatter_sums(sums[k], Team::local(), kFullWarp);
  }
}

// A lane's partial sums over its edges, in shared memory: the registers hold rows in flight.
template <typename A, int kKernels>
struct Moments {
  static constexpr int kNumbers = 1 + 2 * kKernels;  // of a coordinate

  A* own;  // the thread's numbers are kGaussianThreads apart

  __device__ Moments(A* shared, int dims) : own(shared + threadIdx.x) {
#pragma unroll 1
    for (int i = 0; i < dims * kNumbers; ++i) own[i * kGaussianThreads] = A(0);
  }
  __device__ A& row_terms(int d) const { return own[d * kNumbers * kGaussianThreads]; }
  // Of the edges of all rows.
  __device__ A& first(int d, int k) const { return own[(d * kNumbers + 1 + k) * kGaussianThreads]; }
  __device__ A& second(int d, int k) const {
    return own[(d * kNumbers + 1 + kKernels + k) * kGaussianThreads];
  }

  // Adds what an edge with these dot products contributes; edge_gradient is its own, or null.
  __device__ void add(const Gaussians<A>& g, int from, const Coordinates<A>& at,
                      A (&dots)[kKernels], A* edge_gradient) const {
    A weights[kKernels];
    weigh(g, at, from, weights);
#pragma unroll
    for (int k = 0; k < kKernels; ++k) dots[k] = from + k < g.kernels ? dots[k] * weights[k] : A(0);
#pragma unroll 1
    for (int d = 0; d < g.dims; ++d) {
      const A coordinate = at[d];
      A gradient = A(0);
#pragma unroll
      for (int k = 0; k < kKernels; ++k) {
        const int i = min(from + k, g.kernels - 1) * g.dims + d;
        const A inv_sigma = g.inv_sigma[i];
        const A distance = coordinate - g.mu[i], product = dots[k] * distance;
        gradient -= product * inv_sigma * inv_sigma;
        first(d, k) += product;
        second(d, k) += product * distance;
      }
      if (g.tanh) gradient *= A(1) - coordinate * coordinate;
      row_terms(d) += gradient;
      if (edge_gradient != nullptr) {
        edge_gradient[d] = from > 0 ? edge_gradient[d] + gradient : gradient;
      }
    }
  }
};

template <typename T, bool kStacked, int V, typename Team, int kKernels>
__global__ void __launch_bounds__(kGaussianThreads, kLeastBlocks)
    coordinate_rows(const CoordinateParams<T> p) {
  using A = typename Accumulator<T>::type;
  const int64_t team = Team::worker(), parts = p.rows.num_chunks;
  extern __shared__ double memory[];
  A* shared = reinterpret_cast<A*>(memory);
  const Gaussians<A> g = stage(p.gaussians, shared);
  const int dims = g.dims;
  const Moments<A, kKernels> moments(shared + p.staged, dims);

  const auto take = [&](const Work& work) {
    for (int begin = 0; begin < work.count; begin += Team::kSize) {
      const int edge = begin + Team::slot();
      const bool there = edge < work.count;
      const int64_t place = work.begin + edge;
      const int64_t column = there ? load_column(p.rows, place) : 0;
      A dots[kKernels];
      dot_edges<kStacked, V, Team>(p, work.row, column, dots);
      if (!there) continue;
      A* edge_gradient = nullptr;
      if (p.edge_gradient != nullptr) {
        edge_gradient = p.edge_gradient + edge_number(g, place) * dims;
      }
      moments.add(g, p.first, Coordinates<A>(g, work.row, column, place), dots, edge_gradient);
    }
    __syncwarp(kFullWarp);
    if (p.row_terms_gradient == nullptr) return;
    A* to = work.part < 0 ? p.row_terms_gradient + work.row * dims : p.partials + work.part * dims;
#pragma unroll 1
    for (int d = 0; d < dims; ++d) {
      const A sum = Team::template sum<1, Team::kSize>(moments.row_terms(d));
      moments.row_terms(d) = A(0);
      if (Team::lane() == 0) to[d] = p.first > 0 ? to[d] + sum : sum;
    }
  };
  if (team < parts) {
    const Work work = find_work(p.rows, team);
    if (work.row >= 0) take(work);
  } else {
    const int64_t first = (team - parts) * kRowsEach;
    const int64_t last = min(first + kRowsEach, p.rows.num_rows);
    // Rows are known two ahead, their offsets one ahead.
    const auto row_at = [&](int64_t i) {
      i = i < last ? i : last - 1;
      return p.rows.order == nullptr ? i : int64_t(__ldg(p.rows.order + i));
    };
    int64_t row = 0, next = 0, begin = 0, end = 0;
    if (first < last) {
      row = row_at(first);
      next = row_at(first + 1);
      begin = load_offset(p.rows, row);
      end = load_offset(p.rows, row + 1);
    }
#pragma unroll 1
    for (int64_t i = first; i < last; ++i) {
      const int64_t next_begin = load_offset(p.rows, next),
                    next_end = load_offset(p.rows, next + 1);
      const int64_t after = row_at(i + 2);
      const int64_t degree = end - begin;
      if (degree <= p.rows.chunk_length) {  // else its parts do it
        take(Work{row, -1, begin, static_cast<int>(degree), degree});
      }
      row = next;
      next = after;
      begin = next_begin;
      end = next_end;
    }
  }
  const bool beyond = (team - parts) * kRowsEach >= p.rows.num_rows;  // teams that fill a block
  if (p.block_sums == nullptr || beyond) return;
  A* block_sum = p.block_sums + team * 2 * g.kernels * dims + p.first * dims;
#pragma unroll 1
  for (int d = 0; d < dims; ++d) {
#pragma unroll
    for (int k = 0; k < kKernels; ++k) {
      const A first = Team::template sum<1, Team::kSize>(moments.first(d, k));
      const A second = Team::template sum<1, Team::kSize>(moments.second(d, k));
      if (Team::lane() > 0 || p.first + k >= g.kernels) continue;
      block_sum[k * dims + d] = first;
      block_sum[(g.kernels + k) * dims + d] = second;
    }
  }
}

// Teams of a pass: one for each chunk, and one for each group of rows that a team processes.
int64_t count_teams(const Rows& rows) {
  return rows.num_chunks + (rows.num_rows + kRowsEach - 1) / kRowsEach;
}

// Adds partial sums, `step` apart, in a fixed order: each block adds `each` of them into the first
// one. With `final` there is one block, which makes the parameters' gradients of the sum.
constexpr int kColumns = 32, kStripes = 8, kBlockSums = 1024;

template <typename A>
__global__ void __launch_bounds__(kColumns* kStripes)
    add_block_sums(A* block_sums, int64_t count, int64_t step, int64_t each, int entries,
                   const A* inv_sigma, A* mu_gradient, A* inv_sigma_gradient) {
  __shared__ A stripes[kStripes][kColumns];
  const int column = blockIdx.y * kColumns + threadIdx.x;
  const int64_t first = blockIdx.x * each * step;
  const int64_t last = min(first + each * step, count);
  A sum = A(0);
  if (column < entries) {
    for (int64_t i = first + threadIdx.y * step; i < last; i += kStripes * step) {
      sum += block_sums[i * entries + column];
    }
  }
  stripes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= entries) return;
  sum = A(0);
#pragma unroll
  for (int i = 0; i < kStripes; ++i) sum += stripes[i][threadIdx.x];
  if (mu_gradient == nullptr) {
    block_sums[first * entries + column] = sum;
  } else if (column < entries / 2) {
    mu_gradient[column] = sum * inv_sigma[column] * inv_sigma[column];
  } else {
    const int i = column - entries / 2;
    inv_sigma_gradient[i] = -sum * inv_sigma[i];
  }
}

template <typename A>
cudaError_t launch_sums(const GaussianGradientArgs& args, int64_t count, const Launch& launch) {
  const GaussianArgs& from = args.gaussian;
  const int entries = static_cast<int>(2 * from.kernels * from.dims);
  const int64_t blocks = (count + kBlockSums - 1) / kBlockSums;
  const dim3 threads(kColumns, kStripes);
  const unsigned across = static_cast<unsigned>((entries + kColumns - 1) / kColumns);
  A* block_sums = static_cast<A*>(args.block_sums);
  const A* inv_sigma = static_cast<const A*>(from.inv_sigma);
  JAXGNN_TRY(launch_kernel(launch, add_block_sums<A>, dim3(static_cast<unsigned>(blocks), across),
                           threads, 0, block_sums, count, 1, kBlockSums, entries, inv_sigma,
                           static_cast<A*>(nullptr), static_cast<A*>(nullptr)));
  return launch_kernel(launch, add_block_sums<A>, dim3(1, across), threads, 0, block_sums, count,
                       kBlockSums, blocks, entries, inv_sigma, static_cast<A*>(args.mu_gradient),
                       static_cast<A*>(args.inv_sigma_gradient));
}

template <typename T, bool kStacked, int V, typename Team, int kKernels>
cudaError_t launch_rows(const CoordinateParams<T>& p, const Launch& launch) {
  const auto kernel = coordinate_rows<T, kStacked, V, Team, kKernels>;
  const unsigned blocks = blocks_of(count_teams(p.rows), kGaussianThreads / Team::kSize);
  using A = typename Accumulator<T>::type;
  const int64_t own = Moments<A, kKernels>::kNumbers * p.gaussians.dims * kGaussianThreads;
  return launch_kernel(launch, kernel, blocks, kGaussianThreads, (p.staged + own) * sizeof(A), p);
}

template <typename T, bool kStacked, typename Team, int kKernels>
cudaError_t launch_short_rows(const CoordinateParams<T>& p, const Launch& launch) {
  const auto kernel = coordinate_short_rows<T, kStacked, 16 / sizeof(T), Team, kKernels>;
  using A = typename Accumulator<T>::type;
  const int64_t numbers = EdgeMoments<A, kKernels>::kNumbers * int64_t(kGaussianThreads);
  const int64_t bytes = p.gaussians.dims * (numbers * sizeof(A) + kKernels * sizeof(Bell<A>));
  const unsigned blocks = blocks_of(count_warps(p.rows), kGaussianThreads / 32);
  return launch_kernel(launch, kernel, blocks, kGaussianThreads, bytes, p);
}

template <typename T>
bool is_aligned(const CoordinateParams<T>& p) {
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(p.single) | reinterpret_cast<uintptr_t>(p.stacked);
  return sizeof(T) < 8 && p.width % (16 / sizeof(T)) == 0 && addresses % 16 == 0 &&
         !p.rows.wide_columns;
}

template <typename T>
bool takes_short_rows(const CoordinateParams<T>& p) {
  return is_aligned(p) && !has_long_rows(p.rows) && p.rows.num_rows <= INT32_MAX &&
         !p.gaussians.wide_order && p.width > 0;
}

template <typename T, bool kStacked, int kKernels>
cudaError_t launch_pass(const CoordinateParams<T>& p, const Launch& launch) {
  constexpr int V = 16 / sizeof(T);
  if constexpr (sizeof(T) < 8) {  // float64 is read one by one
    const bool is_short = takes_short_rows(p);
    if (launch.load || is_short) {
      JAXGNN_TRY((with_short_team<T>(p.width, launch, [&](auto team) {
        return launch_short_rows<T, kStacked, decltype(team), kKernels>(p, launch);
      })));
    }
    if (launch.load || (is_aligned(p) && !is_short)) {
      JAXGNN_TRY((launch_rows<T, kStacked, V, LongTeam, kKernels>(p, launch)));
    }
    if (!launch.load && is_aligned(p)) return cudaSuccess;
  }
  if constexpr (kKernels == 1 || (kKernels == 4 && sizeof(T) < 8)) {
    return launch_rows<T, kStacked, 1, LongTeam, kKernels>(p, launch);
  }
  return cudaSuccess;
}

// Kernels of a pass. In float64 one: the moments of more would not fit in shared memory.
template <typename T>
int kernels_of_pass(const CoordinateParams<T>& p) {
  return sizeof(T) == 8 ? 1 : kernels_together(p.gaussians.kernels, !is_aligned(p));
}

template <typename T>
cudaError_t launch_type(const GaussianGradientArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const GaussianArgs& from = args.gaussian;
  CoordinateParams<T> p{from.rows,
                        make_gaussians<A>(from),
                        static_cast<const T*>(args.single),
                        static_cast<const T*>(args.stacked),
                        static_cast<A*>(args.row_terms_gradient),
                        static_cast<A*>(args.edge_gradient),
                        static_cast<A*>(args.partials),
                        args.mu_gradient == nullptr ? nullptr : static_cast<A*>(args.block_sums),
                        from.width,
                        static_cast<unsigned>(from.width * sizeof(T)),
                        static_cast<unsigned>(from.kernels * from.width * sizeof(T)),
                        0,
                        0};
  p.staged = staged_numbers(p.gaussians);
  const int together = launch.load ? 4 : kernels_of_pass(p);
  for (; launch.load || p.first < from.kernels; p.first += together) {
    JAXGNN_TRY(with_kernels(together, launch.load, [&](auto tag) {
      constexpr int kKernels = decltype(tag)::value;
      if (launch.load || args.rows_stacked) JAXGNN_TRY((launch_pass<T, true, kKernels>(p, launch)));
      if (launch.load || !args.rows_stacked) return launch_pass<T, false, kKernels>(p, launch);
      return cudaSuccess;
    }));
    if (launch.load) break;
  }
  if (launch.load || args.row_terms_gradient != nullptr) {
    JAXGNN_TRY((launch_join<A, Sum>(p.rows, p.partials, p.row_terms_gradient, from.dims, false,
                                    false, launch)));
  }
  if (launch.load || args.mu_gradient != nullptr) {
    const int64_t count = takes_short_rows(p) ? count_warps(p.rows) : count_teams(p.rows);
    return launch_sums<A>(args, count, launch);
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_gaussian_coordinates(const GaussianGradientArgs& args, const Launch& launch) {
  const bool empty = args.gaussian.rows.num_rows == 0 || args.gaussian.kernels == 0;
  if (!launch.load && empty) return cudaSuccess;
  return with_type(launch, args.gaussian.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::gaussian
