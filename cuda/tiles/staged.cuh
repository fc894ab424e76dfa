// Tiles whose edges are taken one by one, on CUDA cores: a block stages the rows of 64 entries at
// a time in shared memory, from where each edge of the window's 64 rows reads its own. Any weights,
// and no products but those of edges: what is not finite reaches its receivers alone.
//
// Eight warps take a part of a window and L lanes of 16 bytes of a row. Warp g has the window's
// rows g, g + 8, ..., so that its loop over them unrolls and their sums stay in registers. L lanes
// take an edge, a warp 32 / L edges at once.
#pragma once

#include <type_traits>

#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {

constexpr int kStagedWarps = 8;  // the row groups of TileLayout
constexpr int kStagedThreads = 32 * kStagedWarps;
constexpr int kWarpRows = kWindowRows / kStagedWarps;
constexpr int kStageEntries = 64;
constexpr int kRingStages = 3;
constexpr int kRingEdges = 64;  // of a warp

// Shared memory: the stages, a row of zeros, the warps' edges.
template <int L>
constexpr int kZeroRow = kRingStages * kStageEntries * L * 16;
template <int L>
constexpr int kRings = kZeroRow<L> + L * 16;
template <int L>
constexpr int kStagedBytes = kRings<L> + kStagedWarps * kRingEdges * int(sizeof(uint2));

// f(L) for rows of so many bytes.
template <typename F>
cudaError_t with_lanes(const Launch& launch, int64_t bytes, F f) {
  if (launch.load || bytes <= 128) JAXGNN_TRY(f(std::integral_constant<int, 8>{}));
  if (launch.load || bytes > 128) JAXGNN_TRY(f(std::integral_constant<int, 16>{}));
  return cudaSuccess;
}

// What the kernels here take of a graph's tiles.
struct StagedTiles {
  const int32_t* columns;
  const int4* parts;
  TileEdges edges;
};

// A part's stages, staged two ahead. Threads copy 16 bytes each: L a row, a warp eight entries.
template <int L>
class StagedRows {
 public:
  // `x` is where the lane's 16 bytes of a slice begin in the first row; lanes that are not active
  // copy nothing.
  __device__ StagedRows(const StagedTiles& tiles, const int4& part, const void* x,
                        unsigned row_bytes, bool active, unsigned char* shared)
      : columns_(tiles.columns + int64_t{part.x} * kBatchEntries),
        entries_((part.y - part.x) * kBatchEntries),
        x_(static_cast<const char*>(x)),
        row_bytes_(row_bytes),
        active_(active),
        shared_(shared_address(shared)) {
    if (threadIdx.x < 4 * L) reinterpret_cast<float*>(shared + kZeroRow<L>)[threadIdx.x] = 0;
  }

  __device__ int num_stages() const { return (entries_ + kStageEntries - 1) / kStageEntries; }

  // Calls f(where it begins in shared memory, stage) for each stage, by all threads.
  template <typename F>
  __device__ void over_stages(const F& f) const {
    int column = column_of(0), next = column_of(1);
    copy_in(0, column);
    copy_in(1, next);
    next = column_of(2);
    int now = 0, free = 2;
    const int stages = num_stages();
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      wait<1>();
      __syncthreads();  // the stage is there for all, and all have left the one before
      copy_in(free, next);
      next = column_of(s + 3);
      f(now * kBytes, s);
      now = now + 1 == kRingStages ? 0 : now + 1;
      free = free + 1 == kRingStages ? 0 : free + 1;
    }
    wait<0>();
  }

 private:
  static constexpr int kRowBytes = 16 * L;
  static constexpr int kBytes = kStageEntries * kRowBytes;
  static constexpr int kWarpEntries = kStageEntries / kStagedWarps;

  __device__ int column_of(int stage) const {
    const int within = threadIdx.x / 32 * kWarpEntries + threadIdx.x % kWarpEntries;
    const int entry = stage * kStageEntries + within;
    return entry < entries_ ? __ldg(columns_ + entry) : -1;
  }
  __device__ void copy_in(int stage, int column) const {
    const int lane = threadIdx.x % 32;
    const unsigned to =
        shared_ + stage * kBytes + lane % L * 16 + threadIdx.x / 32 * kWarpEntries * kRowBytes;
#pragma unroll
    for (int j = 0; j < kWarpEntries; j += 32 / L) {
      const int c = __shfl_sync(kFullWarp, column, j + lane / L);
      if (c >= 0 && active_) {
        copy16(to + (j + lane / L) * kRowBytes, row_of(x_, static_cast<unsigned>(c), row_bytes_));
      }
    }
    commit();
  }

  const int32_t* columns_;
  const int entries_;
  const char* x_;
  const unsigned row_bytes_;
  const bool active_;
  const unsigned shared_;
};

