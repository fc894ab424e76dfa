// The gradients of the coordinates and of the Gaussians' parameters by short rows, which are read
// 16 bytes a lane.
//
// Eight lanes process a row, or a chunk of a long one, in tiles of eight edges, one edge a lane:
// the lane computes the edge's weight and stores its contribution to the sums. The lanes that span
// one row of features serve their rows in sequence: the columns' rows of a tile are in flight at
// once, and each dot product ends in the lane of its edge. For the last <= 4 edges half of the
// loads and products are skipped. All lanes of a warp run in lockstep: full-warp shuffles need no
// participation mask.
#pragma once

#include "cuda/gaussian/gaussian_gradients.cuh"

namespace jaxgnn::gaussian {

constexpr int kTileEdges = 8;               // and the lanes that have them
constexpr int kWarpRows = 32 / kTileEdges;  // that a warp takes at once
constexpr int kShortTurns = 2;              // one after the other

// Warps of parts, and of rows.
__host__ __device__ inline int part_warps(const Rows& rows) {
  return (rows.num_chunks + kWarpRows - 1) / kWarpRows;
}
__host__ __device__ inline int row_warps(const Rows& rows) {
  constexpr int kRows = kWarpRows * kShortTurns;
  return static_cast<int>((rows.num_rows + kRows - 1) / kRows);
}
inline int64_t count_warps(const Rows& rows) { return int64_t(part_warps(rows)) + row_warps(rows); }

// The dot products of up to kEdges edges of a row under the kernels from p.first on, for the lanes
// that have the edges, of any row: lane u of each eight has the u-th column. `own` is what the row
// has of features, from the first of these kernels on with kStacked. The kernels beyond the last
// repeat it; their results are unused.
template <bool kStacked, int kEdges, int V, typename Team, int kKernels, typename T, typename A>
__device__ inline void dot_tile(const CoordinateParams<T>& p, const T* own, unsigned column,
                                A (&dots)[kKernels]) {
  // Of stacked columns' rows those of one kernel after the other.
  constexpr int kTurns = kStacked ? 1 : kKernels, kTogether = kStacked ? kKernels : 1;
  const int last = p.gaussians.kernels - 1 - p.first;
  const auto of_kernel = [&](const T* rows, int k) {
    return row_of(rows, static_cast<unsigned>(min(k, last)), p.single_bytes);
  };
  const int width = static_cast<int>(p.width), f = Team::local() * V;
  unsigned columns[kEdges];
#pragma unroll
  for (int u = 0; u < kEdges; ++u) columns[u] = __shfl_sync(kFullWarp, column, u, kTileEdges);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const T* column_terms = kStacked ? p.single : of_kernel(p.stacked + p.first * p.width, turn);
    A sums[kTogether][kEdges] = {};
    const auto add_slice = [&](int from, bool active) {
      Vector<T, V> row_terms[kTogether], vectors[kEdges];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        row_terms[k].word = {};  // beyond the width: any features, as they are multiplied by 0
        if (active)
          row_terms[k] = load_vector<T, V>(kStacked ? of_kernel(own + from, k) : own + from);
      }
      const unsigned bytes = kStacked ? p.single_bytes : p.stacked_bytes;
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        vectors[u] = load_vector<T, V>(row_of(column_terms + from, columns[u], bytes));
      }
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
#pragma unroll
        for (int k = 0; k < kTogether; ++k) add_product(row_terms[k], vectors[u], sums[k][u]);
      }
    };
    add_slice(f < width ? f : 0, f < width);
    if constexpr (Team::kLanes == 32) {  // narrower teams hold a row
#pragma unroll 1
      for (int from = f + 32 * V; from < width; from += 32 * V) add_slice(from, true);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      A sum = scatter_sums(sums[k], Team::local(), kFullWarp);
#pragma unroll
      for (int offset = kEdges; offset < Team::kLanes; offset *= 2) {
        sum += __shfl_xor_sync(kFullWarp, sum, offset);
      }
      dots[turn * kTogether + k] = sum;
    }
  }
}

// A kernel's parameters for a coordinate.
template <typename A>
struct alignas(2 * sizeof(A)) Bell {
  A mean, inv_sigma;
};

// The parameters of the kernels from `first` on, [kKernels, dims] in shared memory; beyond the last
// kernel its own again.
template <int kKernels, typename A>
__device__ inline void stage_bells(const Gaussians<A>& g, int first, Bell<A>* bells) {
  for (int i = threadIdx.x; i < kKernels * g.dims; i += kGaussianThreads) {
    const int from = first * g.dims + i;
    const int at = from < g.kernels * g.dims ? from : (g.kernels - 1) * g.dims + i % g.dims;
    bells[i] = {g.mu[at], g.inv_sigma[at]};
  }
  __syncthreads();
}

// A lane's terms of its edges, in shared memory: the registers hold rows in flight.
template <typename A, int kKernels>
struct EdgeMoments {
  static constexpr int kNumbers = 2 + 2 * kKernels;  // of a coordinate

