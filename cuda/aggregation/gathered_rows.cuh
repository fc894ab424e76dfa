// Kernels that gather a row for each edge and make one row of them, without atomics.
//
// What is made of the gathered rows is a policy P: `P::Params`, a `GatherParams` and more;
// `P::Type`; `P::kWeighted`, whether edges have weights; `P::kInFlight`, how long rows hide
// latency; `P::kLongBlocks` and `P::kShortBlocks`, the occupancy to compile for; and
// `P::Lane<V, kLong>`, a lane's V features of a row in the making:
//   Lane(p, f)              the lane at the features from f on
//   begin(row)              starts a row
//   fetch(edge, column)     loads what an edge reads
//   weigh(edge, e)          loads the weights of the edge at the place e
//   add(edges, valid)       adds those edges u for which valid(u)
//   merge(offset)           adds what the lane at that distance has, both ways
//   store(work)             the row, or the part of one
//
// A lane holds 16 bytes of a row. Two mappings, chosen by the mean row length (static):
//   long rows: a warp a row. The feature axis is cut into slices of 128 bytes, eight lanes each,
//     so that a slice of all that is gathered stays in the L2 cache while every edge reads it; the
//     slices are the grid's y axis, hence run one after the other. The warp's four groups take
//     every fourth chunk of four edges and add up at the end. A chunk's column indices are one
//     aligned 16-byte load: scalar loads would cost the same number of L1 wavefronts as the rows.
//   short rows: a team of as many lanes as a row has vectors, at most 32, walks a row. If rows are
//     tiny, several one after the other, for the start of a block costs more than a row of five
//     edges; else the teams of a warp share a row that is long for one. The indices of the next
//     four edges, also across the end of a row, are loaded behind the rows.
// Rows longer than the chunk length are processed in chunks; another kernel adds the chunks in
// order. docs/kernels/aggregation.md has the measurements behind these choices.
#pragma once

#include <algorithm>

#include "common/aggregation.h"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/rows.cuh"
#include "cuda/core/slices.cuh"

