// Rows of an operand of a projection's gradient, some features of each, on their way to shared
// memory.
#pragma once

#include <type_traits>

#include "common/projection.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"

namespace jaxgnn::projection {

// T[rows, features].
struct Operand {
  const char* data;
  int64_t row_bytes;
};

// A tile of the result is one of these, of one block's rows.
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

// Of tiles of kDown by kAcross numbers.
template <int kDown, int kAcross>
Params params_of(const WeightGradientArgs& args, int size, int64_t num_blocks) {
  const unsigned down = blocks_of(args.in_features, kDown);
  const unsigned across = blocks_of(args.out_features, kAcross);
  return {{static_cast<const char*>(args.x), args.in_features * size},
          {static_cast<const char*>(args.g), args.out_features * size},
          args.num_rows,
          args.in_features,
          args.out_features,
          num_blocks,
          across,
          down * across,
          static_cast<float*>(args.partials)};
}

// A block's tile, and its rows.
struct Share {
  int64_t down, across;  // the tile's first features
  int64_t begin;         // the first row
  int rows;
  unsigned block;  // of rows
};
template <int kDown, int kAcross>
__device__ inline Share share_of(const Params& p) {
  const unsigned tile = blockIdx.x % p.tiles, block = blockIdx.x / p.tiles;
  const int64_t begin = p.num_rows * block / p.num_blocks;
  const int64_t end = p.num_rows * (block + 1) / p.num_blocks;
  return {int64_t(tile / p.across) * kDown, int64_t(tile % p.across) * kAcross, begin,
          static_cast<int>(end - begin), block};
}

// As many features of a row as a tile has, one row after the other; kApart bytes between rows.
template <int kNumRows, int kFeatures, int kSize_, int kApart>
struct Staged {
  static constexpr int kRows = kNumRows, kSize = kSize_;
  static constexpr int kRowBytes = kFeatures * kSize;
  static constexpr int kDistance = kRowBytes + kApart;  // from a row to the next
  static constexpr int kBytes = kRows * kDistance;
  static __device__ int place(int row, int at) { return row * kDistance + at; }
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
        between_(operand.row_bytes * kAtOnce),
        from_(operand.data + (first + row_) * operand.row_bytes + begin + at()) {}

  // Copies the next stage; zeros beyond the `rows` that are left, and the features that there are.
  __device__ void stage(unsigned to, int rows) {
#pragma unroll
    for (int i = 0; i < S::kRows / kAtOnce; ++i) {
      copy_or_zeros<kCopy>(to + S::place(row_ + i * kAtOnce, at()), from_,
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
  int64_t between_;
  const char* from_;  // not read where nothing is there
};

// What the places and lengths of an operand's rows are multiples of.
inline int64_t alignment_of(const Operand& operand) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand.data)) | operand.row_bytes;
}

// f(bytes) with as many at once as the rows of both allow, 16, 8 or 4, as an integral_constant; or
// to load with each.
template <typename F>
cudaError_t with_copies(const Launch& launch, const Params& p, F f) {
  const int64_t alignment = alignment_of(p.x) | alignment_of(p.g);
  if (launch.load || alignment % 16 == 0) {
    JAXGNN_TRY(f(std::integral_constant<int, 16>{}));
    if (!launch.load) return cudaSuccess;
  }
  if (launch.load || alignment % 8 == 0) {
    JAXGNN_TRY(f(std::integral_constant<int, 8>{}));
    if (!launch.load) return cudaSuccess;
  }
  return f(std::integral_constant<int, 4>{});
}

}  // namespace jaxgnn::projection
