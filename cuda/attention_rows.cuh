// Sums of gathered rows, weighted by an attention that is computed on the way: the walks of the
// forward pass and of both gradients.
//
// Two mappings, as for spmm.cu:
//   long rows: a warp a row and 128 bytes of one head, a slice that stays in the L2 cache while
//     every edge reads it. The edges come in tiles of 32, of which each lane weighs one; then the
//     four groups of eight lanes read the rows of every fourth edge, whose column and weights they
//     get by shuffles. Columns are loaded two tiles ahead, scores one: else a tile would wait for
//     three loads, one after the other. Where edges may be left out, those that are not wait in
//     shared memory until there are 32.
//   other rows: 8 or 32 lanes a row, each of which weighs all edges for its own head. That repeats
//     work, but needs no tile to be full, and heads may be narrower than a slice.
// docs/performance.md has the measurements behind these choices.
#pragma once

#include <type_traits>

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
  A* log_sum;      // [rows, heads], forward
  A* partials;     // [parts, partials_stride]: sums, and forward a reference and a total a head
  A* dots;         // [rows + parts, heads * slices_per_head]
  int* sides;      // [rows, heads], with kReceivers: 1 where the edges of slope 1 are the fewer
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

// Slices are the grid's y axis, and where there are too many of them z as well.
__device__ inline int slice_number() { return blockIdx.z * gridDim.y + blockIdx.y; }

template <int V, int kLanes, typename P>
__device__ inline Place place_of(const P& p, int lane) {
  Place place;
  const int slice = slice_number();
  place.slice = slice % p.slices_per_head;
  place.local = lane % p.lanes_per_head;
  const int at = (place.slice * kLanes + place.local) * V;
  place.head = slice / p.slices_per_head * p.heads_per_slice + lane / p.lanes_per_head;
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

// The sums of the row, or of its part.
template <typename T, Pass kPass, int V, typename A>
__device__ inline void store_sums(const RowParams<T>& p, const Work& work, const Place& place,
                                  const Softmax<A>& softmax, A (&acc)[V]) {
  const bool first = kPass == Pass::kForward && place.slice == 0 && place.local == 0;
  const int heads = p.scoring.heads;
  if (work.part >= 0) {
    A* partial = p.partials + work.part * p.partials_stride;
#pragma unroll
    for (int i = 0; i < V; ++i) partial[place.feature + i] = acc[i];
    if (first) {
      partial[p.width + place.head] = softmax.largest;
      partial[p.width + heads + place.head] = softmax.total;
    }
    return;
  }
  if constexpr (kPass == Pass::kForward) {
    const A scale = softmax.scale();
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] *= scale;
    if (first) p.log_sum[work.row * heads + place.head] = softmax.log_sum();
  }
  store_pack<T, V, A>(p.out + work.row * p.width + place.feature, acc);
}

// Whether only the row's edges of slope 1 are summed, or only the others; and what the difference
// is multiplied by.
template <typename P>
__device__ inline bool takes_positive(const P& p, int64_t row, int head) {
  return p.sides[row * p.scoring.heads + head] != 0;
}
template <typename A>
__device__ inline A side_factor(const Scoring<A>& s, bool positive) {
  return positive ? A(1) - s.slope : s.slope - A(1);
}

template <typename A>
__device__ inline A warp_sum(A v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullWarp, v, offset);
  return v;
}

template <typename A>
__device__ inline A warp_max(A v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(kFullWarp, v, offset);
    if (other > v || v != v) v = other;
  }
  return v;
}

// Edges whose rows are to be read, of several tiles: up to 31 that wait, and a tile's.
template <typename A, int kSums>
struct Queue {
  int column[64];
  A weights[kSums][64];
};
struct NoQueue {};

// A row's walk over its tiles.
template <typename T, Pass kPass, bool kPlain>
struct Tiles {
  static constexpr int V = 16 / sizeof(T);
  static constexpr int kGroups = 4;
  static constexpr int kLanes = 32 / kGroups;
  static constexpr int kSums = kPass == Pass::kSenders ? 2 : 1;
  static constexpr int kInFlight = 4;
  // Where edges may be left out (one side's, or those that dropout drops) the others are queued
  // until there is a tile of them.
  static constexpr bool kQueued = kPass == Pass::kReceivers || !kPlain;
  using A = typename Accumulator<T>::type;
  using Waiting = std::conditional_t<kQueued, Queue<A, kSums>, NoQueue>;
  // Weights may be so large before the sums are scaled down: e^8 times the largest.
  static constexpr A kSlack = A(8);

