// Tiles of bfloat16 and float16 features: the mask times 16 staged rows, by 64 features.
#include "cuda/core/dispatch.cuh"
#include "cuda/tiles/batches.cuh"

namespace jaxgnn::tiles {
namespace {

constexpr int kStages = 6;
constexpr int kFeatures = 8;  // times 8, of a slice
using Ring = Stages<kStages, kSliceBytes, true>;
constexpr int kSharedBytes = kWarps * kStages * Ring::kBytes;
static_assert(kSharedBytes >= 4 * kFeatures * 4 * 256, "for add_warps");

template <typename T>
__global__ void __launch_bounds__(32 * kWarps, 3) tiles_16_bit(TileParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int4 part = p.parts[blockIdx.x];
  const int lane = threadIdx.x % 32;
  float sums[4 * kFeatures * 4];
#pragma unroll
  for (float& sum : sums) sum = 0;

  // The lane's row in ldmatrix: the four matrices are (entries 0-7, features 0-7), (entries 8-15,
  // features 0-7), and the same of features 8-15.
  const int k = lane & 15, half = lane >> 4;
  Ring ring(p, p.width * sizeof(T), shared_address(shared), part);
  ring.over_batches([&](unsigned at, int) {
    uint32_t a[16];
    unpack_mask(load_shared(at + kBatchEntries * kSliceBytes + lane * 4), a);
#pragma unroll
    for (int n = 0; n < kFeatures; n += 2) {
      uint32_t b[4];
      load_transposed(b, at + k * kSliceBytes + (((n + half) ^ k) & 7) * 16);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        float* c = sums + (m * kFeatures + n) * 4;
        multiply(*reinterpret_cast<float (*)[4]>(c), a + 4 * m, b[0], b[1], Tag<T>{});
        multiply(*reinterpret_cast<float (*)[4]>(c + 4), a + 4 * m, b[2], b[3], Tag<T>{});
      }
    }
  });
  add_warps(sums, reinterpret_cast<float*>(shared));
  if (threadIdx.x < 32) write_slot<kFeatures>(p, part.z, sums);
}

}  // namespace

cudaError_t launch_tiles_16_bit(const TilesSpmmArgs& args, const Launch& launch) {
  return with_type(Types<__nv_bfloat16, __half>{}, launch, args.type, [&](auto tag) {
    const dim3 grid(static_cast<unsigned>(args.tiles.num_parts), num_slices(args));
    return launch_large_kernel(launch, tiles_16_bit<typename decltype(tag)::type>, grid,
                               dim3(32 * kWarps), kSharedBytes, tile_params(args));
  });
}

}  // namespace jaxgnn::tiles
