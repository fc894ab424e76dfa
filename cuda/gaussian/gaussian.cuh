// What the kernels of Gaussian weights share: an edge's coordinates and weights, and how the lanes
// of a worker share a tile of edges.
#pragma once

#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/rows.cuh"
#include "cuda/gaussian/gaussian.h"

namespace jaxgnn::gaussian {

constexpr int kGaussianThreads = 64;  // small blocks: a finished row frees its place early

template <typename A>
struct Gaussians {
  const A* row_terms;
  const A* column_terms;
  const A* edges;
  const A* mu;
  const A* inv_sigma;
  const void* order;
  bool wide_order;
  bool tanh;
  int dims;
  int kernels;
};

template <typename A>
Gaussians<A> make_gaussians(const GaussianArgs& args) {
  return {static_cast<const A*>(args.row_terms),
          static_cast<const A*>(args.column_terms),
          static_cast<const A*>(args.edges),
          static_cast<const A*>(args.mu),
          static_cast<const A*>(args.inv_sigma),
          args.permutation,
          args.wide_permutation,
          args.tanh,
          static_cast<int>(args.dims),
          static_cast<int>(args.kernels)};
}

// The Gaussians' parameters in shared memory, if they are few: rows that stream through the L1
// cache do not displace them there. `shared` has room for that many.
constexpr int64_t kStagedNumbers = 1024;

template <typename A>
int64_t staged_numbers(const Gaussians<A>& g) {
  const int64_t numbers = 2 * int64_t(g.kernels) * g.dims;
  return numbers <= kStagedNumbers ? numbers : 0;
}

template <typename A>
__device__ inline Gaussians<A> stage(const Gaussians<A>& g, A* shared) {
  const int64_t each = int64_t(g.kernels) * g.dims;
  if (2 * each > kStagedNumbers) return g;
  Gaussians<A> staged = g;
  for (int i = threadIdx.x; i < each; i += blockDim.x) {
    shared[i] = g.mu[i];
    shared[each + i] = g.inv_sigma[i];
  }
  __syncthreads();
  staged.mu = shared;
  staged.inv_sigma = shared + each;
  return staged;
}

// For x close to 0 the absolute error is that of values close to 1, as in a coordinate's difference
// to a mean.
__device__ inline float hyperbolic_tangent(float x) {
  const float bounded = x > 20.0f ? 20.0f : x;  // NaN stays, which fminf would drop
  return 1.0f - __fdividef(2.0f, exponential(bounded * 2.0f) + 1.0f);
}
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }

// Where an edge's coordinates are: one array, or the sum of two.
template <typename A>
struct Coordinates {
  const A* first;
  const A* second;  // or null
  bool tanh;

  __device__ Coordinates(const A* first, const A* second, bool tanh)
      : first(first), second(second), tanh(tanh) {}
  __device__ Coordinates(const Gaussians<A>& g, int64_t row, int64_t column, int64_t place)
      : first(g.row_terms + row * g.dims), second(g.column_terms + column * g.dims), tanh(g.tanh) {
    if (g.edges == nullptr) return;
    first = g.edges + edge_number(g, place) * g.dims;
    second = nullptr;
  }

  __device__ A operator[](int d) const {
    A sum = __ldg(first + d);
    if (second != nullptr) sum += __ldg(second + d);
    return tanh ? hyperbolic_tangent(sum) : sum;
  }
};

// The weights of an edge under the kernels first .. first + kCount - 1; those beyond the last
// kernel repeat it.
template <int kCount, typename A>
__device__ inline void weigh(const Gaussians<A>& g, const Coordinates<A>& at, int first,
                             A (&weights)[kCount]) {
  A sums[kCount] = {};
#pragma unroll 2  // else four, which makes the kernels twice as large
  for (int d = 0; d < g.dims; ++d) {
    const A place = at[d];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int i = min(first + k, g.kernels - 1) * g.dims + d;
      const A distance = (place - g.mu[i]) * g.inv_sigma[i];
      sums[k] += distance * distance;
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) weights[k] = exponential(sums[k] * A(-0.5));
}

// A team: kGroups groups of kLanes lanes that process a row or a chunk of one. In a tile each lane
// computes the weight of one edge; lane u of a group has the weight of the group's edge u. Teams
// narrower than a warp run in lockstep: full-warp shuffles need no participation mask.
template <int kLanesOf, int kGroupsOf>
struct Team {
  static constexpr int kLanes = kLanesOf, kGroups = kGroupsOf, kSize = kLanes * kGroups;

