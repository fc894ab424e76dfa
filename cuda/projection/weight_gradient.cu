// The gradient of a projection's weights, x^T g, on tensor cores: a block sums the products of some
// rows for a tile of the result, and another kernel adds the blocks' sums, always in one order.
// float32 is rounded to TF32. Hopper's sums are in weight_gradient_wgmma.cu.
//
// Both operands lie in shared memory as they do in global memory, a row's features side by side,
// while the products run along the rows. 16-bit values are transposed as they are loaded
// (ldmatrix). A fragment of TF32 is single words of four rows, which are eight banks apart.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/projection/projection.h"
#include "cuda/projection/staged_rows.cuh"

namespace jaxgnn::projection {
namespace {

constexpr int kStages = 4;       // of rows, in shared memory
constexpr int kStageBytes = 64;  // of a feature: 16 rows of float32, 32 of 16 bits
constexpr int kMostShared = 72 * 1024;
constexpr int kBlocks = 2;         // of a multiprocessor
constexpr int kWarpFeatures = 64;  // of x

// A tile of the result, 128 by 128, is kDown by kAcross warps', each of which has 64 features of x
// by 8 kColumns of g. docs/kernels/projection.md has other shapes' times.
template <typename T>
struct Tiling {
  static constexpr int kDown = 2, kAcross = 2, kColumns = 8;
  static constexpr int kThreads = 32 * kDown * kAcross;
  static constexpr int kXFeatures = kWarpFeatures * kDown;
  static constexpr int kGFeatures = 8 * kColumns * kAcross;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  using X = Staged<kStageBytes / kSize, kXFeatures, kSize, 8 * kSize>;
  using G = Staged<kStageBytes / kSize, kGFeatures, kSize, 8 * kSize>;
  static constexpr int kShared = kStages * (X::kBytes + G::kBytes);
};

// A fragment for `multiply`, of 32 bytes of each feature from `at` on: four pieces, halves of these
// by 8 features. With kOfX, of 16 features of x, a piece is followed by the other features', else,
// of twice 8 features of g, by the other half's.
template <typename S, bool kOfX>
__device__ inline void load_fragment(uint32_t (&to)[4], unsigned at, Tag<float>) {
  const unsigned lane = threadIdx.x % 32;
  at += lane % 4 * S::kDistance + lane / 4 * S::kSize;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = (kOfX ? i / 2 : i % 2) * 4, feature = (kOfX ? i % 2 : i / 2) * 8;
    to[i] = tf32(__uint_as_float(load_shared(at + row * S::kDistance + feature * S::kSize)));
  }
}
template <typename S, bool kOfX, typename T>
__device__ inline void load_fragment(uint32_t (&to)[4], unsigned at, Tag<T>) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned row = kOfX ? lane % 8 + lane / 16 * 8 : lane % 16;
  const unsigned feature = (kOfX ? lane / 8 % 2 : lane / 16) * 8;
  load_transposed(to, at + row * S::kDistance + feature * S::kSize);
}