namespace jaxgnn::aggregation {

constexpr int kGatherThreads = 64;  // small blocks: a finished row frees its place early

// What is loaded of a long row before it is used: a chunk of four edges, two, or one and, while
// that is added (which waits for more, that depends on it), the next.
enum class InFlight { kOneChunk, kTwoChunks, kNextChunk };

struct GatherParams {
  Rows rows;
  int64_t width;
  int heads;
  int head_width;
  unsigned row_bytes;        // from a gathered row to the next
  unsigned rows_per_worker;  // of short_rows; at least 1
  int64_t row_limit;         // only the first so many edges of a row count
  int64_t num_edges;         // at most, that count
  int solo_length;           // of short_rows: edges of a row up to which a team has it alone
};

// Mean row lengths up to which several rows share a worker, and from which a warp splits a row.
constexpr int64_t kTinyRow = 16;
constexpr int64_t kLongRow = 256;
// A team has rows of this many edges, or of the mean row's, alone; longer ones are the warp's.
constexpr int64_t kSoloLength = 32;
// Teams narrower than a warp take several tiny rows only where these have fewer edges than this on
// average: others gain more from being shared.
constexpr int64_t kFewEdges = 4;
// Mean row length from which tiny rows come in their order where what they gather stays in the L2
// cache of an H100 or H200. Shorter ones were not timed.
constexpr int64_t kOrderedRow = 12;
constexpr int64_t kCacheBytes = 48 << 20;
// Several rows a worker leave a GPU idle where that makes fewer warps than this.
constexpr int64_t kManyWarps = 8192;

// For rows of the type T; without weights there is one head.
template <typename T>
GatherParams gather_params(const Rows& rows, int64_t width, int64_t heads,
                           int64_t num_columns = INT64_MAX, int64_t row_limit = kNoLimit) {
  const int64_t num_rows = std::max<int64_t>(rows.num_rows, 1);
  const bool limited = row_limit < rows.num_edges / num_rows;
  const int64_t num_edges = limited ? row_limit * num_rows : rows.num_edges;
  const int64_t mean = num_edges / num_rows;
  const bool tiny = mean < kTinyRow;
  GatherParams p{rows,
                 width,
                 static_cast<int>(heads),
                 static_cast<int>(width / (heads > 0 ? heads : 1)),
                 static_cast<unsigned>(width * sizeof(T)),
                 tiny ? 4u : 1u,
                 row_limit,
                 num_edges,
                 static_cast<int>(std::clamp<int64_t>(mean, kSoloLength, INT32_MAX))};
  // The order of tiny rows is that of their lengths alone: it takes apart what shares senders.
  const bool cached = num_columns <= kCacheBytes / std::max<int64_t>(p.row_bytes, 1);
  if (tiny && !(cached && mean >= kOrderedRow)) p.rows.order = nullptr;
  return p;
}

// The gathered row at a column; columns of 64 bits are those of wide_rows.
template <typename T>
__device__ inline const T* gathered(const GatherParams& p, const T* x, unsigned column) {
  return row_of(x, column, p.row_bytes);
}
template <typename T>
__device__ inline const T* gathered(const GatherParams& p, const T* x, int64_t column) {
  return x + column * p.width;
}

// The weights of the four edges from e, a multiple of 4, on.
template <typename A>
__device__ inline void load_four(const GatherParams& p, const A* weights, int64_t e, int head,
                                 A (&four)[4]) {
  if (p.heads == 1) {  // so that the load is aligned
    constexpr int kPer = 16 / sizeof(A);
#pragma unroll
    for (int k = 0; k < 4 / kPer; ++k) {
      const Vector<A, kPer> vector = load_vector<A, kPer>(weights + e + k * kPer);
#pragma unroll
      for (int i = 0; i < kPer; ++i) four[k * kPer + i] = unpack(vector, i);
    }
  } else {
#pragma unroll
    for (int u = 0; u < 4; ++u) four[u] = weights[(e + u) * p.heads + head];
  }
}

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

// A team of kLanes lanes processes a row, or with kSeveral a chunk of a long row or
// p.rows_per_worker rows in sequence; these have consecutive indices under any row schedule. All
// teams of a warp share a row of more than p.solo_length edges: every one takes each kTeams-th
// four, and they add up at the end. Else it would be a chain of as many waits as it has fours,
// which small graphs have nothing to hide behind. For the same reason a chunk has all teams of a
// warp, no warp has two chunks, and the teams of a warp have rows from as many parts of a row
// schedule, which is by lengths: no warp has only long ones. Row indices fit in 32 bits
// (launch_rows), and so does the size of a gathered row; edge indices may not.
template <typename P, int V, int kLanes, bool kSeveral>
__global__ void __launch_bounds__(kGatherThreads, P::kShortBlocks)
    short_rows(const typename P::Params p) {
  constexpr int kSteps = 4;
  constexpr int kTeams = kSeveral ? 1 : 32 / kLanes;  // that share rows
  const int own = (slice_number() * kLanes + static_cast<int>(threadIdx.x % kLanes)) * V;
  const bool active = own < p.width;
  if (kTeams == 1 && !active) return;
  using Lane = typename P::template Lane<V, false>;
  int f = active ? own : 0;    // lanes beyond the width repeat the first ones' work
  asm volatile("" : "+r"(f));  // else it is chosen anew for each load
  Lane lane(p, f);
  const int32_t* columns = static_cast<const int32_t*>(p.rows.columns);
  const unsigned worker = blockIdx.x * (kGatherThreads / kLanes) + threadIdx.x / kLanes;
  const unsigned chunks = p.rows.num_chunks * kTeams;  // workers of the chunks, that come first
  const unsigned all = chunks + static_cast<unsigned>(p.rows.num_rows);
  const unsigned several = kSeveral ? p.rows_per_worker : 1;
  unsigned item = worker < chunks ? worker : chunks + (worker - chunks) * several;
  unsigned before = chunks;  // a row's number is its item's less this
  bool mine = item < all;
  if (!kSeveral && p.rows.order != nullptr && worker >= chunks) {
    const unsigned rows = static_cast<unsigned>(p.rows.num_rows);
    unsigned place = worker - chunks;
    if (kTeams > 1) {
      const unsigned warps = (rows + kTeams - 1) / kTeams, warp = place / kTeams;
      place = warp < warps ? place % kTeams * warps + warp : rows;
    }
    mine = place < rows;
    if (mine) before = item - static_cast<unsigned>(p.rows.order[place]);
  }
  if (kTeams == 1 && !mine) return;
  const unsigned last = worker < chunks ? item + 1 : min(item + several, all);  // of kSeveral

  struct Stretch {
    int64_t begin;
    int count;  // -1: nothing to do
  };
  const auto whole_row = [&](unsigned row) -> Stretch {  // find_work has more to carry
    if (p.rows.wide_offsets) {
      const int64_t* at = static_cast<const int64_t*>(p.rows.offsets) + row;
      const int64_t degree = min(at[1] - at[0], p.row_limit);
      return {at[0], degree > p.rows.chunk_length ? -1 : static_cast<int>(degree)};
    }
    const int32_t* at = static_cast<const int32_t*>(p.rows.offsets) + row;
    const int degree = static_cast<int>(min(int64_t{at[1] - at[0]}, p.row_limit));
    return {at[0], degree > p.rows.chunk_length ? -1 : degree};
  };
  const auto load_from = [&](unsigned (&from)[kSteps], int64_t begin, int count) {
    if (columns != nullptr) {
      const int32_t* at = columns + begin;
      asm volatile("" : "+l"(at));  // else the address is computed anew for each
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (u < count) from[u] = __ldg(at + u);
      }
    } else {
#pragma unroll
      for (int u = 0; u < kSteps; ++u) from[u] = static_cast<unsigned>(begin) + u;
    }
  };
  const auto fetch = [&](typename Lane::Edge(&edges)[kSteps], const unsigned (&from)[kSteps],
                         int64_t begin, int count) {
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      if (u < count) {
        lane.fetch(edges[u], from[u]);
        if (P::kWeighted) lane.weigh(edges[u], begin + u);
      }
    }
  };
  const auto store = [&](unsigned item, unsigned row, int count) {
    Work work{row, -1, 0, count, count};
    if (item < chunks) work.part = item / kTeams;
    lane.store(work);
  };

  Stretch next{0, -1};
  if (worker < chunks) {
    const Work part = find_work(p.rows, worker / kTeams);
    mine = part.row >= 0 && worker % kTeams == 0;
    next = {part.begin, mine ? part.count : -1};
    before = mine ? item - static_cast<unsigned>(part.row) : item;
  } else if (mine) {
    next = whole_row(item - before);
  }
  unsigned from[kSteps];
  if constexpr (kTeams > 1) {
    // First, so that nothing of it takes registers from the rows that a team has alone.
    const int team = static_cast<int>(threadIdx.x % 32) / kLanes;
    const bool shared = next.count > (worker < chunks ? 0 : p.solo_length);
    unsigned waiting = __ballot_sync(kFullWarp, shared);
#pragma unroll 1
    while (waiting != 0) {
      const int leader = __ffs(waiting) - 1;
      waiting &= ~(((1u << kLanes) - 1) << leader);
      const unsigned row = __shfl_sync(kFullWarp, item - before, leader);
      const int count = __shfl_sync(kFullWarp, next.count, leader);
      int64_t at = __shfl_sync(kFullWarp, next.begin, leader) + team * kSteps;
      lane.begin(row);
      load_from(from, at, count - team * kSteps);
#pragma unroll 1
      for (int left = count - team * kSteps; left > 0; left -= kTeams * kSteps) {
        typename Lane::Edge edges[kSteps];
        fetch(edges, from, at, left);
        at += kTeams * kSteps;
        load_from(from, at, left - kTeams * kSteps);
        lane.add(edges, [&](int u) { return u < left; });
      }
      __syncwarp();
#pragma unroll
      for (int offset = kLanes; offset < 32; offset *= 2) lane.merge(offset);
      if (active && team == leader / kLanes) store(item, row, count);
    }
    if (shared || !active) return;
  }
  load_from(from, next.begin, next.count);
