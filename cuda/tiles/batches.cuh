// What the tile kernels of either width have in common: batches of 16 entries staged in shared
// memory, masks as operands of the tensor cores, and the sum over a block's warps.
//
// Four warps take a part of a window and 128 bytes of a row. Each takes every fourth batch, has its
// own sums of all 64 rows, and a ring of S stages of its own: no barrier before the end.
#pragma once

#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/core/rows.cuh"
#include "cuda/core/shared.cuh"
#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {

constexpr int kWarps = 4;

// What a tile kernel takes of TilesSpmmArgs.
struct TileParams {
  const int32_t* columns;
  const uint32_t* masks;
  const int4* parts;
  const void* x;
  float* slots;
  int width;
};

inline TileParams tile_params(const TilesSpmmArgs& args) {
  return {args.tiles.columns,          args.tiles.masks, args.tiles.parts, args.x, args.slots,
          static_cast<int>(args.width)};
}

// The A fragments of a batch's mask: each register two values, 0 or 2 in bfloat16 and in float16.
__device__ inline void unpack_mask(uint32_t word, uint32_t (&a)[16]) {
#pragma unroll
  for (int r = 0; r < 16; ++r) a[r] = (r == 0 ? word >> 1 : word << (r - 1)) & 0x40004000u;
}

// One warp's batches of a part, staged S - 1 ahead. A stage has 16 rows, kRowBytes apart, and the
// mask's words. With kSwizzle the 16-byte pieces of a row are permuted by its number.
template <int S, int kRowBytes, bool kSwizzle>
class Stages {
 public:
  static constexpr int kBytes = kBatchEntries * kRowBytes + kBatchWords * 4;

  __device__ Stages(const TileParams& p, unsigned row_bytes, unsigned shared, const int4& part)
      : p_(p),
        row_bytes_(row_bytes),
        lane_(threadIdx.x % 32),
        first_(part.x + static_cast<int>(threadIdx.x) / 32),
        shared_(shared + threadIdx.x / 32 * S * kBytes),
        batches_((part.y - first_ + kWarps - 1) / kWarps) {
    const unsigned offset = blockIdx.y * kSliceBytes + (lane_ & 7) * 16;
    // Past the row's end the first features stand in for those that write_slot leaves out.
    x_ = static_cast<const char*>(p.x) + (offset < row_bytes ? offset : 0);
  }

  // Calls f(shared address of a stage, batch) for each of the warp's batches.
  template <typename F>
  __device__ void over_batches(const F& f) {
    int ahead[S - 1];
#pragma unroll
    for (int s = 0; s < S - 1; ++s) ahead[s] = column_of(s);
#pragma unroll
    for (int s = 0; s < S - 1; ++s) copy_in(s, s, ahead[s]);
    int column = column_of(S - 1);
    int stage = 0, next = S - 1;
#pragma unroll 1
    for (int i = 0; i < batches_; ++i) {
      wait<S - 2>();
      __syncwarp();
      copy_in(i + S - 1, next, column);
      column = column_of(i + S);
      f(shared_ + stage * kBytes, i);
      stage = stage + 1 == S ? 0 : stage + 1;
      next = next + 1 == S ? 0 : next + 1;
    }
  }

 private:
  __device__ int64_t batch(int i) const { return first_ + int64_t{kWarps} * i; }
  __device__ int column_of(int i) const {
    return i < batches_ ? __ldg(p_.columns + batch(i) * kBatchEntries + (lane_ & 15)) : 0;
  }
  __device__ void copy_in(int i, int stage, int column) const {
    if (i < batches_) {
      const unsigned to = shared_ + stage * kBytes;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = lane_ / 8 + 4 * j;
        const unsigned c = __shfl_sync(kFullWarp, column, row);
        const int piece = (kSwizzle ? lane_ ^ row : lane_) & 7;
        copy16(to + row * kRowBytes + piece * 16, row_of(x_, c, row_bytes_));
      }
      copy4(to + kBatchEntries * kRowBytes + lane_ * 4, p_.masks + batch(i) * kBatchWords + lane_);
    }
    commit();
  }

  const TileParams& p_;
  const unsigned row_bytes_;
  const int lane_;
  const int first_;
  const unsigned shared_;
  const int batches_;  // not above 0 if this warp has none
  const char* x_;
};

// Adds the sums of four warps; the first one has them at the end. Needs 256 N bytes.
template <int N>
__device__ inline void add_warps(float (&sums)[N], float* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  wait<0>();
  __syncthreads();
#pragma unroll
  for (int half = kWarps / 2; half >= 1; half /= 2) {
    if (warp >= half && warp < 2 * half) {
      float* mine = shared + (warp - half) * N * 32 + lane;
#pragma unroll
      for (int i = 0; i < N; ++i) mine[i * 32] = sums[i];
    }
    __syncthreads();
    if (warp < half) {
      const float* other = shared + warp * N * 32 + lane;
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += other[i * 32];
    }
    __syncthreads();
  }
}

// Writes 64 rows by 8 kColumns features of a slot: the halves of the sums, for masks of 2.
template <int kColumns>
__device__ inline void write_slot(const TileParams& p, int slot, const float* sums) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(blockIdx.y) * 8 * kColumns + 2 * t;
  float* out = p.slots + (int64_t{slot} * kWindowRows + g) * p.width + first;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if (first + n * 8 >= p.width) continue;
      const float* c = sums + (m * kColumns + n) * 4;
      float* to = out + int64_t{m * 16} * p.width + n * 8;
      *reinterpret_cast<float2*>(to) = make_float2(0.5f * c[0], 0.5f * c[1]);
      *reinterpret_cast<float2*>(to + int64_t{8} * p.width) = make_float2(0.5f * c[2], 0.5f * c[3]);
    }
  }
}

}  // namespace jaxgnn::tiles