template <typename T, int kCopy>
__global__ void __launch_bounds__(Tiling<T>::kThreads, kBlocks) sum_products(const Params p) {
  using Tile = Tiling<T>;
  using X = typename Tile::X;
  using G = typename Tile::G;
  constexpr int kAcross = Tile::kAcross, kColumns = Tile::kColumns;
  constexpr int kTall = kWarpFeatures / 16;  // fragments of x
  constexpr int kStep = 32 / X::kSize;       // rows of a fragment
  extern __shared__ int4 shared[];
  const unsigned base = shared_address(shared);
  const Share share = share_of<Tile::kXFeatures, Tile::kGFeatures>(p);
  const int steps = (share.rows + X::kRows - 1) / X::kRows;

  Copies<X, kCopy, Tile::kThreads> x(p.x, share.begin, share.down * X::kSize);
  Copies<G, kCopy, Tile::kThreads> g(p.g, share.begin, share.across * G::kSize);
  const auto stage = [&](int step) {
    if (step < steps) {
      const unsigned to = base + step % kStages * (X::kBytes + G::kBytes);
      const int rows = share.rows - step * X::kRows;
      x.stage(to, rows);
      g.stage(to + X::kBytes, rows);
    }
    commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) stage(s);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own_down = warp / kAcross * kWarpFeatures, own_across = warp % kAcross * 8 * kColumns;
  float sums[kTall][kColumns][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait<kStages - 2>();
    __syncthreads();  // what all have copied is there, and what is overwritten next has been read
    stage(step + kStages - 1);
    const unsigned from = base + step % kStages * (X::kBytes + G::kBytes);
#pragma unroll
    for (int row = 0; row < X::kRows; row += kStep) {
      uint32_t a[kTall][4], b[kColumns / 2][4];
#pragma unroll
      for (int i = 0; i < kTall; ++i) {
        const unsigned at = from + row * X::kDistance;
        load_fragment<X, true>(a[i], at + (own_down + 16 * i) * X::kSize, Tag<T>{});
      }
#pragma unroll
      for (int j = 0; j < kColumns / 2; ++j) {
        const unsigned at = from + X::kBytes + row * G::kDistance;
        load_fragment<G, false>(b[j], at + (own_across + 16 * j) * G::kSize, Tag<T>{});
      }
#pragma unroll
      for (int i = 0; i < kTall; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], Tag<T>{});
        }
      }
    }
  }

  float* out = p.partials + int64_t(share.block) * p.in_features * p.out_features;
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t f = share.down + own_down + 16 * i + lane / 4 + c / 2 * 8;
        const int64_t h = share.across + own_across + 8 * j + lane % 4 * 2 + c % 2;
        if (f < p.in_features && h < p.out_features) out[f * p.out_features + h] = sums[i][j][c];
      }
    }
  }
}

constexpr int kSummed = 32;   // numbers of the result that a block of threads adds
constexpr int kSummands = 8;  // threads of each
constexpr int kSumThreads = kSummed * kSummands;

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    add_blocks(const float* partials, T* out, const int64_t size, const int64_t num_blocks) {
  __shared__ float sums[kSummands][kSummed];
  const int own = threadIdx.x % kSummed, first = threadIdx.x / kSummed;
  const int64_t i = int64_t(blockIdx.x) * kSummed + own;
  float sum = 0.0f;
  if (i < size) {
#pragma unroll 8
    for (int64_t block = first; block < num_blocks; block += kSummands) {
      sum += partials[block * size + i];
    }
  }
  sums[first][own] = sum;
  __syncthreads();
  if (first > 0 || i >= size) return;
#pragma unroll
  for (int other = 1; other < kSummands; ++other) sum += sums[other][own];
  out[i] = narrow<T, float>(sum);
}

template <typename T>
cudaError_t start(const WeightGradientArgs& args, const Launch& launch) {
  using Tile = Tiling<T>;
  static_assert(Tile::kShared <= kMostShared);
  const Params p =
      params_of<Tile::kXFeatures, Tile::kGFeatures>(args, Tile::kSize, args.num_blocks);
  const unsigned grid = p.tiles * static_cast<unsigned>(p.num_blocks);
  return with_copies(launch, p, [&](auto copied) {
    const auto kernel = sum_products<T, copied>;
    return launch_large_kernel<kMostShared>(launch, kernel, grid, Tile::kThreads, Tile::kShared, p);
  });
}

}  // namespace

cudaError_t launch_weight_gradient(const WeightGradientArgs& args, const Launch& launch) {
  const int64_t size = args.in_features * args.out_features;
  if (!launch.load && size == 0) return cudaSuccess;
  DeviceLimits limits{};
  JAXGNN_TRY(find_limits(limits));
  int64_t num_blocks = args.num_blocks;
  const bool wgmma = limits.capability == 90 && (launch.load || args.warpgroups);
  if (wgmma) JAXGNN_TRY(launch_products_wgmma(args, launch, limits.processors, num_blocks));
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (launch.load || !wgmma) JAXGNN_TRY(start<T>(args, launch));
    return launch_kernel(launch, add_blocks<T>, blocks_of(size, kSummed), kSumThreads, 0,
                         static_cast<const float*>(args.partials), static_cast<T*>(args.out), size,
                         num_blocks);
  });
}

}  // namespace jaxgnn::projection
