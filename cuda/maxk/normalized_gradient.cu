// The gradients of a selection of normalized rows. A team of warps takes a row: the gradients of
// its kept values are put at their columns in shared memory, each thread adds those of its own
// columns to sums for the scale and the bias in its registers, and the row of x is read once and
// its gradient written once. Blocks take every num_blocks-th rows, so that each has its sums
// once, and a second kernel adds the blocks' in order.
#include <algorithm>

#include "common/philox.h"
#include "cuda/maxk/maxk.h"
#include "cuda/maxk/normalize.cuh"

namespace jaxgnn::maxk {
namespace {

template <typename T, typename I>
struct Params {
  const T* x;
  const T* gradient;
  const I* columns;
  const float* scale;
  const uint32_t* key;
  T* dx;
  float* partials;  // [blocks, 2, width]
  int64_t num_rows;
  int width;
  int k;
  float inverse_width;
  float epsilon;
  uint32_t drop_below;
  float keep_scale;
};

// The gradient of an entry before dropout.
template <typename T, typename I>
__device__ inline float before_dropout(const Params<T, I>& p, int64_t row, uint32_t column,
                                       float g) {
  if (p.key == nullptr) return g;
  const PhiloxWords drawn =
      dropout_block(static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                    column / kColumnsPerBlock, __ldg(p.key), __ldg(p.key + 1));
  uint32_t word = drawn.words[3];
#pragma unroll
  for (uint32_t i = 0; i < 3; ++i) word = column % kColumnsPerBlock == i ? drawn.words[i] : word;
  return word >= p.drop_below ? g * p.keep_scale : 0.0f;
}

template <int kWarps>
__device__ inline void sync_team() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Each thread holds kVectors vectors of V consecutive columns; a block has kTeams teams.
template <typename T, typename I, int V, int kVectors, int kWarps, int kTeams>
__global__ void __launch_bounds__(32 * kWarps * kTeams) gradients(const Params<T, I> p) {
  static_assert(kWarps == 1 || kTeams == 1, "a team of several warps synchronizes its block");
  constexpr int kTeam = 32 * kWarps;
  constexpr int kCount = kVectors * V;
  extern __shared__ int4 shared[];
  __shared__ float2 scratch[kWarps];
  const int number = static_cast<int>(threadIdx.x) / kTeam;
  const Team<kWarps> team{reinterpret_cast<int*>(scratch), static_cast<int>(threadIdx.x) % kTeam};
  float* const own = reinterpret_cast<float*>(shared) + number * p.width;
  float scale[kCount] = {}, scale_sums[kCount] = {}, bias_sums[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int f = column_of<V, kTeam>(i, team.rank);
    if (f >= p.width) continue;
    scale[i] = __ldg(p.scale + f);
    own[f] = 0.0f;
  }
  for (int64_t row = int64_t(blockIdx.x) * kTeams + number; row < p.num_rows;
       row += int64_t(gridDim.x) * kTeams) {
    float value[kCount] = {};
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      const int f = (c * kTeam + team.rank) * V;
      if (f >= p.width) continue;  // else the whole vector is there: V divides the width
      const Vector<T, V> vector = load_vector<T, V>(p.x + row * p.width + f);
#pragma unroll
      for (int i = 0; i < V; ++i) value[c * V + i] = unpack(vector, i);
    }
    sync_team<kWarps>();  // what is below has zeros again
    for (int c = team.rank; c < p.k; c += kTeam) {
      const uint32_t column = __ldg(p.columns + row * p.k + c);
      const float g = before_dropout(p, row, column, widen(p.gradient[row * p.k + c]));
      if (column < static_cast<uint32_t>(p.width)) own[column] = g;
    }
    const float inverse_deviation =
        center<V, kVectors>(team, p.width, p.inverse_width, p.epsilon, value);
    sync_team<kWarps>();
    float gradient[kCount] = {};
    float2 sums = {};  // of t = scale g, and of t n(x)
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int f = column_of<V, kTeam>(i, team.rank);
      if (f >= p.width) continue;
      const float g = own[f];
      own[f] = 0.0f;
      value[i] *= inverse_deviation;
      gradient[i] = scale[i] * g;
      scale_sums[i] += g * value[i];
      bias_sums[i] += g;
      sums.x += gradient[i];
      sums.y += gradient[i] * value[i];
    }
    sums = team.sum(sums);
    const float mean = sums.x * p.inverse_width, product = sums.y * p.inverse_width;
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      const int f = (c * kTeam + team.rank) * V;
      if (f >= p.width) continue;
      float dx[V];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int at = c * V + i;
        dx[i] = inverse_deviation * (gradient[at] - mean - value[at] * product);
      }
      store_vector<T, V, float>(p.dx + row * p.width + f, dx);
    }
  }
  // The teams' sums one after the other, so that the order does not change from run to run.
  float* const sums = reinterpret_cast<float*>(shared);
  for (int turn = 0; turn < kTeams; ++turn) {
    __syncthreads();
    if (number != turn) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int f = column_of<V, kTeam>(i, team.rank);
      if (f >= p.width) continue;
      sums[f] = (turn == 0 ? 0.0f : sums[f]) + scale_sums[i];
      sums[p.width + f] = (turn == 0 ? 0.0f : sums[p.width + f]) + bias_sums[i];
    }
  }
  __syncthreads();
  float* const partials = p.partials + int64_t(blockIdx.x) * 2 * p.width;
  for (int i = threadIdx.x; i < 2 * p.width; i += blockDim.x) partials[i] = sums[i];
}

