// The rows of an attention by cosines: what their window's tiles made, if there are tiles, and the
// edges in no tile, divided by the sum of the exponentials.
//
// A warp takes a row. Its groups of eight lanes load an edge's row each, as the A operands of
// products with the row's own features: rows g and g + 8 are halves of two edges' rows, columns the
// two halves of the own one, of which a sum is the diagonal. So tensor cores make the dot products
// of 8 edges in two instructions, and an edge's features are unpacked once, for the sums.
//
// With self-loops a row adds one of its own, and the graph's count for nothing. One that is in a
// tile is the same term of the sums: its row then adds no other.
//
// A tile's 0 times infinity is NaN, so one value that is not finite makes its feature of all 64
// rows not finite. Where that is so, and where |beta| is too large for a fixed reference, the row
// is summed again over all of its edges.
#include "cuda/core/mma.cuh"
#include "cuda/tiles/cosine.cuh"
#include "cuda/tiles/place.cuh"

namespace jaxgnn::tiles {
namespace {

constexpr int kWarps = 2;      // of a block, a row each
constexpr int kPairs = 4;      // of edges that a group has at once
constexpr float kAgain = NAN;  // log_sum of a row that is to be summed again

// What a row's edges are summed with.
template <typename T>
struct Row {
  int number;
  Vector<T, 8> own;
  float scale;  // beta over its norm, for powers of two
  float reference;

  __device__ Row(const TilesCosineArgs& a, const Lane<T>& at, int row, int head) : number(row) {
    own.word = {};
    if (at.inside) {
      own = load_vector<T, 8>(static_cast<const T*>(a.x) + row * a.width + at.feature);
    }
    scale = kLog2E * __ldg(a.row_scale + row * a.heads + head);
    reference = reference_of<T>(__ldg(a.beta + head));
  }
};

// A lane's place in the iterations over 32 edges: it has the column and the weight of one edge, and
// loads 16 bytes of the rows of eight. Step u of group q loads that of edge 4 u + q.
struct EdgeLane {
  int side;  // of the features: the first half or the second
  int pair;
  int edge;

  __device__ explicit EdgeLane(int lane)
      : side(lane / 4 % 2), pair(lane % 4), edge(4 * (2 * pair + side) + lane / 8) {}
  // The lane of a group that has the edge of step u.
  __device__ static int of_step(int u) { return 4 * (u % 2) + u / 2; }
};

// One iteration: 32 edges, or those that are left, in columns[e, last]. With kMost `total` becomes
// the largest score, else the sum of the lane's exponentials, and rows are added. With kLoops edges
// from the row itself count for nothing.
template <bool kMost, bool kLoops, bool kWhole, typename T>
__device__ inline void add_32(const TilesCosineArgs& a, const T* x, int head, const Row<T>& row,
                              const EdgeLane& lane, int column, int left, float (&sums)[8],
                              float& total) {
  const unsigned row_bytes = static_cast<unsigned>(a.width * sizeof(T));
  const float scale = __ldg(a.column_scale + column * a.heads + head);
  Vector<T, 8> rows[2 * kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (!kWhole && 8 * j >= left) break;
#pragma unroll
    for (int u = 2 * j; u < 2 * j + 2; ++u) {
      const unsigned c = __shfl_sync(kFullWarp, column, EdgeLane::of_step(u), 8);
      rows[u] = load_vector<T, 8>(row_of(x, c, row_bytes));
    }
  }
  float dot = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (!kWhole && 8 * j >= left) break;
    const Vector<T, 8>&first = rows[2 * j], &second = rows[2 * j + 1];
    float products[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t features[4] = {first.bits[i], second.bits[i], first.bits[i + 1],
                                    second.bits[i + 1]};
      multiply(products, features, row.own.bits[i], row.own.bits[i + 1], Tag<T>{});
    }
    // The lanes of the first half take the first edge's sum, the others the second's.
    const float keep = lane.side ? products[3] : products[0];
    const float give = lane.side ? products[1] : products[2];
    const float sum = keep + __shfl_xor_sync(kFullWarp, give, 4);
    if (lane.pair == j) dot = sum;
  }
  const bool there = (kWhole || lane.edge < left) && !(kLoops && column == row.number);
  const float score = dot * scale * row.scale;
  if constexpr (kMost) {
    if (there) total = fmaxf(total, score);
    return;
  }
  const float weight = there ? power_of_two(score - row.reference) : 0.0f;
  total += weight;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (!kWhole && 8 * j >= left) break;
#pragma unroll
    for (int u = 2 * j; u < 2 * j + 2; ++u) {
      add_scaled(__shfl_sync(kFullWarp, weight, EdgeLane::of_step(u), 8), rows[u], sums);
    }
  }
}