#pragma unroll 1
  for (; !kSeveral || item < last; ++item) {  // once if not kSeveral, also with nothing to do
    Stretch now = next;
    next = kSeveral && item + 1 < last ? whole_row(item + 1 - before) : Stretch{0, 0};
    lane.begin(item - before);
    int left = now.count;
#pragma unroll 1
    do {
      typename Lane::Edge edges[kSteps];
      fetch(edges, from, now.begin, left);
      now.begin += kSteps;
      const bool more = left > kSteps;
      load_from(from, more ? now.begin : next.begin, more ? left - kSteps : next.count);
      lane.add(edges, [&](int u) { return u < left; });
      left -= kSteps;
    } while (left > 0);
    if (now.count >= 0) store(item, item - before, now.count);
    if (!kSeveral) break;
  }
}

// Columns or rows that do not fit in 32 bits (2^31 edges or more, read through a permutation or in
// order): correct, not fast.
template <typename P>
__global__ void __launch_bounds__(kGatherThreads) wide_rows(const typename P::Params p) {
  const int64_t worker = (int64_t(blockIdx.x) * kGatherThreads + threadIdx.x) / 32;
  const Work work = find_work(p.rows, worker, p.row_limit);
  const int64_t f = int64_t(slice_number()) * 32 + threadIdx.x % 32;
  if (work.row < 0 || f >= p.width) return;
  using Lane = typename P::template Lane<1, false>;
  Lane lane(p, f);
  lane.begin(work.row);
  for (int i = 0; i < work.count; ++i) {
    typename Lane::Edge edge[1];
    lane.fetch(edge[0], load_column(p.rows, work.begin + i));
    if (P::kWeighted) lane.weigh(edge[0], work.begin + i);
    lane.add(edge, [](int) { return true; });
  }
  lane.store(work);
}

