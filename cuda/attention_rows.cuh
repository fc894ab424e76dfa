// Sums of gathered rows, weighted by an attention that is computed on the way: the walks of the
// forward pass and of both gradients.
//
// Two mappings, as for spmm.cu:
//   long rows: a warp a row and 128 bytes of one head, a slice that stays in the L2 cache while
//     every edge reads it. The edges come in tiles of 32, of which each lane weighs one; then the
//     four groups of eight lanes read the rows of every fourth edge, whose column and weights they
//     get by shuffles. Columns are loaded two tiles ahead, scores one: else a tile would wait for
//     three loads, one after the other.
//   other rows: 8 or 32 lanes a row, each of which weighs all edges for its own head. That repeats
//     work, but needs no tile to be full, and heads may be narrower than a slice.
// docs/performance.md has the measurements behind these choices.
#pragma once

#include "attention.cuh"
#include "dispatch.cuh"

namespace jaxgnn {

constexpr int kRowThreads = 64;

template <typename T>
struct RowParams {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Scoring<A> scoring;
  End<A> near;     // the rows' numbers
  End<A> far;      // the columns' numbers,
  const A* table;  // and the same by heads, [heads, columns] or with kSenders [heads, columns, 4]
  const T* x;      // [columns, width], what is gathered
  const T* own;    // [rows, width], what the sums' dot products are with
  T* out;          // [rows, width], or null
  A* partials;     // [parts, partials_stride], what goes to out, and behind it a number a head
  A* dots;         // [rows + parts, heads * slices_per_head]
  int64_t partials_stride;
  int64_t width;
  int head_width;
  unsigned row_bytes;  // from a row of x to the next
  // How the features are cut: a slice has several heads, or a head has several slices.
  int lanes_per_head;  // in a slice
  int heads_per_slice;
  int slices_per_head;
};

// A lane's features.
struct Place {
  int head;
  int slice;  // of the head
  int local;  // place among the lanes of the head
  int feature;
  bool active;
};

template <int V, int kLanes, typename P>
__device__ inline Place place_of(const P& p, int lane) {
  Place place;
  place.slice = blockIdx.y % p.slices_per_head;
  place.local = lane % p.lanes_per_head;
  const int at = (place.slice * kLanes + place.local) * V;
  place.head = blockIdx.y / p.slices_per_head * p.heads_per_slice + lane / p.lanes_per_head;
  place.active = lane / p.lanes_per_head < p.heads_per_slice && place.head < p.scoring.heads &&
                 at < p.head_width;
  if (!place.active) place.head = 0;
  place.feature = place.active ? place.head * p.head_width + at : 0;
  return place;
}

template <typename T, int V, typename A>
__device__ inline void add_scaled(A scale, const Pack<T, V>& row, A (&acc)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) acc[i] += scale * unpack(row, i);
}

// Where a row's, or a part's, dot product of a slice goes.
template <typename P>
__device__ inline auto* dot_place(const P& p, const Work& work, const Place& place) {
  const int64_t at = work.part >= 0 ? p.rows.num_rows + work.part : work.row;
  const int64_t stride = int64_t(p.scoring.heads) * p.slices_per_head;
  return p.dots + at * stride + place.head * p.slices_per_head + place.slice;
}

// The sum of the row, or of its part; with `norm` also that of its weights, to divide by.
template <typename T, Pass kPass, int V, typename A>
__device__ inline void store_sums(const RowParams<T>& p, const Work& work, const Place& place,
                                  A norm, A (&acc)[V]) {
  if (work.part >= 0) {
    A* partial = p.partials + work.part * p.partials_stride;
#pragma unroll
    for (int i = 0; i < V; ++i) partial[place.feature + i] = acc[i];
    if (kPass == Pass::kForward && place.slice == 0 && place.local == 0) {
      partial[p.width + place.head] = norm;
    }
    return;
  }
  if constexpr (kPass == Pass::kForward) {
    // The weights' sum is 1 but for the rounding of log_sum, which matters if scores are large.
    const A factor = norm == A(0) ? A(1) : A(1) / norm;
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] *= factor;
  }
  store_pack<T, V, A>(p.out + work.row * p.width + place.feature, acc);
}

