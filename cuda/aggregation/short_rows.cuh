// The kernels for short rows: a team of lanes takes a row, its warp a longer one, and where no row
// is too long for that a block those of several chunks.
#pragma once

#include "cuda/aggregation/gather.cuh"

namespace jaxgnn::aggregation {

constexpr int kSteps = 4;  // edges under way of a team

// The columns of up to kSteps edges from `begin` on; without columns, the edges' numbers.
__device__ inline void load_columns(const int32_t* columns, int64_t begin, int count,
                                    unsigned (&from)[kSteps]) {
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
}

// What those edges read, and their weights.
template <typename P, typename Lane>
__device__ inline void fetch_edges(const Lane& lane, const unsigned (&from)[kSteps], int64_t begin,
                                   int count, typename Lane::Edge (&edges)[kSteps]) {
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
    if (u < count) {
      lane.fetch(edges[u], from[u]);
      if (P::kWeighted) lane.weigh(edges[u], begin + u);
    }
  }
}

// A team's share of a row: four edges of every kStride, the first of them at `at`; from there on
// `left` edges are the row's.
template <typename P, int kStride, typename Lane>
__device__ inline void add_share(Lane& lane, const int32_t* columns, int64_t at, int left) {
  unsigned from[kSteps];
  load_columns(columns, at, left, from);
#pragma unroll 1
  for (; left > 0; left -= kStride) {
    typename Lane::Edge edges[kSteps];
    fetch_edges<P>(lane, from, at, left, edges);
    at += kStride;
    load_columns(columns, at, left - kStride, from);
    lane.add(edges, [&](int u) { return u < left; });
  }
  __syncwarp();
}

// A row of several chunks by a block: each team takes its share of the fours, the warps' results
// are added in their order. Of the blocks that such a row has, one for each chunk, the first does
// it.
template <typename P, int V, int kLanes, int kThreads>
__device__ inline void block_row(const typename P::Params& p,
                                 typename P::template Lane<V, false>& lane, bool active) {
  using A = typename Accumulator<typename P::Type>::type;
  constexpr int kWarps = kThreads / 32;
  constexpr int kStride = kThreads / kLanes * kSteps;
  __shared__ A parked[kWarps][kLanes * V];
  const RowPart chunk = p.rows.chunks[blockIdx.x];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int32_t* columns = static_cast<const int32_t*>(p.rows.columns);
  const int64_t first = load_offset(p.rows, chunk.row);
  const int count = static_cast<int>(load_offset(p.rows, chunk.row + 1) - first);
  const int before = static_cast<int>(threadIdx.x) / kLanes * kSteps;
  lane.begin(chunk.row);
  add_share<P, kStride>(lane, columns, first + before, count - before);
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) lane.merge(offset);
  const int local = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (local < kLanes) lane.park(&parked[warp][local * V]);
  __syncthreads();
  if (warp > 0 || local >= kLanes || !active) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) lane.join(&parked[w][local * V]);
  lane.store(Work{chunk.row, -1, first, count, count});
}

// A team of kLanes lanes processes a row, or with kSeveral a chunk of a long row or
// p.rows_per_worker rows in sequence; these have consecutive indices under any row schedule. All
// teams of a warp share a row of more than p.solo_length edges: every one takes each kTeams-th
// four, and they add up at the end. Else it would be a chain of as many waits as it has fours,
// which small graphs have nothing to hide behind. For the same reason a chunk has all teams of a
// warp, no warp has two chunks, and the teams of a warp have rows from as many parts of a row
// schedule, which is by lengths: no warp has only long ones. Row indices fit in 32 bits
// (launch_rows), and so does the size of a gathered row; edge indices may not.
//
// With kBlockRows the first blocks take the rows of several chunks.
template <typename P, int V, int kLanes, bool kSeveral, bool kBlockRows = false,
          int kThreads = kGatherThreads>