// Launches a kernel of `workers` times `lanes` threads on slices of `slice` features.
template <typename Params>
cudaError_t launch_gather(void (*kernel)(Params), const Params& p, int64_t workers, int lanes,
                          int64_t slice, const Launch& launch) {
  const int64_t per_block = kGatherThreads / lanes;
  const dim3 grid = slice_grid(blocks_of(workers, per_block), (p.width + slice - 1) / slice);
  return launch_kernel(launch, kernel, grid, kGatherThreads, 0, p);
}

template <typename P, int V, int kLanes>
cudaError_t launch_short(typename P::Params p, const Launch& launch) {
  constexpr int64_t kTeams = 32 / kLanes;
  const bool shares = kLanes < 32 && p.solo_length < INT32_MAX;
  const bool few_edges = p.num_edges < kFewEdges * p.rows.num_rows;
  const bool many = p.rows.num_rows * kLanes >= kManyWarps * 32 * p.rows_per_worker;
  if (!many || (shares && !few_edges)) p.rows_per_worker = 1;
  const int64_t workers = p.rows.num_chunks * (p.rows_per_worker > 1 ? 1 : kTeams) +
                          (p.rows.num_rows + p.rows_per_worker - 1) / p.rows_per_worker;
  if (launch.load || p.rows_per_worker > 1) {
    JAXGNN_TRY(
        launch_gather(short_rows<P, V, kLanes, true>, p, workers, kLanes, kLanes * V, launch));
  }
  if (launch.load || p.rows_per_worker == 1) {
    JAXGNN_TRY(
        launch_gather(short_rows<P, V, kLanes, false>, p, workers, kLanes, kLanes * V, launch));
  }
  return cudaSuccess;
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// The policy's kernels on all rows but the join of the parts. `rows_aligned` says whether all
// feature rows begin at multiples of 16 bytes, but for the width; `weights_aligned` the same of
// what the edges carry. With `narrow_slices` short rows, too, are walked a slice of 128 bytes after
// the other, by groups of eight lanes.
template <typename P>
cudaError_t launch_rows(const typename P::Params& p, bool rows_aligned, bool weights_aligned,
                        const Launch& launch, bool narrow_slices = false) {
  constexpr int V = 16 / sizeof(typename P::Type);
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const int64_t most_workers = 16 * p.rows.num_chunks + p.rows.num_rows;  // teams of two lanes
  const bool wide = p.rows.wide_columns || most_workers > INT32_MAX ||
                    (p.rows.columns == nullptr && p.rows.num_edges > INT32_MAX) ||
                    p.width > INT32_MAX / int64_t(sizeof(typename P::Type));
  if (launch.load || wide) {
    JAXGNN_TRY(launch_gather(wide_rows<P>, p, workers, 32, 32, launch));
    if (!launch.load) return cudaSuccess;
  }
  const bool single = p.head_width % V != 0 || !rows_aligned;
  if (launch.load || single) {
    JAXGNN_TRY((launch_short<P, 1, 32>(p, launch)));
    if (!launch.load) return cudaSuccess;
  }
  const bool is_long =
      p.num_edges >= kLongRow * p.rows.num_rows && is_aligned(p.rows.columns) && weights_aligned;
  if (launch.load || is_long) {
    JAXGNN_TRY(launch_gather(long_rows<P, V>, p, workers, 32, 8 * V, launch));
    if (!launch.load) return cudaSuccess;
  }
  if constexpr (P::kNarrowRows) {
    if (launch.load || p.width <= 2 * V) {
      JAXGNN_TRY((launch_short<P, V, 2>(p, launch)));
      if (!launch.load) return cudaSuccess;
    }
    if (launch.load || p.width <= 4 * V) {
      JAXGNN_TRY((launch_short<P, V, 4>(p, launch)));
      if (!launch.load) return cudaSuccess;
    }
  }
  if (launch.load || p.width <= 8 * V || narrow_slices) {
    typename P::Params eight = p;
    if (narrow_slices) eight.solo_length = INT32_MAX;  // rows of equal length: none is shared
    JAXGNN_TRY((launch_short<P, V, 8>(eight, launch)));
    if (!launch.load) return cudaSuccess;
  }
  if (launch.load || p.width <= 16 * V) {
    JAXGNN_TRY((launch_short<P, V, 16>(p, launch)));
    if (!launch.load) return cudaSuccess;
  }
  return launch_short<P, V, 32>(p, launch);
}

}  // namespace jaxgnn::aggregation