// A row's walk over its tiles.
template <typename T, Pass kPass, bool kPlain>
struct Tiles {
  static constexpr int V = 16 / sizeof(T);
  static constexpr int kGroups = 4;
  static constexpr int kLanes = 32 / kGroups;
  static constexpr int kSums = kPass == Pass::kSenders ? 2 : 1;
  static constexpr int kInFlight = 4;
  using A = typename Accumulator<T>::type;

  const RowParams<T>& p;
  const T* x;              // at this lane's features
  const A* table;          // of the head
  const int32_t* columns;  // at the lane's edge of the first tile
  int64_t begin;           // place of the row's first edge
  int row, head;
  Gathered<A> near;
  A acc[kSums][V];
  A number;

  // The lane's edge in a tile: lane u of a group has the group's u-th one.
  __device__ static int slot() {
    return threadIdx.x % kLanes * kGroups + threadIdx.x % 32 / kLanes;
  }

  // The numbers of the column and edge at a place of the row.
  __device__ Gathered<A> gather(int column, int place, bool valid) const {
    Gathered<A> far{A(0), A(0), A(0), A(0), 0};
    if constexpr (kPass == Pass::kSenders) {
      constexpr int kPer = 16 / sizeof(A);
      const Pack<A, kPer> first = load_pack<A, kPer>(table + int64_t(column) * 4);
      far.score = unpack(first, 0);
      far.log_sum = unpack(first, 1);
      if constexpr (kPer == 4) {
        far.delta = unpack(first, 2);
      } else {
        far.delta = __ldg(table + int64_t(column) * 4 + 2);
      }
    } else {
      far.score = __ldg(table + column);
    }
    if (!kPlain && valid) {
      far.number = edge_number(p.scoring, begin + place);
      far.bias = edge_bias(p.scoring, far.number, head);
    }
    return far;
  }

  // Edges first .. first + kInFlight - 1 of each group: rows loaded, ahead() called, rows added. Of
  // a tile that is not whole only the edges below `left`.
  template <bool kWhole, typename F>
  __device__ void batch(int first, int current, const Terms<A>& terms, int left, const F& ahead) {
    Pack<T, V> packs[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const unsigned from = __shfl_sync(kFullWarp, current, first + u, kLanes);
      if constexpr (!kWhole) packs[u] = {};
      if (kWhole || (first + u) * kGroups + static_cast<int>(threadIdx.x % 32) / kLanes < left) {
        packs[u] = load_pack<T, V>(row_of(x, from, p.row_bytes));
      }
    }
    ahead();
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      add_scaled(__shfl_sync(kFullWarp, terms.weight, first + u, kLanes), packs[u], acc[0]);
      if constexpr (kSums == 2) {
        add_scaled(__shfl_sync(kFullWarp, terms.second, first + u, kLanes), packs[u], acc[1]);
      }
    }
  }

  __device__ void run(int left) {
    int column = slot() < left ? __ldg(columns) : 0;
    int next = slot() + 32 < left ? __ldg(columns + 32) : 0;
    Gathered<A> far = gather(column, slot(), slot() < left);
    for (int place = slot(); left > 0; left -= 32, place += 32) {
      Terms<A> terms = weigh<kPass, kPlain>(p.scoring, far, near, head);
      if (slot() >= left || (p.scoring.self_loops && column == row)) terms = {A(0), A(0), A(0)};
      number += terms.number;
      const int current = column;
      column = next;
      columns += 32;
      if (left >= 32) {
        next = slot() + 64 < left ? __ldg(columns + 32) : 0;
#pragma unroll
        for (int first = 0; first < kLanes; first += kInFlight) {
          batch<true>(first, current, terms, left, [&] {
            if (first == 0) far = gather(column, place + 32, slot() + 32 < left);
          });
        }
      } else {
#pragma unroll 1
        for (int first = 0; first * kGroups < left; first += kInFlight) {
          batch<false>(first, current, terms, left, [] {});
        }
      }
    }
  }

  // The self-loop: one lane's number, one group's row.
  __device__ void loop() {
    Gathered<A> far = gather(row, 0, false);
    far.bias = loop_bias(p.scoring, row, head);
    far.number = p.scoring.num_edges + row;
    const Terms<A> terms = weigh<kPass, false>(p.scoring, far, near, head);
    if (threadIdx.x % 32 == 0) number += terms.number;
    if (threadIdx.x % 32 >= kLanes) return;
    const Pack<T, V> pack = load_pack<T, V>(row_of(x, row, p.row_bytes));
    add_scaled(terms.weight, pack, acc[0]);
    if constexpr (kSums == 2) add_scaled(terms.second, pack, acc[1]);
  }
};

