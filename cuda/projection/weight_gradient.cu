// The gradient of a projection's weights, x^T g, on tensor cores: a block sums the products of some
// rows for a tile of the result, and another kernel adds the blocks' sums in order. float32 is
// rounded to TF32.
//
// Both operands lie in shared memory as they do in global memory, a row's features side by side,
// while the products run along the rows. 16-bit values are transposed as they are loaded
// (ldmatrix). A fragment of TF32 is single words of four rows, which are eight banks apart.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/projection/projection.h"

namespace jaxgnn::projection {
namespace {

constexpr int kStages = 4;       // of rows, in shared memory
constexpr int kStageBytes = 64;  // of a feature: 16 rows of float32, 32 of 16 bits
constexpr int kMostShared = 72 * 1024;
constexpr int kBlocks = 2;         // of a multiprocessor
constexpr int kWarpFeatures = 64;  // of x

// Rows of a stage, as many features of each as a tile of the result has on that side.
template <typename T, int kFeatures>
struct Staged {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kRows = kStageBytes / kSize;
  static constexpr int kRowBytes = kFeatures * kSize;
  static constexpr int kDistance = kRowBytes + 8 * kSize;  // from a row to the next
  static constexpr int kBytes = kRows * kDistance;
};

// A tile of the result, 128 by 128, is kDown by kAcross warps', each of which has 64 features of x
// by 8 kColumns of g. docs/kernels/projection.md has other shapes' times.
template <typename T>
struct Tiling {
  static constexpr int kDown = 2, kAcross = 2, kColumns = 8;
  static constexpr int kThreads = 32 * kDown * kAcross;
  static constexpr int kXFeatures = kWarpFeatures * kDown;
  static constexpr int kGFeatures = 8 * kColumns * kAcross;
  using X = Staged<T, kXFeatures>;
  using G = Staged<T, kGFeatures>;
  static constexpr int kShared = kStages * (X::kBytes + G::kBytes);
};

// T[rows, features].
struct Operand {
  const char* data;
  int64_t row_bytes;
};

struct Params {
  Operand x, g;
  int64_t num_rows;
  int64_t in_features;
  int64_t out_features;
  int64_t num_blocks;  // of rows
  unsigned across;     // tiles of the result beside one another
  unsigned tiles;
  float* partials;  // [num_blocks, in_features, out_features]
};

// A thread's share of the copies of an operand's stages, kCopy bytes each: the same bytes of rows
// kAtOnce apart, so that a stage's places are those of the one before and a distance.
template <typename S, int kCopy, int kThreads>
class Copies {
 public:
  // Of the features from `begin` bytes on, from row `first` on.
  __device__ Copies(const Operand& operand, int64_t first, int64_t begin)
      : row_(static_cast<int>(threadIdx.x) / kPieces),
        there_(at() < operand.row_bytes - begin),
        to_(row_ * S::kDistance + at()),
        between_(operand.row_bytes * kAtOnce),
        from_(operand.data + (first + row_) * operand.row_bytes + begin + at()) {}

  // Copies the next stage; zeros beyond the `rows` that are left, and the features that there are.
  __device__ void stage(unsigned to, int rows) {
#pragma unroll
    for (int i = 0; i < S::kRows / kAtOnce; ++i) {
      copy_or_zeros<kCopy>(to + to_ + i * kAtOnce * S::kDistance, from_,
                           there_ && row_ + i * kAtOnce < rows);
      from_ += between_;
    }
  }

 private:
  static constexpr int kPieces = S::kRowBytes / kCopy;  // of a row
  static constexpr int kAtOnce = kThreads / kPieces;    // rows
  static_assert(kThreads % kPieces == 0 && S::kRows % kAtOnce == 0);
  static __device__ int at() { return static_cast<int>(threadIdx.x) % kPieces * kCopy; }