// The edges of a warp's rows in order, as pairs: where the row of the edge's entry begins in its
// stage, and the edge's weight or, without `weights`, the edge. Two chunks of 32 lie in the warp's
// part of shared memory, the next is in registers, and of the one after that what it is read from.
template <int L>
class EdgeStream {
 public:
  // `shared` is the block's.
  __device__ EdgeStream(const TileEdges& edges, int slot, const float* weights,
                        unsigned char* shared)
      : edges_(edges),
        weights_(weights),
        ring_(reinterpret_cast<uint2*>(shared + kRings<L>) + threadIdx.x / 32 * kRingEdges) {
    const int32_t* offset = edges.offsets + int64_t{slot} * kStagedWarps + threadIdx.x / 32;
    begin_ = __ldg(offset) + static_cast<int>(threadIdx.x) % 32;
    end_ = __ldg(offset + 1);
    store(0, pair_of(read(0)));
    store(1, pair_of(read(1)));
    next_ = pair_of(read(2));
    ahead_ = read(3);
    __syncwarp();
  }

  // The edge i places on, i < 32.
  __device__ uint2 at(unsigned i) const { return ring_[(place_ + i) % kRingEdges]; }

  // Moves on by n <= 32 edges; called by the whole warp.
  __device__ void advance(int n) {
    const unsigned before = place_;
    place_ += static_cast<unsigned>(n);
    if (((place_ ^ before) & 32) == 0) return;
    const unsigned chunk = before / 32;
    __syncwarp();
    store(chunk, next_);
    __syncwarp();
    next_ = pair_of(ahead_);
    ahead_ = read(chunk + 4);
  }

 private:
  __device__ void store(unsigned chunk, uint2 pair) {
    ring_[chunk % 2 * 32 + threadIdx.x % 32] = pair;
  }
  // Entry and edge as they are stored, so that nothing waits for them; the edge is -1 past the end.
  __device__ int2 read(unsigned chunk) const {
    const int from = begin_ + static_cast<int>(chunk * 32);
    int2 edge = make_int2(0, -1);
    if (from < end_) {
      edge.x = __ldg(edges_.entries + from);
      edge.y = __ldg(edges_.edges + from);
    }
    return edge;
  }
  __device__ uint2 pair_of(int2 edge) const {
    uint2 pair = make_uint2(static_cast<unsigned>(edge.x) % kStageEntries * 16 * L,
                            static_cast<unsigned>(edge.y));
    if (weights_ != nullptr && edge.y >= 0) {
      pair.y = __float_as_uint(__ldg(weights_ + edge.y));
    }
    return pair;
  }

  const TileEdges& edges_;
  const float* weights_;
  uint2* ring_;
  int begin_, end_;
  unsigned place_ = 0;  // from the part's first
  uint2 next_;
  int2 ahead_;
};

// The next edges of a group of lanes: those at group, group + G, ... of U G. They are read before
// what was read of the ones before is used.
template <int L, int U>
struct NextEdges {
  static constexpr int kGroups = 32 / L;
  static constexpr int kEdges = U * kGroups;

  uint2 pairs[U];

  __device__ void load(const EdgeStream<L>& edges, int group) {
#pragma unroll
    for (int u = 0; u < U; ++u) pairs[u] = edges.at(u * kGroups + group);
  }
};

// The number of edges of the warp's row i, from the counts of a stage.
__device__ inline int edges_of_row(uint2 counts, int i) {
  return static_cast<int>((i < 4 ? counts.x >> 8 * i : counts.y >> 8 * (i - 4)) & 255);
}

// Calls f(i, edges of the row in the stage, where the stage begins in shared memory) for each stage
// of a part and each of the warp's rows, i a constant.
template <int L, typename F>
__device__ inline void over_stage_rows(const StagedRows<L>& rows, const StagedTiles& tiles,
                                       int slot, const F& f) {
  const uint2* counts = tiles.edges.counts +
                        int64_t{__ldg(tiles.edges.stage_offsets + slot)} * kStagedWarps +
                        threadIdx.x / 32;
  const int stages = rows.num_stages();
  uint2 next = stages > 0 ? __ldg(counts) : uint2{};
  rows.over_stages([&](unsigned at, int s) {
    const uint2 now = next;
    if (s + 1 < stages) next = __ldg(counts + int64_t{s + 1} * kStagedWarps);
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) f(i, edges_of_row(now, i), at);
  });
}

// This lane's 16 bytes of a row in shared memory.
template <typename T, int V>
__device__ inline Vector<T, V> load_shared_vector(const unsigned char* row) {
  static_assert(sizeof(T) * V == 16);
  Vector<T, V> v;
  v.word = *reinterpret_cast<const uint4*>(row);
  return v;
}

}  // namespace jaxgnn::tiles