// Adds the edges [begin, end) of these columns.
template <bool kMost, bool kLoops, typename T>
__device__ inline void add_edges(const TilesCosineArgs& a, const Lane<T>& at, int head,
                                 const Row<T>& row, const int32_t* columns, int begin, int end,
                                 float (&sums)[8], float& total) {
  if (begin >= end) return;
  // Past the head's end any of its features: what they are multiplied by is 0. Past the last edge
  // that one again, which counts for nothing.
  const int first = head * static_cast<int>(a.width / a.heads);
  const T* x = static_cast<const T*>(a.x) + (at.inside ? at.feature : first);
  const EdgeLane lane(at.lane);
  const auto column_of = [&](int e) { return __ldg(columns + min(e + lane.edge, end - 1)); };
  int column = column_of(begin), e = begin;
#pragma unroll 1
  for (; e + 32 <= end; e += 32) {
    const int now = column;
    column = column_of(e + 32);
    add_32<kMost, kLoops, true>(a, x, head, row, lane, now, 32, sums, total);
  }
  if (e < end) add_32<kMost, kLoops, false>(a, x, head, row, lane, column, end - e, sums, total);
}

// Adds the row's self-loop, in one group.
template <bool kMost, typename T>
__device__ inline void add_loop(const TilesCosineArgs& a, const Lane<T>& at, int head,
                                const Row<T>& row, float (&sums)[8], float& total) {
  float dot = 0;
#pragma unroll
  for (int v = 0; v < 8; ++v) dot += unpack(row.own, v) * unpack(row.own, v);
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) dot += __shfl_xor_sync(kFullWarp, dot, offset);
  const float score = dot * __ldg(a.column_scale + row.number * a.heads + head) * row.scale;
  if constexpr (kMost) {
    total = fmaxf(total, score);
    return;
  }
  const float weight = at.group == 0 ? power_of_two(score - row.reference) : 0.0f;
  if (at.lane == 0) total += weight;
  add_scaled(weight, row.own, sums);
}

template <typename T>
__device__ inline Lane<T> lane_of(const TilesCosineArgs& a, int head) {
  const int width = static_cast<int>(a.width / a.heads);
  return Lane<T>(head * width, (head + 1) * width);
}