template <typename A>
__device__ inline A warp_sum(A v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullWarp, v, offset);
  return v;
}

template <typename T, Pass kPass, bool kPlain>
__global__ void __launch_bounds__(kRowThreads) long_rows(const RowParams<T> p) {
  using A = typename Accumulator<T>::type;
  using Walk = Tiles<T, kPass, kPlain>;
  constexpr int V = Walk::V;
  const int64_t worker = (int64_t(blockIdx.x) * kRowThreads + threadIdx.x) / 32;
  Work work = find_work(p.rows, worker);
  if (work.row < 0) return;
  const int lane = threadIdx.x % 32;
  const Place place = place_of<V, Walk::kLanes>(p, lane % Walk::kLanes);
  const int head = blockIdx.y / p.slices_per_head;  // also where the lane is beyond its features
  const int64_t table = int64_t(head) * p.scoring.num_columns;
  Walk walk{p,
            p.x + place.feature,
            p.table + (kPass == Pass::kSenders ? 4 * table : table),
            static_cast<const int32_t*>(p.rows.columns) + work.begin + Walk::slot(),
            work.begin,
            static_cast<int>(work.row),
            head,
            load_node<kPass>(p.near, work.row, head, true),
            {},
            A(0)};
  walk.run(work.count);
  asm volatile("" ::: "memory");  // computed anew, it takes no registers meanwhile
  work = find_work(p.rows, worker);
  if (has_loop(p.scoring, p.rows, work)) walk.loop();
  A number = walk.number;
  if constexpr (kPass == Pass::kForward) {
    number = warp_sum(number);
  } else {
    // The slice's dot product; the first of a head takes the sum of numbers off.
    if (kPass == Pass::kReceivers) number *= walk.near.delta;
    A dot = place.slice == 0 ? -number : A(0);
    if (place.active) {
      const Pack<T, V> own = load_pack<T, V>(p.own + work.row * p.width + place.feature);
#pragma unroll
      for (int i = 0; i < V; ++i) dot += unpack(own, i) * walk.acc[Walk::kSums - 1][i];
    }
    dot = warp_sum(dot);
    if (lane == 0) *dot_place(p, work, place) = dot;
  }
  if constexpr (kPass != Pass::kReceivers) {
#pragma unroll
    for (int offset = Walk::kLanes; offset < 32; offset *= 2) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        walk.acc[0][i] += __shfl_xor_sync(kFullWarp, walk.acc[0][i], offset);
      }
    }
    if (lane < Walk::kLanes && place.active) {
      store_sums<T, kPass, V>(p, work, place, number, walk.acc[0]);
    }
  }
}

template <typename T, Pass kPass, int V, int kLanes>
__global__ void __launch_bounds__(kRowThreads) any_rows(const RowParams<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr int kSums = kPass == Pass::kSenders ? 2 : 1;
  constexpr int kSteps = 4;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kRowThreads + threadIdx.x) / kLanes);
  const int lane = threadIdx.x % kLanes;
  const Place place = place_of<V, kLanes>(p, lane);
  const bool working = work.row >= 0 && place.active;  // others only take part in shuffles
  const Scoring<A>& scoring = p.scoring;
  Gathered<A> near{};
  A acc[kSums][V] = {};
  A number = A(0);
  if (working) {
    near = load_node<kPass>(p.near, work.row, place.head, true);
    const T* x = p.x + place.feature;
    const auto add = [&](const Gathered<A>& far, const Pack<T, V>& pack) {
      const Terms<A> terms = weigh<kPass, false>(scoring, far, near, place.head);
      number += terms.number;
      add_scaled(terms.weight, pack, acc[0]);
      if constexpr (kSums == 2) add_scaled(terms.second, pack, acc[1]);
    };
    for (int i = 0; i < work.count; i += kSteps) {
      int64_t column[kSteps];
      Gathered<A> far[kSteps];
      Pack<T, V> packs[kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        column[u] = i + u < work.count ? load_column(p.rows, work.begin + i + u) : -1;
        if (scoring.self_loops && column[u] == work.row) column[u] = -1;
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (column[u] < 0) continue;
        packs[u] = load_pack<T, V>(x + column[u] * p.width);
        far[u] = load_node<kPass>(p.far, column[u], place.head, false);
        far[u].number = edge_number(scoring, work.begin + i + u);
        far[u].bias = edge_bias(scoring, far[u].number, place.head);
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (column[u] >= 0) add(far[u], packs[u]);
      }
    }
    if (has_loop(scoring, p.rows, work)) {
      Gathered<A> far = load_node<kPass>(p.far, work.row, place.head, false);
      far.bias = loop_bias(scoring, work.row, place.head);
      far.number = scoring.num_edges + work.row;
      add(far, load_pack<T, V>(x + work.row * p.width));
    }
  }
  if constexpr (kPass != Pass::kForward) {
    A dot = A(0);
    if (working) {
      if (kPass == Pass::kReceivers) number *= near.delta;
      if (place.slice == 0 && place.local == 0) dot = -number;
      const Pack<T, V> own = load_pack<T, V>(p.own + work.row * p.width + place.feature);
#pragma unroll
      for (int i = 0; i < V; ++i) dot += unpack(own, i) * acc[kSums - 1][i];
    }
    // Over the lanes of a head, whose number need not be a power of two.
    for (int offset = 1; offset < p.lanes_per_head; offset *= 2) {
      const A other = __shfl_down_sync(kFullWarp, dot, offset, kLanes);
      if (place.local + offset < p.lanes_per_head) dot += other;
    }
    if (working && place.local == 0) *dot_place(p, work, place) = dot;
  }
  if constexpr (kPass != Pass::kReceivers) {
    if (working) store_sums<T, kPass, V>(p, work, place, number, acc[0]);
  }
}