  const Bell<A>* bells;
  A* own;  // the thread's numbers are kGaussianThreads apart
  int dims;

  __device__ EdgeMoments(const Bell<A>* bells, int dims)
      : bells(bells),
        own(reinterpret_cast<A*>(const_cast<Bell<A>*>(bells) + kKernels * dims) + threadIdx.x),
        dims(dims) {
#pragma unroll 1
    for (int i = 0; i < dims * kNumbers; ++i) own[i * kGaussianThreads] = A(0);
  }
  __device__ A& number(int d, int i) const { return own[(d * kNumbers + i) * kGaussianThreads]; }
  __device__ A& place(int d) const { return number(d, 0); }      // of the edge at hand
  __device__ A& row_terms(int d) const { return number(d, 1); }  // of the row
  // Of the edges of all rows.
  __device__ A& first(int d, int k) const { return number(d, 2 + k); }
  __device__ A& second(int d, int k) const { return number(d, 2 + kKernels + k); }

  // Keeps the coordinates of an edge, 0 for one that is not there, and computes its weights.
  __device__ void weigh(const Coordinates<A>& at, bool there, A (&weights)[kKernels]) const {
    A sums[kKernels] = {};
#pragma unroll 2
    for (int d = 0; d < dims; ++d) {
      const A loaded = at[d], coordinate = there ? loaded : A(0);
      place(d) = coordinate;
#pragma unroll
      for (int k = 0; k < kKernels; ++k) {
        const Bell<A> bell = bells[k * dims + d];
        const A distance = (coordinate - bell.mean) * bell.inv_sigma;
        sums[k] += distance * distance;
      }
    }
#pragma unroll
    for (int k = 0; k < kKernels; ++k) weights[k] = exponential(sums[k] * A(-0.5));
  }

  // Adds what an edge with these products of dot products and weights contributes. The gradients of
  // its coordinates go to edge_gradient, if that is not null, or are added to what is there.
  __device__ void add(const A (&products)[kKernels], bool tanh, A* edge_gradient, bool adds) const {
#pragma unroll 1
    for (int d = 0; d < dims; ++d) {
      const A coordinate = place(d);
      A gradient = A(0);
#pragma unroll
      for (int k = 0; k < kKernels; ++k) {
        const Bell<A> bell = bells[k * dims + d];
        const A distance = coordinate - bell.mean, product = products[k] * distance;
        gradient -= product * bell.inv_sigma * bell.inv_sigma;
        first(d, k) += product;
        second(d, k) += product * distance;
      }
      if (tanh) gradient *= A(1) - coordinate * coordinate;
      row_terms(d) += gradient;
      if (edge_gradient != nullptr) {
        edge_gradient[d] = adds ? edge_gradient[d] + gradient : gradient;
      }
    }
  }
};