// Which rows of a part's window have their self-loop in one of its entries, which ascend: a thread
// a row.
__global__ void __launch_bounds__(kWindowRows) cosine_loops(const TilesCosineArgs a) {
  const int4 part = a.tiles.parts[blockIdx.x];
  const int in_window = threadIdx.x, place = part.w * kWindowRows + in_window;
  const int row = place < a.tiles.num_rows ? a.tiles.rows[place] : -1;
  const int end = part.y * kBatchEntries;
  int low = part.x * kBatchEntries, high = end;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (a.tiles.columns[middle] < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool found = row >= 0 && low < end && a.tiles.columns[low] == row &&
                     is_in_batch(a.tiles.masks + int64_t{low / kBatchEntries} * kBatchWords,
                                 in_window, low % kBatchEntries);
  const unsigned loops = __ballot_sync(kFullWarp, found);
  if (in_window % 32 == 0) a.loops[2 * part.z + in_window / 32] = loops;
}

// Whether the self-loop of a row is to be added to its other edges: it is in none of its tiles.
template <bool kTiled>
__device__ inline bool lacks_loop(const TilesCosineArgs& a, int place) {
  if constexpr (!kTiled) return true;
  const int window = place / kWindowRows, word = place % kWindowRows / 32;
  unsigned loops = 0;
  for (int s = a.tiles.slot_offsets[window]; s < a.tiles.slot_offsets[window + 1]; ++s) {
    loops |= a.loops[2 * s + word];
  }
  return (loops >> place % 32 & 1) == 0;
}

// The partial sums of chunks of places with many other edges, a warp each.
template <typename T, bool kLoops>
__global__ void __launch_bounds__(32) cosine_chunks(const TilesCosineArgs a) {
  const RowPart chunk = a.tiles.chunks[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  if (chunk.row < 0 || !has_reference<T>(a, a.beta[head])) return;
  const Lane<T> at = lane_of<T>(a, head);
  const int begin = a.tiles.rest_offsets[chunk.row] + chunk.part * a.tiles.chunk_length;
  const int last = a.tiles.rest_offsets[chunk.row + 1];
  const int end = begin + min(a.tiles.chunk_length, last - begin);
  const Row<T> row(a, at, a.tiled ? a.tiles.rows[chunk.row] : chunk.row, head);
  float sums[8] = {}, total = 0;
  add_edges<false, kLoops>(a, at, head, row, a.tiles.rest_columns, begin, end, sums, total);
  add_groups(sums);
  total = warp_sum(total);
  if (at.lane == 0) a.chunk_totals[blockIdx.x * a.heads + head] = total;
  if (at.group != 0 || !at.inside) return;
  float* to = a.partials + blockIdx.x * a.width + at.feature;
#pragma unroll
  for (int v = 0; v < 8; ++v) to[v] = sums[v];
}

// Joins the groups' sums and writes the row.
template <typename T>
__device__ inline void store_row(const TilesCosineArgs& a, const Lane<T>& at, int row, int head,
                                 float reference, float (&sums)[8], float total) {
  add_groups(sums);
  total = warp_sum(total);
  if (at.lane == 0) {
    const float log_sum = (log2f(total) + reference) / kLog2E;
    a.log_sum[int64_t{row} * a.heads + head] = total == 0 ? 0.0f : log_sum;
  }
  if (at.group != 0 || !at.inside) return;
  const float scale = total == 0 ? 1.0f : 1.0f / total;
#pragma unroll
  for (int v = 0; v < 8; ++v) sums[v] *= scale;
  store_vector(static_cast<T*>(a.out) + int64_t{row} * a.width + at.feature, sums);
}

template <typename T, bool kTiled, bool kLoops>
__global__ void __launch_bounds__(32 * kWarps, kLoops ? 10 : 12)
    cosine_rows(const TilesCosineArgs a) {
  const int place = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int head = static_cast<int>(blockIdx.y);
  if (place >= a.tiles.num_rows) return;
  const Lane<T> at = lane_of<T>(a, head);
  const int number = !kTiled && a.tiles.rows == nullptr ? place : a.tiles.rows[place];
  const int key = kTiled ? place : number;  // of its other edges
  const Row<T> row(a, at, number, head);
  float sums[8] = {}, total = 0;
  bool again = !has_reference<T>(a, a.beta[head]);
  if (!again) {
    const int begin = a.tiles.rest_offsets[key], end = a.tiles.rest_offsets[key + 1];
    const bool first_lane = at.lane % 8 == 0;  // of a group: it adds the totals
    if (end - begin <= a.tiles.chunk_length) {
      add_edges<false, kLoops>(a, at, head, row, a.tiles.rest_columns, begin, end, sums, total);
    } else {
      const int count = (end - begin - 1) / a.tiles.chunk_length + 1;
      const int64_t first = first_chunk(a.tiles, key);
      if (at.inside) {
        add_rows(a.partials + first * a.width + at.feature, a.width, count, at.group, sums);
      }
      for (int i = at.group; first_lane && i < count; i += kGroups) {
        total += a.chunk_totals[(first + i) * a.heads + head];
      }
    }
    if (kLoops && lacks_loop<kTiled>(a, place)) add_loop<false>(a, at, head, row, sums, total);
    bool finite = true;
    if constexpr (kTiled) {
      const int window = place / kWindowRows, first_slot = a.tiles.slot_offsets[window];
      const int slots = a.tiles.slot_offsets[window + 1] - first_slot;
      const int64_t from = int64_t{first_slot} * kWindowRows + place % kWindowRows;
      float shared[8] = {}, shared_total = 0;
      if (at.inside) {
        add_rows(a.slots + from * a.width + at.feature, kWindowRows * a.width, slots, at.group,
                 shared);
      }
      for (int i = at.group; first_lane && i < slots; i += kGroups) {
        shared_total += a.slot_totals[(from + i * kWindowRows) * a.heads + head];
      }
      finite = isfinite(shared_total);
      total += shared_total;
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        finite = finite && isfinite(shared[v]);
        sums[v] += shared[v];
      }
    }
    again = !__all_sync(kFullWarp, finite);
  }
  if (again) {
    if (at.lane == 0) a.log_sum[int64_t{number} * a.heads + head] = kAgain;
    return;
  }
  store_row(a, at, number, head, row.reference, sums, total);
}

// The rows that are to be summed again, over all of their edges; others that are NaN get the same
// once more. A warp looks at 32. A kernel of its own, for the registers of the one above.
template <typename T, bool kLoops>
__global__ void __launch_bounds__(32) cosine_again(const TilesCosineArgs a) {
  const int head = static_cast<int>(blockIdx.y);
  const Lane<T> at = lane_of<T>(a, head);
  const int64_t first = int64_t{blockIdx.x} * 32, mine = first + at.lane;
  const bool again = mine < a.tiles.num_rows && isnan(a.log_sum[mine * a.heads + head]);
  for (unsigned left = __ballot_sync(kFullWarp, again); left != 0; left &= left - 1) {
    const int number = static_cast<int>(first) + __ffs(left) - 1;
    Row<T> row(a, at, number, head);
    const int begin = a.tiles.row_offsets[number], end = a.tiles.row_offsets[number + 1];
    float sums[8] = {}, total = 0, most = -INFINITY;
    add_edges<true, kLoops>(a, at, head, row, a.tiles.row_columns, begin, end, sums, most);
    if constexpr (kLoops) add_loop<true>(a, at, head, row, sums, most);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, offset));
    }
    row.reference = most == -INFINITY ? 0.0f : most;
    add_edges<false, kLoops>(a, at, head, row, a.tiles.row_columns, begin, end, sums, total);
    if constexpr (kLoops) add_loop<false>(a, at, head, row, sums, total);
    store_row(a, at, number, head, row.reference, sums, total);
  }
}