  const RowParams<T>& p;
  const T* x;              // at this lane's features
  const A* table;          // of the head
  const int32_t* columns;  // at the lane's edge of the first tile
  int64_t place;           // of the lane's edge of the current tile, among all edges
  int row, head;
  bool positive;  // see takes_positive
  Gathered<A> near;
  Waiting* queue;  // the warp's
  int queued;
  A acc[kSums][V];
  Softmax<A> softmax;  // its total: the lane's sum of numbers, in every pass

  __device__ static int lane() { return threadIdx.x % 32; }
  // The lane's edge in a tile: lane u of a group has the group's u-th one.
  __device__ static int slot() { return lane() % kLanes * kGroups + lane() / kLanes; }

  // The numbers of the column and of the lane's edge in the current tile or the next one.
  __device__ Gathered<A> gather(int column, int ahead, bool valid) const {
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
      far.number = edge_number(p.scoring, place + ahead);
      far.bias = edge_bias(p.scoring, far.number, head);
    }
    return far;
  }

  // What the lane's edge contributes: nothing if it is not `valid`, as those on the wrong side of
  // the bend are not.
  template <bool kBiased>
  __device__ Terms<A> terms_of(const Gathered<A>& far, bool& valid) {
    Score<A> score = score_of<!kBiased>(p.scoring, far, near.score);
    if constexpr (kPass == Pass::kForward) {
      if (!valid) score.score = A(-INFINITY);
      if (__any_sync(kFullWarp, !(score.score <= softmax.largest + kSlack))) {
        const A factor = softmax.raise(warp_max(score.score));
#pragma unroll
        for (int i = 0; i < V; ++i) acc[0][i] *= factor;
        if constexpr (kQueued) {
          if (lane() < queued) queue->weights[0][lane()] *= factor;
          __syncwarp();
        }
      }
    }
    if (kPass == Pass::kReceivers && score.positive() != positive) valid = false;
    const A base = kPass == Pass::kForward   ? softmax.base()
                   : kPass == Pass::kSenders ? far.log_sum
                                             : near.log_sum;
    const Terms<A> terms = weigh<kPass, kPlain>(p.scoring, score, base, far, head);
    return valid ? terms : Terms<A>{A(0), A(0), A(0)};
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
      if (kWhole || (first + u) * kGroups + lane() / kLanes < left) {
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

  __device__ void part_of_tile(int current, const Terms<A>& terms, int left) {
#pragma unroll 1
    for (int first = 0; first * kGroups < left; first += kInFlight) {
      batch<false>(first, current, terms, left, [] {});
    }
  }

  // The lane's edge of the first ones in the queue.
  __device__ int from_queue(int at, Terms<A>& terms) const {
    terms.weight = queue->weights[0][at];
    if constexpr (kSums == 2) terms.second = queue->weights[1][at];
    return queue->column[at];
  }
  __device__ void to_queue(int at, int column, const Terms<A>& terms) {
    queue->column[at] = column;
    queue->weights[0][at] = terms.weight;
    if constexpr (kSums == 2) queue->weights[1][at] = terms.second;
  }

  // Queues the lanes' edges that are wanted, and adds a tile's when they are so many.
  __device__ void enqueue(int column, const Terms<A>& terms, bool wanted) {
    const unsigned lanes = __ballot_sync(kFullWarp, wanted);
    if (wanted) to_queue(queued + __popc(lanes & ((1u << lane()) - 1)), column, terms);
    queued += __popc(lanes);
    __syncwarp();
    if (queued < 32) return;
    queued -= 32;
    Terms<A> now, rest;
    const int current = from_queue(slot(), now);
    const int later = lane() < queued ? from_queue(32 + lane(), rest) : 0;
    __syncwarp();
    if (lane() < queued) to_queue(lane(), later, rest);
#pragma unroll
    for (int first = 0; first < kLanes; first += kInFlight) {
      batch<true>(first, current, now, 32, [] {});
    }
    __syncwarp();
  }

  __device__ void run(int left) {
    int column = slot() < left ? __ldg(columns) : 0;
    int next = slot() + 32 < left ? __ldg(columns + 32) : 0;
    Gathered<A> far = gather(column, 0, slot() < left);
    for (; left > 0; left -= 32, place += 32) {
      bool valid = slot() < left && !(p.scoring.self_loops && column == row);
      const Terms<A> terms = terms_of<!kPlain>(far, valid);
      softmax.total += terms.number;
      const int current = column;
      column = next;
      columns += 32;
      next = slot() + 64 < left ? __ldg(columns + 32) : 0;
      if constexpr (kQueued) {
        far = gather(column, 32, slot() + 32 < left);
        // A weight of 0 that dropout made: its row is not read.
        const bool dropped = terms.weight == A(0) && terms.number != A(0);
        enqueue(current, terms, valid && !dropped);
      } else if (left >= 32) {
#pragma unroll
        for (int first = 0; first < kLanes; first += kInFlight) {
          batch<true>(first, current, terms, left, [&] {
            if (first == 0) far = gather(column, 32, slot() + 32 < left);
          });
        }
      } else {
        part_of_tile(current, terms, left);
      }
    }
    if constexpr (kQueued) {
      if (queued > 0) {
        Terms<A> terms{A(0), A(0), A(0)};
        const int current = slot() < queued ? from_queue(slot(), terms) : 0;
        part_of_tile(current, terms, queued);
      }
    }
  }

  // The self-loop: one lane's number, one group's row.
  __device__ void loop() {
    Gathered<A> far = gather(row, 0, false);
    far.bias = loop_bias(p.scoring, row, head);
    far.number = p.scoring.num_edges + row;
    bool valid = true;
    const Terms<A> terms = terms_of<true>(far, valid);
    if (lane() == 0) softmax.total += terms.number;
    if (lane() >= kLanes || !valid) return;
    const Pack<T, V> pack = load_pack<T, V>(row_of(x, row, p.row_bytes));
    add_scaled(terms.weight, pack, acc[0]);
    if constexpr (kSums == 2) add_scaled(terms.second, pack, acc[1]);
  }
};

template <typename T, Pass kPass, bool kPlain>
__global__ void __launch_bounds__(kRowThreads) long_rows(const RowParams<T> p) {
  using A = typename Accumulator<T>::type;
  using Walk = Tiles<T, kPass, kPlain>;
  constexpr int V = Walk::V;
  const int64_t worker = (int64_t(blockIdx.x) * kRowThreads + threadIdx.x) / 32;
  Work work = find_work(p.rows, worker);
  if (work.row < 0) return;
  int lane = threadIdx.x % 32;
  Place place = place_of<V, Walk::kLanes>(p, lane % Walk::kLanes);
  const int head = slice_number() / p.slices_per_head;  // also where the lane has no features
  if (head >= p.scoring.heads) return;
  const int64_t table = int64_t(head) * p.scoring.num_columns;
  __shared__ typename Walk::Waiting waiting[kRowThreads / 32];
  Walk walk{p,
            p.x + place.feature,
            p.table + (kPass == Pass::kSenders ? 4 * table : table),
            static_cast<const int32_t*>(p.rows.columns) + work.begin + Walk::slot(),
            work.begin + Walk::slot(),
            static_cast<int>(work.row),
            head,
            kPass != Pass::kReceivers || takes_positive(p, work.row, head),
            load_node<kPass>(p.near, work.row, head, true),
            waiting + threadIdx.x / 32,
            0,
            {},
            {}};
  walk.run(work.count);
  // Computed anew, these take no registers meanwhile.
  asm volatile("" ::: "memory");
  work = find_work(p.rows, worker);
  if constexpr (kPass == Pass::kSenders) {
    asm volatile("" : "+r"(lane));
    place = place_of<V, Walk::kLanes>(p, lane % Walk::kLanes);
  }
  if (has_loop(p.scoring, p.rows, work)) walk.loop();
  if constexpr (kPass == Pass::kForward) {
    walk.softmax.total = warp_sum(walk.softmax.total);
  } else {
    // The slice's dot product; the first of a head takes the sum of numbers off.
    A number = walk.softmax.total;
    if (kPass == Pass::kReceivers) number *= walk.near.delta;
    A dot = place.slice == 0 ? -number : A(0);
    if (place.active) {
      const Pack<T, V> own = load_pack<T, V>(p.own + work.row * p.width + place.feature);
#pragma unroll
      for (int i = 0; i < V; ++i) dot += unpack(own, i) * walk.acc[Walk::kSums - 1][i];
    }
    dot = warp_sum(dot);
    if (kPass == Pass::kReceivers) dot *= side_factor(p.scoring, walk.positive);
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
      store_sums<T, kPass, V>(p, work, place, walk.softmax, walk.acc[0]);
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
  Softmax<A> softmax;  // its total: the sum of numbers, in every pass
  if (working) {
    near = load_node<kPass>(p.near, work.row, place.head, true);
    const T* x = p.x + place.feature;
    const auto raise = [&](A score) {
      const A factor = softmax.raise(score);
#pragma unroll
      for (int i = 0; i < V; ++i) acc[0][i] *= factor;
    };
    const auto add = [&](const Gathered<A>& far, const Score<A>& score, const Pack<T, V>& pack) {
      if (kPass == Pass::kReceivers && !score.positive()) return;
      const A base = kPass == Pass::kForward   ? softmax.base()
                     : kPass == Pass::kSenders ? far.log_sum
                                               : near.log_sum;
      const Terms<A> terms = weigh<kPass, false>(scoring, score, base, far, place.head);
      softmax.total += terms.number;
      add_scaled(terms.weight, pack, acc[0]);
      if constexpr (kSums == 2) add_scaled(terms.second, pack, acc[1]);
    };
    for (int i = 0; i < work.count; i += kSteps) {
      int64_t column[kSteps];
      Gathered<A> far[kSteps];
      Score<A> score[kSteps];
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
      A most = A(-INFINITY);
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (column[u] < 0) continue;
        score[u] = score_of<false>(scoring, far[u], near.score);
        if (score[u].score > most) most = score[u].score;
      }
      if (kPass == Pass::kForward && most > softmax.largest) raise(most);
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (column[u] >= 0) add(far[u], score[u], packs[u]);
      }
    }
    if (has_loop(scoring, p.rows, work)) {
      Gathered<A> far = load_node<kPass>(p.far, work.row, place.head, false);
      far.bias = loop_bias(scoring, work.row, place.head);
      far.number = scoring.num_edges + work.row;
      const Score<A> score = score_of<false>(scoring, far, near.score);
      if (kPass == Pass::kForward && score.score > softmax.largest) raise(score.score);
      add(far, score, load_pack<T, V>(x + work.row * p.width));
    }
  }
  if constexpr (kPass != Pass::kForward) {
    A dot = A(0);
    if (working) {
      A number = softmax.total;
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
    if (kPass == Pass::kReceivers) dot *= side_factor(scoring, true);
    if (working && place.local == 0) *dot_place(p, work, place) = dot;
  }
  if constexpr (kPass != Pass::kReceivers) {
    if (working) store_sums<T, kPass, V>(p, work, place, softmax, acc[0]);
  }
}

// Joins the parts of each long row in their order; a block a part, of which the first of each row
// does the work. Forward, each part's sums are relative to a reference of its own.
template <typename T, Pass kPass, typename A>
__global__ void join_sums(const RowParams<T> p) {
  const int64_t first = blockIdx.x;
  const int2 split = p.rows.splits[first];
  if (split.x < 0 || split.y != 0) return;
  const int64_t degree = load_offset(p.rows, split.x + 1) - load_offset(p.rows, split.x);
  const int64_t parts = (degree + p.rows.split_length - 1) / p.rows.split_length;
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
      if (f == head * p.head_width) p.log_sum[int64_t(split.x) * heads + head] = all.log_sum();
    }
    p.out[split.x * p.width + f] = narrow<T, A>(sum);
  }
}

// Which side of the LeakyReLU's bend has fewer edges, judged by 64 of a row: any answer is right.
// A warp a row; parts of a row go by its first one.
template <typename A>
__global__ void choose_sides(const Rows rows, End<A> near, End<A> far, int* sides, int heads) {
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
    const A own = near.score[row * near.stride + head];
    int positive = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const bool above = column[u] >= 0 && far.score[column[u] * far.stride + head] + own > A(0);
      positive += __popc(__ballot_sync(kFullWarp, above));
    }
    if (lane == 0) sides[row * heads + head] = 2 * positive <= samples;
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
  constexpr int64_t kMost = 32768;
  const dim3 grid(blocks_of(workers, kRowThreads / threads_per_row),
                  static_cast<unsigned>(slices < kMost ? slices : kMost), blocks_of(slices, kMost));
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
  if constexpr (kPass == Pass::kReceivers) {
    if (load) {
      JAXGNN_TRY((load_kernel(choose_sides<A>)));
    } else {
      choose_sides<A><<<blocks_of(p.rows.num_rows * 32, 128), 128, 0, stream>>>(
          p.rows, p.near, p.far, p.sides, p.scoring.heads);
      JAXGNN_TRY(cudaGetLastError());
    }
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
