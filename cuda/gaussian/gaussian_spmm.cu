// Sums of gathered rows under Gaussian weights: one of rows for each kernel, or one for each
// kernel.
//
// A team processes a row, or a chunk of a long one, and a slice of the features, 16 bytes a lane.
// The edges are processed in tiles of one edge a lane. Each lane computes one weight while the rows
// of the previous tile are read, or those of this tile where most rows fit in one tile. For one sum
// over all kernels a tile holds (edge, kernel) pairs, so that a weight is computed once a slice,
// and the contiguous rows of a column are read in sequence. For one sum a kernel all kernels share
// the gathered row: a lane computes the weights of its edge under up to four of them. Rows longer
// than the chunk length are processed in chunks; a second kernel adds the chunks in order.
#include <type_traits>

#include "cuda/core/reduce.cuh"
#include "cuda/core/slices.cuh"
#include "cuda/gaussian/gaussian.cuh"

namespace jaxgnn::gaussian {
namespace {

template <typename T>
struct Params {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Gaussians<A> gaussians;
  const T* x;  // what is gathered
  T* out;
  A* partials;
  int64_t width;       // of a row that is gathered
  unsigned row_bytes;  // the same
  int slices;          // of it
  bool mean;
};

constexpr int kInFlight = 4;       // rows of a group that are read together
constexpr int kShortInFlight = 8;  // of a team of one group; half of it at the end

// Whether rows are read at once, by one group, by 16-byte loads. Then absent edges repeat the last
// edge's column and are not added: conditional loads would become copies, which wait for them.
template <typename Team, bool kWide>
constexpr bool kReadAtOnce = Team::kGroups == 1 && !kWide;

// The rows of a tile that a team reads, and what is done with each.
template <typename T, int V, typename Team, bool kWide>
struct Tile {
  using Index = std::conditional_t<kWide, int64_t, unsigned>;

  const T* x;  // at the lane's features
  int64_t width;
  unsigned row_bytes;

  __device__ Vector<T, V> fetch(Index row) const {
    if constexpr (kWide) return load_vector<T, V>(x + row * width);
    return load_vector<T, V>(row_of(x, row, row_bytes));
  }

  // Reads the rows of the team's first `left` edges, calls ahead() behind the first loads, and
  // add(u, vector, there) for the group's u-th row; what is not there is 0, or where rows are read
  // at once any row. A team of the warp has `most` edges left.
  template <typename Ahead, typename Add>
  __device__ void run(Index row, int left, int most, const Ahead& ahead, const Add& add) const {
    if constexpr (kReadAtOnce<Team, kWide>) {
      read(row, 0, left, most, ahead, add);
      const int end = min(most, Team::kLanes);
#pragma unroll 1
      for (int first = kShortInFlight; first < end; first += kShortInFlight) {
        read(row, first, left, most, [] {}, add);
      }
      return;
    }
    if (left >= Team::kSize) {
      batch<true>(row, 0, left, ahead, add);
#pragma unroll(Team::kLanes <= 8 ? 2 : 1)
      for (int first = kInFlight; first < Team::kLanes; first += kInFlight) {
        batch<true>(row, first, left, [] {}, add);
      }
      return;
    }
    batch<false>(row, 0, left, ahead, add);
#pragma unroll 1
    for (int first = kInFlight; first * Team::kGroups < left; first += kInFlight) {
      batch<false>(row, first, left, [] {}, add);
    }
  }

 private:
  template <typename Ahead, typename Add>
  __device__ void read(Index row, int first, int left, int most, const Ahead& ahead,
                       const Add& add) const {
    if (most - first > kShortInFlight / 2) {
      read_rows<kShortInFlight>(row, first, left, ahead, add);
    } else {
      read_rows<kShortInFlight / 2>(row, first, left, ahead, add);
    }
  }
  template <int kRows, typename Ahead, typename Add>
  __device__ void read_rows(Index row, int first, int left, const Ahead& ahead,
                            const Add& add) const {
    Vector<T, V> vectors[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      vectors[u] = fetch(Team::from(row, first + u));
    }
    ahead();
#pragma unroll
    for (int u = 0; u < kRows; ++u) add(first + u, vectors[u], first + u < left);
  }
  template <bool kWhole, typename Ahead, typename Add>
  __device__ void batch(Index row, int first, int left, const Ahead& ahead, const Add& add) const {
    Vector<T, V> vectors[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const Index from = Team::from(row, first + u);
      if constexpr (!kWhole) vectors[u] = {};
      if (kWhole || (first + u) * Team::kGroups + Team::group() < left) vectors[u] = fetch(from);
    }
    ahead();
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) add(first + u, vectors[u], true);
  }
};

// Adds up the groups' sums and stores them.
template <typename T, int V, typename Team, typename A>
__device__ inline void finish(const Work& work, T* out, A* partials, int64_t width, int64_t f,
                              bool mean, bool active, A (&acc)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) acc[i] = Team::template sum<Team::kLanes, Team::kSize>(acc[i]);
  if (Team::group() == 0 && active && work.row >= 0) {
    store_row<T, V, A>(work, out, partials, width, f, mean, acc);
  }
}