__global__ void __launch_bounds__(kThreads, P::kShortBlocks* kGatherThreads / kThreads)
    short_rows(const typename P::Params p) {
  constexpr int kTeams = kSeveral ? 1 : 32 / kLanes;  // that share rows
  const int own = (slice_number() * kLanes + static_cast<int>(threadIdx.x % kLanes)) * V;
  const bool active = own < p.width;
  if (kTeams == 1 && !active) return;
  using Lane = typename P::template Lane<V, false>;
  int f = active ? own : 0;    // lanes beyond the width repeat the first ones' work
  asm volatile("" : "+r"(f));  // else it is chosen anew for each load
  Lane lane(p, f);
  const int32_t* columns = static_cast<const int32_t*>(p.rows.columns);
  unsigned block = blockIdx.x;
  unsigned chunks = p.rows.num_chunks * kTeams;  // workers of the chunks, that come first
  if constexpr (kBlockRows) {
    if (block < p.rows.num_chunks) return block_row<P, V, kLanes, kThreads>(p, lane, active);
    block -= p.rows.num_chunks;
    chunks = 0;
  }
  const unsigned worker = block * (kThreads / kLanes) + threadIdx.x / kLanes;
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
      const int64_t begin = __shfl_sync(kFullWarp, next.begin, leader);
      lane.begin(row);
      add_share<P, kTeams * kSteps>(lane, columns, begin + team * kSteps, count - team * kSteps);
#pragma unroll
      for (int offset = kLanes; offset < 32; offset *= 2) lane.merge(offset);
      if (active && team == leader / kLanes) store(item, row, count);
    }
    if (shared || !active || !mine) return;  // a team without a row would read one beyond the last
  }
  unsigned from[kSteps];
  load_columns(columns, next.begin, next.count, from);
#pragma unroll 1
  for (; !kSeveral || item < last; ++item) {  // once if not kSeveral, also with nothing to do
    Stretch now = next;
    next = kSeveral && item + 1 < last ? whole_row(item + 1 - before) : Stretch{0, 0};
    lane.begin(item - before);
    int left = now.count;
#pragma unroll 1
    do {
      typename Lane::Edge edges[kSteps];
      fetch_edges<P>(lane, from, now.begin, left, edges);
      now.begin += kSteps;
      const bool more = left > kSteps;
      load_columns(columns, more ? now.begin : next.begin, more ? left - kSteps : next.count, from);
      lane.add(edges, [&](int u) { return u < left; });
      left -= kSteps;
    } while (left > 0);
    if (now.count >= 0) store(item, item - before, now.count);
    if (!kSeveral) break;
  }
}

// Rounds of loads that a team may take for its share of a block's row: with few threads a block,
// which short rows are faster with, and with many.
constexpr int64_t kFewRounds = 64, kManyRounds = 128;
constexpr int kFewThreads = 128, kManyThreads = 256;

// The threads of the blocks that take the rows of several chunks, or 0 if warps are to take their
// chunks.
inline int block_row_threads(const GatherParams& p, int lanes) {
  if (p.rows.num_chunks == 0 || p.longest_row == 0) return 0;
  const int64_t fours = (p.longest_row + kSteps - 1) / kSteps * lanes;
  if (fours <= kFewRounds * kFewThreads) return kFewThreads;
  return fours <= kManyRounds * kManyThreads ? kManyThreads : 0;
}

template <typename P, int V, int kLanes, int kThreads>
cudaError_t launch_block_rows(const typename P::Params& p, const Launch& launch) {
  const int64_t workers = int64_t(p.rows.num_chunks) * (kThreads / kLanes) + p.rows.num_rows;
  return launch_gather(short_rows<P, V, kLanes, false, true, kThreads>, p, workers, kLanes,
                       kLanes * V, launch, kThreads);
}

// Sets `joined` where there are no partial results.
template <typename P, int V, int kLanes>
cudaError_t launch_short(typename P::Params p, const Launch& launch, bool& joined) {
  constexpr int64_t kTeams = 32 / kLanes;
  const bool shares = kLanes < 32 && p.solo_length < INT32_MAX;
  const bool few_edges = p.num_edges < kFewEdges * p.rows.num_rows;
  const bool many = p.rows.num_rows * kLanes >= kManyWarps * 32 * p.rows_per_worker;
  if (!many || (shares && !few_edges)) p.rows_per_worker = 1;
  if constexpr (P::kBlockRows && kTeams > 1) {
    const int threads = shares && p.rows_per_worker == 1 ? block_row_threads(p, kLanes) : 0;
    if (launch.load || threads == kFewThreads) {
      JAXGNN_TRY((launch_block_rows<P, V, kLanes, kFewThreads>(p, launch)));
    }
    if (launch.load || threads == kManyThreads) {
      JAXGNN_TRY((launch_block_rows<P, V, kLanes, kManyThreads>(p, launch)));
    }
    joined = threads > 0;
    if (joined && !launch.load) return cudaSuccess;
  }
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

}  // namespace jaxgnn::aggregation