// Joins the parts of each long row in their order; a block a part, of which the first of each row
// does the work. Forward, the sums are divided by those of the weights.
template <typename T, Pass kPass, typename A>
__global__ void join_sums(const RowParams<T> p) {
  const int64_t first = blockIdx.x;
  const int2 split = p.rows.splits[first];
  if (split.x < 0 || split.y != 0) return;
  const int64_t degree = load_offset(p.rows, split.x + 1) - load_offset(p.rows, split.x);
  const int64_t parts = (degree + p.rows.split_length - 1) / p.rows.split_length;
  const A* partials = p.partials + first * p.partials_stride;
  for (int64_t f = threadIdx.x; f < p.width; f += blockDim.x) {
    const int64_t norms = p.width + f / p.head_width;
    A sum = A(0), norm = A(0);
    for (int64_t k = 0; k < parts; ++k) {
      sum += partials[k * p.partials_stride + f];
      if (kPass == Pass::kForward) norm += partials[k * p.partials_stride + norms];
    }
    if (kPass == Pass::kForward && norm != A(0)) sum /= norm;
    p.out[split.x * p.width + f] = narrow<T, A>(sum);
  }
}

// The columns' numbers by heads, so that those of neighbouring columns share a sector.
template <typename A, Pass kPass>
__global__ void fill_table(End<A> far, A* table, int64_t num_columns, int heads) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= num_columns * heads) return;
  const int64_t node = i / heads, head = i % heads;
  const Gathered<A> from = load_node<kPass>(far, node, static_cast<int>(head), false);
  A* to = table + head * num_columns + node;
  if constexpr (kPass == Pass::kSenders) {
    to = table + 4 * (head * num_columns + node);
    to[1] = from.log_sum;
    to[2] = from.delta;
    to[3] = A(0);
  }
  *to = from.score;
}

// The sum of a row's dot products of one head, over its slices and its parts in their order. A
// thread a row and head, or a first part and head.
template <typename A>
__global__ void finish_dots(const Rows rows, const A* dots, A* out, int heads, int slices) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t head = i % heads;
  int64_t row = i / heads - rows.num_splits, first = row, parts = 1;
  if (row < 0) {
    const int2 split = rows.splits[i / heads];
    if (split.x < 0 || split.y != 0) return;
    row = split.x;
    first = rows.num_rows + i / heads;
  }
  if (row >= rows.num_rows) return;
  const int64_t degree = load_offset(rows, row + 1) - load_offset(rows, row);
  if (first >= rows.num_rows) {
    parts = (degree + rows.split_length - 1) / rows.split_length;
  } else if (degree > rows.split_length) {
    return;
  }
  A sum = A(0);
  for (int64_t part = first; part < first + parts; ++part) {
    const A* own = dots + (part * heads + head) * slices;
    for (int slice = 0; slice < slices; ++slice) sum += own[slice];
  }
  out[row * heads + head] = sum;
}

