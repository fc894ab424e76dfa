// Tiles of float32 features, by 32: a float32 is the sum of three bfloat16 by truncation, exactly,
// and a mask of 0 and 2 is exact, so that three products are one of float32.
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
      uint32_t b[3][2];  // high, middle, low; entries k and k + 8
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t terms[3][2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const float value =
              __uint_as_float(load_shared(at + offset + (8 * h + q) * kRowBytes + n * 32));
          const uint32_t high = __float_as_uint(value) & 0xFFFF0000u;
          const float rest = value - __uint_as_float(high);
          const uint32_t middle = __float_as_uint(rest) & 0xFFFF0000u;
          terms[0][q] = high;
          terms[1][q] = middle;
          terms[2][q] = __float_as_uint(rest - __uint_as_float(middle));
        }
#pragma unroll
        for (int u = 0; u < 3; ++u) b[u][h] = __byte_perm(terms[u][0], terms[u][1], 0x7632);
      }
#pragma unroll
      for (int u = 2; u >= 0; --u) {
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
  const dim3 grid(static_cast<unsigned>(args.num_parts), num_slices(args));
  return launch_large_kernel(launch, tiles_f32, grid, dim3(32 * kWarps), kSharedBytes,
                             tile_params(args));
}

}  // namespace jaxgnn::tiles
