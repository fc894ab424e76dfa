// The kernel for long rows: a warp takes a row, a slice of the features after the other.
#pragma once

#include "cuda/aggregation/gather.cuh"

namespace jaxgnn::aggregation {

// One worker's walk over the edges of a long row: `group` takes every kGroups-th chunk of four.
template <typename P, int V>
struct Walk {
  static constexpr int kGroups = 4;
  static constexpr int kLanes = 32 / kGroups;
  using Lane = typename P::template Lane<V, true>;
  using Edge = typename Lane::Edge;

  const GatherParams& p;
  Lane& lane;
  const int32_t* columns;
  int64_t begin, end;

  __device__ void load_columns(int64_t e, int (&column)[4]) const {
    if (columns != nullptr) {
      const int4 four = __ldg(reinterpret_cast<const int4*>(columns + e));
      column[0] = four.x, column[1] = four.y, column[2] = four.z, column[3] = four.w;
    } else {
#pragma unroll
      for (int u = 0; u < 4; ++u) column[u] = static_cast<int>(e) + u;
    }
  }
  __device__ void fetch_four(Edge* edges, const int (&column)[4]) const {
#pragma unroll
    for (int u = 0; u < 4; ++u) lane.fetch(edges[u], static_cast<unsigned>(column[u]));
  }

  // kChunks chunks, kGroups apart, of which every edge belongs to the row.
  template <int kChunks>
  __device__ void whole(int64_t e) {
    int column[kChunks][4];
    Edge edges[kChunks * 4];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t at = e + c * 4 * kGroups;
      load_columns(at, column[c]);
      if (P::kWeighted) lane.weigh_four(edges + 4 * c, at);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) fetch_four(edges + 4 * c, column[c]);
    lane.add(edges, [](int) { return true; });
  }

  // The whole chunks c, c + kGroups, ... below `end_chunk`, of which there is one at least, without
  // weights: the next one's rows, and the columns of that after it, are on their way while a chunk
  // is added. Past the last one it is loaded again: behind a branch that leaves the loop the
  // compiler would load what is used after it. Returns the chunk after them.
  __device__ int each_ahead(int64_t first, int c, int end_chunk) {
    const int last = c + (end_chunk - 1 - c) / kGroups * kGroups;
    int column[4];
    Edge now[4], next[4];
    load_columns(first + 4 * c, column);
    fetch_four(now, column);
    load_columns(first + 4 * min(c + kGroups, last), column);
#pragma unroll 1
    do {
      fetch_four(next, column);
      load_columns(first + 4 * min(c + 2 * kGroups, last), column);
      lane.add(now, [](int) { return true; });
#pragma unroll
      for (int u = 0; u < 4; ++u) now[u] = next[u];
      c += kGroups;
    } while (c <= last);
    return c;
  }

  // A chunk at the row's begin or end: only its edges within the row.
  __device__ void partial(int64_t e) {
    Edge edges[4];
    const auto inside = [&](int u) { return e + u >= begin && e + u < end; };
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (inside(u)) {
        lane.fetch(edges[u], static_cast<unsigned>(columns != nullptr ? columns[e + u] : e + u));
        if (P::kWeighted) lane.weigh(edges[u], e + u);
      }
    }
    lane.add(edges, inside);
  }

  __device__ void run(int group) {
    const int64_t first = begin & ~int64_t(3);
    const int whole_chunks = static_cast<int>((end - first) / 4);
    const int chunks = static_cast<int>((end - first + 3) / 4);
    int c = group;
    if (c == 0 && first < begin) {
      partial(first);
      c += kGroups;
    }
    if constexpr (P::kInFlight == InFlight::kNextChunk) {
      if (c < whole_chunks) c = each_ahead(first, c, whole_chunks);
    } else {
      if constexpr (P::kInFlight == InFlight::kTwoChunks) {
        for (; c + kGroups < whole_chunks; c += 2 * kGroups) whole<2>(first + 4 * c);
      }
      for (; c < whole_chunks; c += kGroups) whole<1>(first + 4 * c);
    }
    if (c < chunks) partial(first + 4 * c);
  }
};

template <typename P, int V>
__global__ void __launch_bounds__(kGatherThreads, P::kLongBlocks)
    long_rows(const typename P::Params p) {
  using RowWalk = Walk<P, V>;
  const int64_t worker = (int64_t(blockIdx.x) * kGatherThreads + threadIdx.x) / 32;
  const Work work = find_work(p.rows, worker, p.row_limit);
  if (work.row < 0) return;
  const int local = threadIdx.x % 32;
  const int64_t f = (int64_t(slice_number()) * RowWalk::kLanes + local % RowWalk::kLanes) * V;
  const bool active = f < p.width;  // lanes beyond the width repeat the first ones' work
  typename RowWalk::Lane lane(p, active ? f : 0);
  lane.begin(work.row);
  RowWalk{p, lane, static_cast<const int32_t*>(p.rows.columns), work.begin, work.begin + work.count}
      .run(local / RowWalk::kLanes);
#pragma unroll
  for (int offset = RowWalk::kLanes; offset < 32; offset *= 2) lane.merge(offset);
  if (local < RowWalk::kLanes && active) lane.store(work);
}

}  // namespace jaxgnn::aggregation