template <typename T, int V, typename Team, bool kWide>
__global__ void __launch_bounds__(kGaussianThreads) mixed_rows(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  using Tiles = Tile<T, V, Team, kWide>;
  using Index = typename Tiles::Index;
  constexpr bool kAtOnce = kReadAtOnce<Team, kWide>;
  const Work work = find_work(p.rows, Team::worker());
  if (Team::kSize == 32 && work.row < 0) return;
  const Gaussians<A>& g = p.gaussians;
  const int64_t f = (int64_t(slice_number()) * Team::kLanes + Team::local()) * V;
  const bool active = f < p.width;  // lanes beyond the width repeat the first ones' work
  const Tiles tiles{p.x + (active ? f : 0), p.width, p.row_bytes};
  A acc[V] = {};

  // The lane's pair of the next tile, and its column. That of the tile itself is weighed already,
  // or behind the loads of its rows where they are read at once.
  int edge = Team::slot() / g.kernels, kernel = Team::slot() % g.kernels;
  const int edges_on = Team::kSize / g.kernels, kernels_on = Team::kSize % g.kernels;
  int64_t column = 0;
  Index row = 0;
  A weight[1] = {A(0)};
  const auto load_next = [&] {
    const int from = kAtOnce ? min(edge, work.count - 1) : edge;
    column = from >= 0 && from < work.count ? load_column(p.rows, work.begin + from) : 0;
  };
  const auto weigh_next = [&] {
    row = static_cast<Index>(column * g.kernels + kernel);
    weight[0] = A(0);
    if (edge < work.count) {
      weigh(g, Coordinates<A>(g, work.row, column, work.begin + edge), kernel, weight);
    }
    edge += edges_on;
    kernel += kernels_on;
    if (kernel >= g.kernels) kernel -= g.kernels, ++edge;
    load_next();
  };
  load_next();
  if constexpr (!kAtOnce) weigh_next();
  for (int64_t left = int64_t(work.count) * g.kernels;; left -= Team::kSize) {
    const int here = static_cast<int>(left < Team::kSize ? left : Team::kSize);
    const int most = Team::most(here);
    if (most <= 0) break;
    const A before = weight[0];
    if constexpr (kAtOnce) row = static_cast<Index>(column * g.kernels + kernel);
    tiles.run(row, here, most, weigh_next, [&](int u, const Vector<T, V>& vector, bool there) {
      const A scale = Team::from(kAtOnce ? weight[0] : before, u);
      if (there) add_scaled(scale, vector, acc);
    });
  }
  finish<T, V, Team>(work, p.out, p.partials, p.width, f, p.mean, active, acc);
}

template <typename T, int V, typename Team, bool kWide, int kKernels>
__global__ void __launch_bounds__(kGaussianThreads) rows_of_each(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  using Tiles = Tile<T, V, Team, kWide>;
  using Index = typename Tiles::Index;
  constexpr bool kAtOnce = kReadAtOnce<Team, kWide>;
  const Work work = find_work(p.rows, Team::worker());
  if (Team::kSize == 32 && work.row < 0) return;
  const Gaussians<A>& g = p.gaussians;
  const int slice = slice_number() % p.slices, first = slice_number() / p.slices * kKernels;
  if (first >= g.kernels) return;
  const int64_t f = (int64_t(slice) * Team::kLanes + Team::local()) * V;
  const bool active = f < p.width;
  const Tiles tiles{p.x + (active ? f : 0), p.width, p.row_bytes};
  A acc[kKernels][V] = {};

  int edge = Team::slot();
  int64_t column = 0;
  Index row = 0;
  A weights[kKernels] = {};
  const auto load_next = [&] {
    const int from = kAtOnce ? min(edge, work.count - 1) : edge;
    column = from >= 0 && from < work.count ? load_column(p.rows, work.begin + from) : 0;
  };
  const auto weigh_next = [&] {
    row = static_cast<Index>(column);
    if (edge < work.count) {
      weigh(g, Coordinates<A>(g, work.row, column, work.begin + edge), first, weights);
    } else {
#pragma unroll
      for (int k = 0; k < kKernels; ++k) weights[k] = A(0);
    }
    edge += Team::kSize;
    load_next();
  };
  load_next();
  if constexpr (!kAtOnce) weigh_next();
  for (int left = work.count;; left -= Team::kSize) {
    const int most = Team::most(left);
    if (most <= 0) break;
    A before[kKernels];
#pragma unroll
    for (int k = 0; k < kKernels; ++k) before[k] = weights[k];
    if constexpr (kAtOnce) row = static_cast<Index>(column);
    tiles.run(row, left, most, weigh_next, [&](int u, const Vector<T, V>& vector, bool there) {
#pragma unroll
      for (int k = 0; k < kKernels; ++k) {
        const A scale = Team::from(kAtOnce ? weights[k] : before[k], u);
        if (there) add_scaled(scale, vector, acc[k]);
      }
    });
  }
#pragma unroll
  for (int k = 0; k < kKernels; ++k) {
    if (first + k >= g.kernels) break;
    finish<T, V, Team>(work, p.out, p.partials, p.width * g.kernels, (first + k) * p.width + f,
                       p.mean, active, acc[k]);
  }
}