  int row_;
  bool there_;
  unsigned to_;
  int64_t between_;
  const char* from_;  // not read where nothing is there
};

__device__ inline uint32_t round_to_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

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
    to[i] = round_to_tf32(load_shared(at + row * S::kDistance + feature * S::kSize));
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
  const unsigned tile = blockIdx.x % p.tiles, block = blockIdx.x / p.tiles;
  const int64_t down = int64_t(tile / p.across) * Tile::kXFeatures;
  const int64_t across = int64_t(tile % p.across) * Tile::kGFeatures;
  const int64_t begin = p.num_rows * block / p.num_blocks;
  const int64_t end = p.num_rows * (block + 1) / p.num_blocks;
  const int steps = static_cast<int>((end - begin + X::kRows - 1) / X::kRows);

  Copies<X, kCopy, Tile::kThreads> x(p.x, begin, down * X::kSize);
  Copies<G, kCopy, Tile::kThreads> g(p.g, begin, across * G::kSize);
  const int num_rows = static_cast<int>(end - begin);
  const auto stage = [&](int step) {
    if (step < steps) {
      const unsigned to = base + step % kStages * (X::kBytes + G::kBytes);
      const int rows = num_rows - step * X::kRows;
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

  float* out = p.partials + int64_t(block) * p.in_features * p.out_features;
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t f = down + own_down + 16 * i + lane / 4 + c / 2 * 8;
        const int64_t h = across + own_across + 8 * j + lane % 4 * 2 + c % 2;
        if (f < p.in_features && h < p.out_features) out[f * p.out_features + h] = sums[i][j][c];
      }
    }
  }
}

constexpr int kSumThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    add_blocks(const float* partials, T* out, const int64_t size, const int64_t num_blocks) {
  const int64_t i = int64_t(blockIdx.x) * kSumThreads + threadIdx.x;
  if (i >= size) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t block = 0; block < num_blocks; ++block) sum += partials[block * size + i];
  out[i] = narrow<T, float>(sum);
}

// What the places and lengths of an operand's rows are multiples of.
int64_t alignment_of(const void* data, int64_t row_bytes) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) | row_bytes;
}

// f(kernel) with the one that copies as many bytes at once as the rows allow, or to load with each.
template <typename T, typename F>
cudaError_t with_copies(const Launch& launch, int64_t alignment, F f) {
  if (launch.load || alignment % 16 == 0) {
    JAXGNN_TRY(f(sum_products<T, 16>));
    if (!launch.load) return cudaSuccess;
  }
  if (launch.load || alignment % 8 == 0) {
    JAXGNN_TRY(f(sum_products<T, 8>));
    if (!launch.load) return cudaSuccess;
  }
  return f(sum_products<T, 4>);
}

}  // namespace

cudaError_t launch_weight_gradient(const WeightGradientArgs& args, const Launch& launch) {
  const int64_t size = args.in_features * args.out_features;
  if (!launch.load && size == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Tile = Tiling<T>;
    constexpr int64_t kSize = sizeof(T);
    const unsigned down = blocks_of(args.in_features, Tile::kXFeatures);
    const unsigned across = blocks_of(args.out_features, Tile::kGFeatures);
    const int64_t x_bytes = args.in_features * kSize, g_bytes = args.out_features * kSize;
    const Params p{{static_cast<const char*>(args.x), x_bytes},
                   {static_cast<const char*>(args.g), g_bytes},
                   args.num_rows,
                   args.in_features,
                   args.out_features,
                   args.num_blocks,
                   across,
                   down * across,
                   static_cast<float*>(args.partials)};
    const unsigned grid = p.tiles * static_cast<unsigned>(args.num_blocks);
    static_assert(Tile::kShared <= kMostShared);
    const int64_t alignment = alignment_of(args.x, x_bytes) | alignment_of(args.g, g_bytes);
    JAXGNN_TRY(with_copies<T>(launch, alignment, [&](auto kernel) {
      return launch_large_kernel<kMostShared>(launch, kernel, grid, Tile::kThreads, Tile::kShared,
                                              p);
    }));
    return launch_kernel(launch, add_blocks<T>, blocks_of(size, kSumThreads), kSumThreads, 0,
                         static_cast<const float*>(args.partials), static_cast<T*>(args.out), size,
                         args.num_blocks);
  });
}

}  // namespace jaxgnn::projection
