// What the kernels of the rows over tiles share: a warp a place, four groups of eight lanes, and
// what a place adds of its window's slots and of its chunks.
#pragma once

#include "cuda/core/arithmetic.cuh"
#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {

constexpr int kGroups = 4;  // of 8 lanes, an edge each

// A lane's 16 bytes of the 128 that its block takes, of the features [first, end) of a row.
template <typename T>
struct Lane {
  static constexpr int V = 16 / sizeof(T);
  int lane;
  int group;
  int feature;  // the first of V
  bool inside;

  __device__ Lane(int first, int64_t end) {
    lane = threadIdx.x % 32;
    group = lane / 8;
    feature = first + lane % 8 * V;
    inside = feature < end;
  }
};

// Adds every fourth of `count` rows of floats, `stride` apart.
template <int V>
__device__ inline void add_rows(const float* from, int64_t stride, int count, int group,
                                float (&sums)[V]) {
  for (int i = group; i < count; i += kGroups) {
#pragma unroll
    for (int v = 0; v < V; v += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i * stride + v);
      sums[v] += four.x;
      sums[v + 1] += four.y;
      sums[v + 2] += four.z;
      sums[v + 3] += four.w;
    }
  }
}

template <int V>
__device__ inline void add_groups(float (&sums)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    sums[v] += __shfl_xor_sync(kFullWarp, sums[v], 8);
    sums[v] += __shfl_xor_sync(kFullWarp, sums[v], 16);
  }
}

// The first chunk of a place, of which there is one; chunks ascend by place, padding (-1) is last.
__device__ inline int first_chunk(const TiledRows& tiles, int place) {
  int low = 0, high = tiles.num_chunks - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (static_cast<unsigned>(tiles.chunks[middle].row) < static_cast<unsigned>(place)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace jaxgnn::tiles
