// Kernels that gather a row for each edge and make one row of them, without atomics.
//
// What is made of the gathered rows is a policy P: `P::Params`, a `GatherParams` and more;
// `P::Type`; `P::kWeighted`, whether edges have weights; `P::kInFlight`, how long rows hide
// latency; `P::kLongBlocks` and `P::kShortBlocks`, the occupancy to compile for; `P::kNarrowRows`,
// whether rows of at most four vectors have teams of as many lanes; `P::kBlockRows`, whether blocks
// take rows of several chunks; `P::join(p, launch)`, which joins what is stored of parts; and
// `P::Lane<V, kLong>`, a lane's V features of a row in the making:
//   Lane(p, f)              the lane at the features from f on
//   begin(row)              starts a row
//   fetch(edge, column)     loads what an edge reads
//   weigh(edge, e)          loads the weights of the edge at the place e
//   add(edges, valid)       adds those edges u for which valid(u)
//   merge(offset)           adds what the lane at that distance has, both ways
//   park(at), join(at)      writes what the lane has, adds what another wrote (of kBlockRows)
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
// order. Where no row is too long for it a block takes such a row instead, which spares small
// graphs that kernel. docs/kernels/aggregation.md has the measurements behind these choices.
#pragma once

#include "cuda/aggregation/long_rows.cuh"
#include "cuda/aggregation/short_rows.cuh"

namespace jaxgnn::aggregation {

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

// The kernel of a mapping; sets `joined` where it leaves no partial results.
template <typename P>
cudaError_t launch_mapping(const typename P::Params& p, bool rows_aligned, bool weights_aligned,
                           const Launch& launch, bool narrow_slices, bool& joined) {
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
    JAXGNN_TRY((launch_short<P, 1, 32>(p, launch, joined)));
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
      JAXGNN_TRY((launch_short<P, V, 2>(p, launch, joined)));
      if (!launch.load) return cudaSuccess;
    }
    if (launch.load || p.width <= 4 * V) {
      JAXGNN_TRY((launch_short<P, V, 4>(p, launch, joined)));
      if (!launch.load) return cudaSuccess;
    }
  }
  if (launch.load || p.width <= 8 * V || narrow_slices) {
    typename P::Params eight = p;
    if (narrow_slices) eight.solo_length = INT32_MAX;  // rows of equal length: none is shared
    JAXGNN_TRY((launch_short<P, V, 8>(eight, launch, joined)));
    if (!launch.load) return cudaSuccess;
  }
  if (launch.load || p.width <= 16 * V) {
    JAXGNN_TRY((launch_short<P, V, 16>(p, launch, joined)));
    if (!launch.load) return cudaSuccess;
  }
  return launch_short<P, V, 32>(p, launch, joined);
}

// The policy's kernels. `rows_aligned` says whether all feature rows begin at multiples of 16
// bytes, but for the width; `weights_aligned` the same of what the edges carry. With
// `narrow_slices` short rows, too, are walked a slice of 128 bytes after the other, by groups of
// eight lanes.
template <typename P>
cudaError_t launch_rows(const typename P::Params& p, bool rows_aligned, bool weights_aligned,
                        const Launch& launch, bool narrow_slices = false) {
  bool joined = false;
  JAXGNN_TRY(launch_mapping<P>(p, rows_aligned, weights_aligned, launch, narrow_slices, joined));
  return joined && !launch.load ? cudaSuccess : P::join(p, launch);
}

}  // namespace jaxgnn::aggregation
