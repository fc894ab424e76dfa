// Tiles of float32 features, by 32: a float32 is the sum of three bfloat16 by truncation, exactly,
// and a mask of 0 and 2 is exact, so that three products are one of float32. Where TF32 is allowed
// two are taken, the second term rounded: they keep 16 bits of the significand, TF32 keeps 11, and
// TF32's products have half the rate, so that one takes as long as these two.
#include "cuda/core/dispatch.cuh"
#include "cuda/tiles/batches.cuh"

namespace jaxgnn::tiles {
namespace {

constexpr int kStages = 5;
constexpr int kFeatures = 4;                 // times 8, of a slice
constexpr int kRowBytes = kSliceBytes + 16;  // two rows are 8 banks apart: no conflicts
constexpr int kPromoteEvery = 4;  // batches: tensor cores truncate sums, float32 registers round
using Ring = Stages<kStages, kRowBytes, false>;
constexpr int kSharedBytes = kWarps * kStages * Ring::kBytes;
static_assert(kSharedBytes >= 4 * kFeatures * 4 * 256, "for add_warps");

// Two numbers as bfloat16, the first in the low half: rounded, or their upper halves alone.
template <bool kRound>
__device__ inline uint32_t pack(uint32_t low, uint32_t high) {
  if (!kRound) return __byte_perm(low, high, 0x7632);
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "r"(high), "r"(low));
  return both;
}

template <int kTerms>
__global__ void __launch_bounds__(32 * kWarps, 3) tiles_f32(TileParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int4 part = p.parts[blockIdx.x];
  const int lane = threadIdx.x % 32;
  constexpr int kSums = 4 * kFeatures * 4;
  float recent[kSums], sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) recent[i] = sums[i] = 0;
  const auto promote = [&] {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] += recent[i];
      recent[i] = 0;
    }
  };

  const unsigned offset = lane % 4 * 2 * kRowBytes + lane / 4 * 4;
  Ring ring(p, p.width * sizeof(float), shared_address(shared), part);
  ring.over_batches([&](unsigned at, int batch) {
    uint32_t a[16];
    unpack_mask(load_shared(at + kBatchEntries * kRowBytes + lane * 4), a);
#pragma unroll
    for (int n = 0; n < kFeatures; ++n) {
      uint32_t b[kTerms][2];  // the largest terms first; entries k and k + 8
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t terms[kTerms][2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          float rest = __uint_as_float(load_shared(at + offset + (8 * h + q) * kRowBytes + n * 32));
#pragma unroll
          for (int u = 0; u < kTerms - 1; ++u) {
            terms[u][q] = __float_as_uint(rest) & 0xFFFF0000u;
            rest -= __uint_as_float(terms[u][q]);
          }
          terms[kTerms - 1][q] = __float_as_uint(rest);
        }
#pragma unroll
        for (int u = 0; u < kTerms - 1; ++u) b[u][h] = pack<false>(terms[u][0], terms[u][1]);
        b[kTerms - 1][h] = pack<kTerms == 2>(terms[kTerms - 1][0], terms[kTerms - 1][1]);
      }
#pragma unroll
      for (int u = kTerms - 1; u >= 0; --u) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          float* c = recent + (m * kFeatures + n) * 4;
          multiply(*reinterpret_cast<float (*)[4]>(c), a + 4 * m, b[u][0], b[u][1],
                   Tag<__nv_bfloat16>{});
        }
      }
    }
    if ((batch + 1) % kPromoteEvery == 0) promote();
  });
  promote();
  add_warps(sums, reinterpret_cast<float*>(shared));
  if (threadIdx.x < 32) write_slot<kFeatures>(p, part.z, sums);
}

}  // namespace

cudaError_t launch_tiles_f32(const TilesSpmmArgs& args, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(args.tiles.num_parts), num_slices(args));
  const auto launch_with = [&](auto kernel) {
    return launch_large_kernel(launch, kernel, grid, dim3(32 * kWarps), kSharedBytes,
                               tile_params(args));
  };
  if (launch.load || args.tensorfloat32) JAXGNN_TRY(launch_with(tiles_f32<2>));
  if (launch.load || !args.tensorfloat32) JAXGNN_TRY(launch_with(tiles_f32<3>));
  return cudaSuccess;
}

}  // namespace jaxgnn::tiles