template <typename T, bool kTiled, bool kLoops>
cudaError_t launch_rows(const TilesCosineArgs& args, const Launch& launch) {
  const unsigned heads = static_cast<unsigned>(args.heads);
  if (launch.load || (kTiled && kLoops && args.tiles.num_parts > 0)) {
    const dim3 parts(static_cast<unsigned>(args.tiles.num_parts));
    JAXGNN_TRY(launch_kernel(launch, cosine_loops, parts, dim3(kWindowRows), 0, args));
  }
  if (launch.load || args.tiles.num_chunks > 0) {
    const auto kernel = cosine_chunks<T, kLoops>;
    const dim3 grid(static_cast<unsigned>(args.tiles.num_chunks), heads);
    JAXGNN_TRY(launch_kernel(launch, kernel, grid, dim3(32), 0, args));
  }
  const auto rows = cosine_rows<T, kTiled, kLoops>;
  const dim3 grid(blocks_of(args.tiles.num_rows, kWarps), heads);
  JAXGNN_TRY(launch_kernel(launch, rows, grid, dim3(32 * kWarps), 0, args));
  const auto again = cosine_again<T, kLoops>;
  const dim3 groups(blocks_of(args.tiles.num_rows, 32), heads);
  return launch_kernel(launch, again, groups, dim3(32), 0, args);
}

template <typename T, bool kTiled>
cudaError_t launch_rows(const TilesCosineArgs& args, const Launch& launch) {
  if (launch.load || args.self_loops) {
    JAXGNN_TRY((launch_rows<T, kTiled, true>(args, launch)));
  }
  if (launch.load || !args.self_loops) return launch_rows<T, kTiled, false>(args, launch);
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_cosine_rest(const TilesCosineArgs& args, const Launch& launch) {
  return with_type(Types<__nv_bfloat16, __half>{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (launch.load || args.tiled) JAXGNN_TRY((launch_rows<T, true>(args, launch)));
    if (launch.load || !args.tiled) return launch_rows<T, false>(args, launch);
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::tiles
