// Sums of gathered rows, weighted by attention computed online, for the forward pass and both
// gradients: the choice of the walk for a shape, and the kernels before and after it.
// docs/performance.md has the measurements behind the choices.
#pragma once

#include "cuda/attention/walk_lanes.cuh"
#include "cuda/attention/walk_tiles.cuh"
#include "cuda/core/dispatch.cuh"

namespace jaxgnn::attention {

// Combines the chunks of each long row in order. One block a chunk; the first block of each row
// does the work. In the forward pass each chunk's sums have their own reference score.
template <typename T, Pass kPass, typename A>
__global__ void join_sums(const RowParams<T> p) {
  const int64_t first = blockIdx.x;
  const RowPart chunk = p.rows.chunks[first];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int64_t degree = load_offset(p.rows, chunk.row + 1) - load_offset(p.rows, chunk.row);
  const int64_t parts = (degree + p.rows.chunk_length - 1) / p.rows.chunk_length;
  const A* partials = p.partials + first * p.partials_stride;
  const int heads = p.scoring.heads;
  for (int64_t f = threadIdx.x; f < p.width; f += blockDim.x) {
    const int64_t head = f / p.head_width;
    Softmax<A> all;
    A sum = A(0);
    for (int64_t k = 0; k < parts; ++k) {
      const A* partial = partials + k * p.partials_stride;
      A factor = A(1);
      if (kPass == Pass::kForward) {
        const A largest = partial[p.width + head];
        sum *= all.raise(largest);
        factor = exponential(largest - all.base());
        all.total += factor * partial[p.width + heads + head];
      }
      sum += factor * partial[f];
    }
    if (kPass == Pass::kForward) {
      sum *= all.scale();
      if (f == head * p.head_width) {
        all.store_log_sum(p.log_sum + 2 * (int64_t(chunk.row) * heads + head));
      }
    }
    p.out[chunk.row * p.width + f] = narrow<T, A>(sum);
  }
}

// The same of the forward pass of kernels with parameters of their own, for rows of values of
// `heads` heads of `head_width` features.
template <typename T, typename P>
cudaError_t join_forward(const P& p, int64_t heads, int head_width, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  if (!launch.load && p.rows.num_chunks == 0) return cudaSuccess;
  RowParams<T> joined{};
  joined.rows = p.rows;
  joined.scoring = p.scoring;
  joined.out = p.out;
  joined.log_sum = p.log_sum;
  joined.partials = p.partials;
  joined.width = heads * head_width;
  joined.partials_stride = joined.width + 2 * heads;
  joined.head_width = head_width;
  return launch_kernel(launch, join_sums<T, Pass::kForward, A>, p.rows.num_chunks, 128, 0, joined);
}

// The smaller side of the LeakyReLU's kink, estimated from 64 edges of a row; either answer gives
// correct results. One warp a row; the chunks of a row use the first chunk's answer.
template <typename A>
__global__ void choose_sides(const Rows rows, End<A> at_row, End<A> at_column, int* sides,
                             int heads) {
  constexpr int kSamples = 64;
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows.num_rows) return;
  const int64_t begin = load_offset(rows, row), degree = load_offset(rows, row + 1) - begin;
  const int samples = static_cast<int>(degree < kSamples ? degree : kSamples);
  int64_t column[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int sample = lane + 32 * u;
    column[u] = sample < samples ? load_column(rows, begin + sample * degree / samples) : -1;
  }
  for (int head = 0; head < heads; ++head) {
    const A own = at_row.score[row * at_row.stride + head];
    int positive = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const bool above =
          column[u] >= 0 && at_column.score[column[u] * at_column.stride + head] + own > A(0);
      positive += __popc(__ballot_sync(kFullWarp, above));
    }
    if (lane == 0) sides[row * heads + head] = 2 * positive <= samples;
  }
}

// The columns' terms, head-major, so that those of adjacent columns share a sector.
template <typename A, Pass kPass>
__global__ void fill_table(End<A> at_column, A* table, int64_t num_columns, int heads) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= num_columns * heads) return;
  const int64_t node = i / heads, head = i % heads;
  const Gathered<A> from = load_node<kPass>(at_column, node, static_cast<int>(head), false);
  A* to = table + head * num_columns + node;
  if constexpr (kPass == Pass::kSenders) {
    to = table + 4 * (head * num_columns + node);
    to[1] = from.log_sum;
    to[2] = from.delta;
    to[3] = A(0);
  }
  *to = from.score;
}

// The sum of a row's dot products of one head, over its slices and its chunks in order. One thread
// for each row (or first chunk) and head.
template <typename A>
__global__ void finish_dots(const Rows rows, const A* dots, A* out, int heads, int slices) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t head = i % heads;
  int64_t row = i / heads - rows.num_chunks, first = row, parts = 1;
  if (row < 0) {
    const RowPart chunk = rows.chunks[i / heads];
    if (chunk.row < 0 || chunk.part != 0) return;
    row = chunk.row;
    first = rows.num_rows + i / heads;
  }
  if (row >= rows.num_rows) return;
  const int64_t degree = load_offset(rows, row + 1) - load_offset(rows, row);
  if (first >= rows.num_rows) {
    parts = (degree + rows.chunk_length - 1) / rows.chunk_length;
  } else if (degree > rows.chunk_length) {
    return;
  }
  A sum = A(0);
  for (int64_t part = first; part < first + parts; ++part) {
    const A* own = dots + (part * heads + head) * slices;
    for (int slice = 0; slice < slices; ++slice) sum += own[slice];
  }
  out[row * heads + head] = sum;
}