template <typename T, bool kStacked, int V, typename Team, int kKernels>
__global__ void __launch_bounds__(kGaussianThreads, kLeastBlocks)
    coordinate_short_rows(const CoordinateParams<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr int kServed = Team::kLanes / kTileEdges;  // rows at once of the lanes that read one
  const Gaussians<A>& g = p.gaussians;
  const int dims = g.dims, kernels = min(g.kernels - p.first, kKernels);
  extern __shared__ double memory[];
  Bell<A>* bells = reinterpret_cast<Bell<A>*>(memory);
  stage_bells<kKernels>(g, p.first, bells);
  const EdgeMoments<A, kKernels> moments(bells, dims);

  const int warp = blockIdx.x * (kGaussianThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / kTileEdges, slot = lane % kTileEdges;
  const int of_parts = part_warps(p.rows), of_rows = row_warps(p.rows);
  const int part = warp * kWarpRows + group;
  const bool beyond = warp >= of_parts + of_rows;  // what fills a block

  // The lane's row; without edges: -1 of them, if it is none or its parts are taken instead.
  struct Row {
    int number, count;
    int64_t begin;
  };
  const auto row_at = [&](int turn) {
    Row row{0, -1, 0};
    if (warp < of_parts) {
      if (turn > 0 || part >= p.rows.num_chunks) return row;
      const Work work = find_work(p.rows, part);
      if (work.row >= 0) row = {static_cast<int>(work.row), work.count, work.begin};
      return row;
    }
    // Where rows come in falling order of their lengths, each lane gets a long one and a short one.
    const int64_t i = (int64_t(turn) * of_rows + warp - of_parts) * kWarpRows + group;
    if (beyond || i >= p.rows.num_rows) return row;
    row.number = p.rows.order == nullptr ? static_cast<int>(i) : __ldg(p.rows.order + i);
    row.begin = load_offset(p.rows, row.number);
    const int64_t degree = load_offset(p.rows, int64_t(row.number) + 1) - row.begin;
    if (degree <= p.rows.chunk_length) row.count = static_cast<int>(degree);
    return row;
  };
  // The column of the lane's edge in the tile from `at` on; beyond the last edge that one's again.
  const auto column_at = [&](int64_t begin, int count, int at) -> unsigned {
    if (count <= 0) return 0;
    const int64_t place = begin + min(at + slot, count - 1);
    return static_cast<unsigned>(__ldg(static_cast<const int32_t*>(p.rows.columns) + place));
  };
  // The graph's edge indices, where an operand or a result uses them.
  const bool numbered = g.edges != nullptr || p.edge_gradient != nullptr;
  const int32_t* order = numbered ? static_cast<const int32_t*>(g.order) : nullptr;

  Row row = row_at(0), next = row_at(1);
  unsigned column = column_at(row.begin, row.count, 0);
#pragma unroll 1
  for (int turn = 0; turn < kShortTurns; ++turn) {
    const int steps = __reduce_max_sync(kFullWarp, row.count);
    if (steps <= 0) column = column_at(next.begin, next.count, 0);
#pragma unroll 1
    for (int at = 0; at < steps; at += kTileEdges) {
      const bool there = at + slot < row.count, more = at + kTileEdges < steps;
      const int64_t place = row.begin + at + slot;
      const int ordered = there && order != nullptr ? __ldg(order + place) : 0;
      const unsigned ahead = column_at(more ? row.begin : next.begin, more ? row.count : next.count,
                                       more ? at + kTileEdges : 0);
      A dots[kKernels] = {};
#pragma unroll 1
      for (int served = 0; served < kServed; ++served) {
        const int from = served * kTileEdges;
        const int left = __reduce_max_sync(
            kFullWarp, __shfl_sync(kFullWarp, row.count, from, Team::kLanes) - at);
        if (left <= 0) continue;
        const unsigned number = __shfl_sync(kFullWarp, row.number, from, Team::kLanes);
        const unsigned columns = __shfl_sync(kFullWarp, column, from + slot, Team::kLanes);
        const T* own = kStacked ? row_of(p.stacked, number, p.stacked_bytes) + p.first * p.width
                                : row_of(p.single, number, p.single_bytes);
        A sums[kKernels];
        if (left > kTileEdges / 2) {
          dot_tile<kStacked, kTileEdges, V, Team>(p, own, columns, sums);
        } else {
          dot_tile<kStacked, kTileEdges / 2, V, Team>(p, own, columns, sums);
        }
#pragma unroll
        for (int k = 0; k < kKernels; ++k) {
          if (Team::local() / kTileEdges == served) dots[k] = sums[k];
        }
      }
      const int64_t edge = order == nullptr ? place : ordered;
      const unsigned bytes = static_cast<unsigned>(dims * sizeof(A));
      const A* row_terms = nullptr;
      const A* column_terms = nullptr;
      if (g.edges == nullptr) {
        row_terms = row_of(g.row_terms, static_cast<unsigned>(row.number), bytes);
        column_terms = row_of(g.column_terms, column, bytes);
      } else {
        row_terms = g.edges + (there ? edge : 0) * dims;
      }
      A weights[kKernels];
      moments.weigh(Coordinates<A>(row_terms, column_terms, g.tanh), there, weights);
#pragma unroll
      for (int k = 0; k < kKernels; ++k) {
        dots[k] = there && k < kernels ? dots[k] * weights[k] : A(0);
      }
      const bool stores = there && p.edge_gradient != nullptr;
      moments.add(dots, g.tanh, stores ? p.edge_gradient + edge * dims : nullptr, p.first > 0);
      column = ahead;
    }
    if (p.row_terms_gradient != nullptr) {
      A* to = warp < of_parts ? p.partials + int64_t(part) * dims
                              : p.row_terms_gradient + int64_t(row.number) * dims;
#pragma unroll 2
      for (int d = 0; d < dims; ++d) {
        A sum = moments.row_terms(d);
#pragma unroll
        for (int offset = 1; offset < kTileEdges; offset *= 2) {
          sum += __shfl_xor_sync(kFullWarp, sum, offset);
        }
        moments.row_terms(d) = A(0);
        if (slot == 0 && row.count >= 0) to[d] = p.first > 0 ? to[d] + sum : sum;
      }
    }
    row = next;
    next.count = -1;
  }
  if (p.block_sums == nullptr || beyond) return;
  A* block_sum = p.block_sums + int64_t(warp) * 2 * g.kernels * dims + p.first * dims;
#pragma unroll 1
  for (int d = 0; d < dims; ++d) {
#pragma unroll
    for (int k = 0; k < kKernels; ++k) {
      const A first = warp_sum(moments.first(d, k)), second = warp_sum(moments.second(d, k));
      if (lane > 0 || k >= kernels) continue;
      block_sum[k * dims + d] = first;
      block_sum[(g.kernels + k) * dims + d] = second;
    }
  }
}

}  // namespace jaxgnn::gaussian