inline unsigned blocks_of(int64_t threads, int64_t per_block) {
  return static_cast<unsigned>((threads + per_block - 1) / per_block);
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

// Launches a kernel of `lanes` lanes a row, or with `load` only loads it into the context.
template <typename T>
cudaError_t launch_walk(void (*kernel)(RowParams<T>), const RowParams<T>& p, int64_t slices,
                        int threads_per_row, bool load, cudaStream_t stream) {
  if (load) return load_kernel(kernel);
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  const dim3 grid(blocks_of(workers, kRowThreads / threads_per_row), static_cast<unsigned>(slices));
  void* arguments[] = {const_cast<RowParams<T>*>(&p)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(kRowThreads), arguments,
                          0, stream);
}

template <typename T, Pass kPass, int V, int kLanes>
cudaError_t launch_any(RowParams<T>& p, bool load, cudaStream_t stream) {
  const int needed = (p.head_width + V - 1) / V;
  p.heads_per_slice = needed > 0 && needed < kLanes ? kLanes / needed : 1;
  const int64_t slices = cut(p, kLanes, V);
  return launch_walk<T>(any_rows<T, kPass, V, kLanes>, p, slices, kLanes, load, stream);
}

template <typename T, Pass kPass, bool kPlain>
cudaError_t launch_long(RowParams<T>& p, typename Accumulator<T>::type* table, bool load,
                        cudaStream_t stream) {
  using A = typename Accumulator<T>::type;
  if (load) {
    JAXGNN_TRY((load_kernel(fill_table<A, kPass>)));
  } else {
    const int64_t entries = p.scoring.num_columns * p.scoring.heads;
    fill_table<A, kPass><<<blocks_of(entries, 256), 256, 0, stream>>>(
        p.far, table, p.scoring.num_columns, p.scoring.heads);
    JAXGNN_TRY(cudaGetLastError());
  }
  p.table = table;
  p.heads_per_slice = 1;
  const int64_t slices = cut(p, 8, 16 / static_cast<int>(sizeof(T)));
  return launch_walk<T>(long_rows<T, kPass, kPlain>, p, slices, 32, load, stream);
}

// Mean row length from which the lanes of a warp find enough edges to weigh.
constexpr int64_t kLongRow = 32;

// The walk, and where `scores` is not null the rows' sums of dot products. `table` has room for the
// columns' numbers.
template <typename T, Pass kPass>
cudaError_t walk_rows(RowParams<T> p, typename Accumulator<T>::type* table,
                      typename Accumulator<T>::type* scores, bool load, cudaStream_t stream) {
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
  const bool narrow = lanes <= 8 && lanes * p.scoring.heads <= 16;
  if (load || (is_long && plain)) {
    JAXGNN_TRY((launch_long<T, kPass, true>(p, table, load, stream)));
  }
  if (load || (is_long && !plain)) {
    JAXGNN_TRY((launch_long<T, kPass, false>(p, table, load, stream)));
  }
  if (load || (!is_long && aligned && narrow)) {
    JAXGNN_TRY((launch_any<T, kPass, V, 8>(p, load, stream)));
  }
  if (load || (!is_long && aligned && !narrow)) {
    JAXGNN_TRY((launch_any<T, kPass, V, 32>(p, load, stream)));
  }
  if (load || !aligned) JAXGNN_TRY((launch_any<T, kPass, 1, 32>(p, load, stream)));
  if constexpr (kPass != Pass::kReceivers) {
    if (load) JAXGNN_TRY((load_kernel(join_sums<T, kPass, A>)));
    if (!load && p.rows.num_splits > 0) {
      join_sums<T, kPass, A><<<static_cast<unsigned>(p.rows.num_splits), 128, 0, stream>>>(p);
      JAXGNN_TRY(cudaGetLastError());
    }
  }
  if constexpr (kPass != Pass::kForward) {
    if (load) return load_kernel(finish_dots<A>);
    const int64_t threads = (p.rows.num_splits + p.rows.num_rows) * p.scoring.heads;
    finish_dots<A><<<blocks_of(threads, 128), 128, 0, stream>>>(p.rows, p.dots, scores,
                                                                p.scoring.heads, p.slices_per_head);
    return cudaGetLastError();
  }
  return cudaSuccess;
}

}  // namespace jaxgnn
