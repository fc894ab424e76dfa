// Slots of weighted sums: each edge of a tile adds its staged row, times its weight.
#include "cuda/core/dispatch.cuh"
#include "cuda/tiles/staged.cuh"

namespace jaxgnn::tiles {
namespace {

struct Params {
  StagedTiles tiles;
  const void* x;
  const float* weights;
  float* slots;
  int width;
  int heads;
};

// Sums of float32 take half of the registers that those of as many bytes of 16-bit features do.
template <typename T>
constexpr int kBlocks = sizeof(T) == 4 ? 3 : 2;

// With `kHeads` an edge has a weight for each head, which lanes load for their own.
template <typename T, int L, bool kHeads>
__global__ void __launch_bounds__(kStagedThreads, kBlocks<T>) weighted_tiles(const Params p) {
  constexpr int V = 16 / sizeof(T);
  constexpr int U = L == 8 ? 1 : 2;  // edges of a group at once
  using Next = NextEdges<L, U>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int4 part = p.tiles.parts[blockIdx.x];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / L;
  const int feature = (static_cast<int>(blockIdx.y) * L + lane % L) * V;
  const bool active = feature < p.width;
  const unsigned row_bytes = static_cast<unsigned>(p.width * sizeof(T));
  const float* head_weights = p.weights;
  if (kHeads && active) head_weights += feature / (p.width / p.heads);
  const unsigned char* mine = shared + lane % L * 16;
  float sums[kWarpRows][V] = {};

  EdgeStream<L> edges(p.tiles.edges, part.z, kHeads ? nullptr : p.weights, shared);
  const StagedRows<L> rows(p.tiles, part, static_cast<const T*>(p.x) + (active ? feature : 0),
                           row_bytes, active, shared);
  Next next;
  next.load(edges, group);
  const auto weight_of = [&](uint2 pair, bool there) {
    if constexpr (!kHeads) return there ? __uint_as_float(pair.y) : 0.0f;
    return there ? __ldg(head_weights + static_cast<int64_t>(pair.y) * p.heads) : 0.0f;
  };
  over_stage_rows(rows, p.tiles, part.z, [&](int i, int left, unsigned stage) {
    Vector<T, V> from[U];
    float scale[U];
#pragma unroll 1
    for (; left >= Next::kEdges; left -= Next::kEdges) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        from[u] = load_shared_vector<T, V>(mine + stage + next.pairs[u].x);
        scale[u] = weight_of(next.pairs[u], true);
      }
      edges.advance(Next::kEdges);
      next.load(edges, group);
#pragma unroll
      for (int u = 0; u < U; ++u) add_scaled<T, V, float>(scale[u], from[u], sums[i]);
    }
    if (left == 0) return;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const bool there = u * Next::kGroups + group < left;
      from[u] = load_shared_vector<T, V>(mine + (there ? stage + next.pairs[u].x : kZeroRow<L>));
      scale[u] = weight_of(next.pairs[u], there);
    }
    edges.advance(left);
    next.load(edges, group);
#pragma unroll
    for (int u = 0; u < U; ++u) add_scaled<T, V, float>(scale[u], from[u], sums[i]);
  });

  float* out = p.slots + (int64_t{part.z} * kWindowRows + warp) * p.width + feature;
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int offset = L; offset < 32; offset *= 2) {
        sums[i][v] += __shfl_xor_sync(kFullWarp, sums[i][v], offset);
      }
    }
    if (group != 0 || !active) continue;
    float* to = out + int64_t{kStagedWarps * i} * p.width;
#pragma unroll
    for (int v = 0; v < V; v += 4) {
      *reinterpret_cast<float4*>(to + v) =
          make_float4(sums[i][v], sums[i][v + 1], sums[i][v + 2], sums[i][v + 3]);
    }
  }
}

}  // namespace

cudaError_t launch_weighted_tiles(const TilesSpmmArgs& args, const Launch& launch) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t bytes = args.width * int64_t(sizeof(T));
    return with_lanes(launch, bytes, [&](auto lanes) {
      constexpr int L = decltype(lanes)::value;
      const Params p{{args.tiles.columns, args.tiles.parts, args.edges},
                     args.x,
                     args.weights,
                     args.slots,
                     static_cast<int>(args.width),
                     static_cast<int>(args.heads)};
      const dim3 grid(static_cast<unsigned>(args.tiles.num_parts), blocks_of(bytes, L * 16));
      const auto launch_with = [&](auto heads) {
        return launch_large_kernel<kStagedBytes<16>>(
            launch, weighted_tiles<T, L, decltype(heads)::value>, grid, dim3(kStagedThreads),
            kStagedBytes<L>, p);
      };
      if (launch.load || args.heads == 1) JAXGNN_TRY(launch_with(std::false_type{}));
      if (launch.load || args.heads != 1) JAXGNN_TRY(launch_with(std::true_type{}));
      return cudaSuccess;
    });
  });
}

}  // namespace jaxgnn::tiles