  __device__ static int64_t worker() {
    return (int64_t(blockIdx.x) * kGaussianThreads + threadIdx.x) / kSize;
  }
  __device__ static int lane() { return threadIdx.x % kSize; }
  __device__ static int local() { return threadIdx.x % kLanes; }
  __device__ static int group() { return lane() / kLanes; }
  __device__ static int slot() { return local() * kGroups + group(); }
  // The most that a team of the warp has.
  __device__ static int most(int v) {
    if constexpr (kSize == 32) return v;
    return __reduce_max_sync(kFullWarp, v);
  }
  // What lane u of the own group holds.
  template <typename U>
  __device__ static U from(U value, int u) {
    return __shfl_sync(kFullWarp, value, u, kLanes);
  }
  // The sum over lanes of the team, kFirst apart at first, of kEnd lanes.
  template <int kFirst, int kEnd, typename A>
  __device__ static A sum(A v) {
#pragma unroll
    for (int offset = kFirst; offset < kEnd; offset *= 2)
      v += __shfl_xor_sync(kFullWarp, v, offset);
    return v;
  }
};
using LongTeam = Team<8, 4>;
using NarrowTeam = Team<4, 8>;
using ShortTeam = Team<8, 1>;
using MediumTeam = Team<16, 1>;
using WideTeam = Team<32, 1>;

// Features up to which eight lanes read them one by one.
constexpr int64_t kFewFeatures = 16;

// Whether rows are long: a row has enough edges for the lanes of a warp, or there are too few rows
// for one team each.
inline bool has_long_rows(const Rows& rows) {
  constexpr int64_t kLong = 256, kLongOfFew = 32, kFew = 16384;
  return rows.num_edges >= (rows.num_rows < kFew ? kLongOfFew : kLong) * rows.num_rows;
}

// Calls f(team) for short rows that are read 16 bytes a lane, at once if they are of up to 32
// lanes.
template <typename T, typename F>
cudaError_t with_short_team(int64_t width, const Launch& launch, F f) {
  const int64_t vectors = width / (16 / sizeof(T));
  if (launch.load || vectors <= 8) JAXGNN_TRY(f(ShortTeam{}));
  if (launch.load || (vectors > 8 && vectors <= 16)) JAXGNN_TRY(f(MediumTeam{}));
  if (launch.load || vectors > 16) JAXGNN_TRY(f(WideTeam{}));
  return cudaSuccess;
}

// The same for rows of any length; long ones in slices that the L2 cache holds.
template <typename T, typename F>
cudaError_t with_aligned_team(int64_t width, bool is_long, const Launch& launch, F f) {
  constexpr int V = 16 / sizeof(T);
  const bool narrow = width <= NarrowTeam::kLanes * V;
  if constexpr (sizeof(T) < 8) {  // float64 is read one by one
    if (launch.load || (is_long && narrow)) JAXGNN_TRY(f(NarrowTeam{}));
    if (launch.load || (is_long && !narrow)) JAXGNN_TRY(f(LongTeam{}));
    if (launch.load || !is_long) JAXGNN_TRY(with_short_team<T>(width, launch, f));
  }
  return cudaSuccess;
}

// Gaussians processed together: up to four in one pass; where rows are read one by one, one or
// four.
inline int kernels_together(int64_t kernels, bool one_by_one) {
  if (one_by_one) return kernels == 1 ? 1 : 4;
  const int64_t blocks = (kernels + 3) / 4;
  return static_cast<int>((kernels + blocks - 1) / blocks);
}

// f(IntTag<n>) for n from 1 to 4, or for each of them.
template <int kValue>
struct IntTag {
  static constexpr int value = kValue;
};
template <typename F>
cudaError_t with_kernels(int n, bool all, F f) {
  if (all || n == 1) JAXGNN_TRY(f(IntTag<1>{}));
  if (all || n == 2) JAXGNN_TRY(f(IntTag<2>{}));
  if (all || n == 3) JAXGNN_TRY(f(IntTag<3>{}));
  if (all || n == 4) JAXGNN_TRY(f(IntTag<4>{}));
  return cudaSuccess;
}

}  // namespace jaxgnn::gaussian