// How `lanes` lanes of V features are dealt out to the heads. Returns the number of slices.
template <typename T>
int64_t cut(RowParams<T>& p, int lanes, int V) {
  const int needed = (p.head_width + V - 1) / V;
  p.lanes_per_head = needed < lanes ? needed : lanes;
  p.slices_per_head = (needed + lanes - 1) / lanes;
  const int64_t groups = (p.scoring.heads + p.heads_per_slice - 1) / p.heads_per_slice;
  return groups * p.slices_per_head;
}

// Launches a kernel of `lanes` lanes a row.
template <typename T>
cudaError_t launch_walk(void (*kernel)(RowParams<T>), const RowParams<T>& p, int64_t slices,
                        int threads_per_row, const Launch& launch) {
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const dim3 grid = slice_grid(blocks_of(workers, kRowThreads / threads_per_row), slices);
  return launch_kernel(launch, kernel, grid, kRowThreads, 0, p);
}

template <typename T, Pass kPass, int V, int kLanes>
cudaError_t launch_any(RowParams<T>& p, bool plain, const Launch& launch) {
  const int needed = (p.head_width + V - 1) / V;
  p.heads_per_slice = needed > 0 && needed < kLanes ? kLanes / needed : 1;
  const int64_t slices = cut(p, kLanes, V);
  if (launch.load || plain) {
    JAXGNN_TRY((launch_walk<T>(any_rows<T, kPass, V, kLanes, true>, p, slices, kLanes, launch)));
  }
  if (launch.load || !plain) {
    return launch_walk<T>(any_rows<T, kPass, V, kLanes, false>, p, slices, kLanes, launch);
  }
  return cudaSuccess;
}

template <typename T, Pass kPass, bool kPlain>
cudaError_t launch_long(RowParams<T>& p, typename Accumulator<T>::type* table,
                        const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const int64_t entries = p.scoring.num_columns * p.scoring.heads;
  JAXGNN_TRY(launch_kernel(launch, fill_table<A, kPass>, blocks_of(entries, 256), 256, 0,
                           p.at_column, table, p.scoring.num_columns, p.scoring.heads));
  if constexpr (kPass == Pass::kReceivers) {
    JAXGNN_TRY(launch_kernel(launch, choose_sides<A>, blocks_of(p.rows.num_rows * 32, 128), 128, 0,
                             p.rows, p.at_row, p.at_column, p.sides, p.scoring.heads));
  }
  p.table = table;
  p.heads_per_slice = 1;
  const int64_t slices = cut(p, 8, 16 / static_cast<int>(sizeof(T)));
  return launch_walk<T>(long_rows<T, kPass, kPlain>, p, slices, 32, launch);
}

// The mean row length from which a row has enough edges for the lanes of a warp.
constexpr int64_t kLongRow = 64;

// The walk, and where `scores` is not null the rows' sums of dot products. `table` is scratch for
// the columns' terms.
template <typename T, Pass kPass>
cudaError_t walk_rows(RowParams<T> p, typename Accumulator<T>::type* table,
                      typename Accumulator<T>::type* scores, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  constexpr int V = 16 / sizeof(T);
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.x) |
                              reinterpret_cast<uintptr_t>(p.own) |
                              reinterpret_cast<uintptr_t>(p.out);
  const bool aligned = p.head_width % V == 0 && addresses % 16 == 0;
  const int lanes = p.head_width / V;  // a head's
  const bool is_long = aligned && !p.rows.wide_columns && lanes > 4 &&
                       p.rows.num_edges >= kLongRow * p.rows.num_rows;
  const bool plain = p.scoring.edge_bias == nullptr && p.scoring.streams == nullptr;
  const bool short_plain = plain && !p.rows.wide_columns;
  const bool narrow = lanes <= 8 && lanes * p.scoring.heads <= 16;
  if (launch.load || (is_long && plain)) {
    JAXGNN_TRY((launch_long<T, kPass, true>(p, table, launch)));
  }
  if (launch.load || (is_long && !plain)) {
    JAXGNN_TRY((launch_long<T, kPass, false>(p, table, launch)));
  }
  if (launch.load || (!is_long && aligned && narrow)) {
    JAXGNN_TRY((launch_any<T, kPass, V, 8>(p, short_plain, launch)));
  }
  if (launch.load || (!is_long && aligned && !narrow)) {
    JAXGNN_TRY((launch_any<T, kPass, V, 32>(p, short_plain, launch)));
  }
  if (launch.load || !aligned) JAXGNN_TRY((launch_any<T, kPass, 1, 32>(p, short_plain, launch)));
  if constexpr (kPass != Pass::kReceivers) {
    if (launch.load || p.rows.num_chunks > 0) {
      JAXGNN_TRY(launch_kernel(launch, join_sums<T, kPass, A>, p.rows.num_chunks, 128, 0, p));
    }
  }
  if constexpr (kPass != Pass::kForward) {
    const int64_t threads = (p.rows.num_chunks + p.rows.num_rows) * p.scoring.heads;
    return launch_kernel(launch, finish_dots<A>, blocks_of(threads, 128), 128, 0, p.rows, p.dots,
                         scores, p.scoring.heads, p.slices_per_head);
  }
  return cudaSuccess;
}

}  // namespace jaxgnn::attention