constexpr int kColumns = 32, kGroups = 32;  // of a block that adds partial sums

// out[i] = the sum of partials[b][i] over the blocks b.
__global__ void __launch_bounds__(kColumns* kGroups)
    add_blocks(const float* partials, float* out, int size, int64_t num_blocks) {
  __shared__ float sums[kGroups][kColumns];
  const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(threadIdx.y);
  float sum = 0.0f;
  if (column < size) {
#pragma unroll 8
    for (int64_t block = group; block < num_blocks; block += kGroups) {
      sum += partials[block * size + column];
    }
  }
  sums[group][threadIdx.x] = sum;
  __syncthreads();
  if (group > 0 || column >= size) return;
#pragma unroll
  for (int i = 1; i < kGroups; ++i) sum += sums[i][threadIdx.x];
  out[column] = sum;
}

// Calls f(kernel, its teams, their warps) for a width, or to load with each kernel.
template <typename T, typename I, typename F>
cudaError_t with_gradients(const Launch& launch, int64_t width, bool vectorized, F f) {
  constexpr int V = 16 / sizeof(T), kMany = 8 / V;
  if constexpr (sizeof(I) == 1) {
    if (launch.load || vectorized) JAXGNN_TRY(f(gradients<T, I, V, kMany, 1, 4>, 4, 1));
    if (launch.load || !vectorized) JAXGNN_TRY(f(gradients<T, I, 1, 8, 1, 4>, 4, 1));
  } else {
    const bool wide = width > 1024;
    if (launch.load || (!wide && vectorized)) {
      JAXGNN_TRY(f(gradients<T, I, V, kMany, 4, 1>, 1, 4));
    }
    if (launch.load || (!wide && !vectorized)) JAXGNN_TRY(f(gradients<T, I, 1, 8, 4, 1>, 1, 4));
    if (launch.load || (wide && vectorized)) {
      JAXGNN_TRY(f(gradients<T, I, V, kMany, 16, 1>, 1, 16));
    }
    if (launch.load || (wide && !vectorized)) JAXGNN_TRY(f(gradients<T, I, 1, 8, 16, 1>, 1, 16));
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_maxk_normalized_gradient(const MaxkNormalizedGradientArgs& args,
                                            const Launch& launch) {
  JAXGNN_TRY(with_types(launch, args.type, args.cbsr.width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const int64_t width = args.cbsr.width;
    const auto aligned = [](const void* data) {
      return reinterpret_cast<uintptr_t>(data) % 16 == 0;
    };
    const bool vectorized = width % (16 / sizeof(T)) == 0 && aligned(args.x) && aligned(args.dx);
    const Params<T, I> p{static_cast<const T*>(args.x),
                         static_cast<const T*>(args.cbsr.values),
                         static_cast<const I*>(args.cbsr.indices),
                         static_cast<const float*>(args.scale),
                         args.key,
                         static_cast<T*>(args.dx),
                         static_cast<float*>(args.partials),
                         args.cbsr.num_rows,
                         static_cast<int>(width),
                         static_cast<int>(args.cbsr.k),
                         1.0f / static_cast<float>(width),
                         static_cast<float>(args.epsilon),
                         args.drop_below,
                         static_cast<float>(keep_scale(args.drop_below))};
    return with_gradients<T, I>(launch, width, vectorized, [&](auto kernel, int teams, int warps) {
      const int64_t floats = std::max(teams, 2) * width;  // rows of teams, or the block's sums
      return launch_kernel(launch, kernel, static_cast<unsigned>(args.num_blocks),
                           32 * teams * warps, floats * sizeof(float), p);
    });
  }));
  const int size = static_cast<int>(2 * args.cbsr.width);
  return launch_kernel(launch, add_blocks, blocks_of(size, kColumns), dim3(kColumns, kGroups), 0,
                       static_cast<const float*>(args.partials), static_cast<float*>(args.sums),
                       size, args.num_blocks);
}

}  // namespace jaxgnn::maxk