// Launches a kernel for all rows, parts and slices.
template <typename T, int V, typename Team>
cudaError_t launch_rows(void (*kernel)(Params<T>), Params<T> p, int blocks, const Launch& launch) {
  constexpr int64_t kSlice = Team::kLanes * V;
  p.slices = static_cast<int>((p.width + kSlice - 1) / kSlice);
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const dim3 grid =
      slice_grid(blocks_of(workers, kGaussianThreads / Team::kSize), int64_t{p.slices} * blocks);
  return launch_kernel(launch, kernel, grid, kGaussianThreads, 0, p);
}

// Whether the rows allow 16-byte vector loads at 32-bit indices.
template <typename T>
bool is_simple(const Params<T>& p, int64_t gathered) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.out);
  return sizeof(T) < 8 && p.width % (16 / sizeof(T)) == 0 && addresses % 16 == 0 &&
         gathered <= UINT32_MAX && !p.rows.wide_columns;
}

// Calls f(team) for rows that are read one by one.
template <typename T, typename F>
cudaError_t with_any_team(const Params<T>& p, const Launch& launch, F f) {
  const bool few = p.width <= kFewFeatures;
  if (launch.load || few) JAXGNN_TRY(f(LongTeam{}));
  if (launch.load || !few) JAXGNN_TRY(f(WideTeam{}));
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_mixed(const Params<T>& p, bool simple, const Launch& launch) {
  constexpr int V = 16 / sizeof(T);
  const bool is_long = has_long_rows(p.rows);
  if (launch.load || simple) {
    JAXGNN_TRY((with_aligned_team<T>(p.width, is_long, launch, [&](auto team) {
      using Team = decltype(team);
      return launch_rows<T, V, Team>(mixed_rows<T, V, Team, false>, p, 1, launch);
    })));
  }
  if (launch.load || !simple) {
    JAXGNN_TRY((with_any_team<T>(p, launch, [&](auto team) {
      using Team = decltype(team);
      return launch_rows<T, 1, Team>(mixed_rows<T, 1, Team, true>, p, 1, launch);
    })));
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_each(const Params<T>& p, bool simple, const Launch& launch) {
  constexpr int V = 16 / sizeof(T);
  const int64_t kernels = p.gaussians.kernels;
  const bool is_long = has_long_rows(p.rows);
  const int together = launch.load ? 0 : kernels_together(kernels, !simple);
  return with_kernels(together, launch.load, [&](auto tag) {
    constexpr int kKernels = decltype(tag)::value;
    const int blocks = static_cast<int>((kernels + kKernels - 1) / kKernels);
    if (launch.load || simple) {
      JAXGNN_TRY((with_aligned_team<T>(p.width, is_long, launch, [&](auto team) {
        using Team = decltype(team);
        return launch_rows<T, V, Team>(rows_of_each<T, V, Team, false, kKernels>, p, blocks,
                                       launch);
      })));
    }
    if constexpr (kKernels == 1 || kKernels == 4) {
      if (launch.load || !simple) {
        return with_any_team<T>(p, launch, [&](auto team) {
          using Team = decltype(team);
          return launch_rows<T, 1, Team>(rows_of_each<T, 1, Team, true, kKernels>, p, blocks,
                                         launch);
        });
      }
    }
    return cudaSuccess;
  });
}

template <typename T>
cudaError_t launch_type(const GaussianSumArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const GaussianArgs& from = args.gaussian;
  const Params<T> p{from.rows,
                    make_gaussians<A>(from),
                    static_cast<const T*>(args.x),
                    static_cast<T*>(args.out),
                    static_cast<A*>(args.partials),
                    from.width,
                    static_cast<unsigned>(from.width * sizeof(T)),
                    1,
                    args.mean};
  const bool simple = is_simple(p, from.num_columns * (args.shared_input ? 1 : from.kernels));
  if (launch.load || args.shared_input) JAXGNN_TRY(launch_each<T>(p, simple, launch));
  if (launch.load || !args.shared_input) JAXGNN_TRY(launch_mixed<T>(p, simple, launch));
  const int64_t width = args.shared_input ? p.width * from.kernels : p.width;
  return launch_join<T, Sum>(p.rows, p.partials, p.out, width, p.mean, false, launch);
}

}  // namespace

cudaError_t launch_gaussian_spmm(const GaussianSumArgs& args, const Launch& launch) {
  const GaussianArgs& from = args.gaussian;
  const bool empty = from.rows.num_rows == 0 || from.width == 0 || from.kernels == 0;
  if (!launch.load && empty) return cudaSuccess;
  return with_type(launch, from.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::gaussian
