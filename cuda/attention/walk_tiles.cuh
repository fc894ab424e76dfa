// Long rows: a warp a row and 128 bytes of one head, a slice that stays in the L2 cache while every
// edge reads it. The edges are processed in tiles of 32: each lane computes the weight of one edge;
// then each of the four groups of eight lanes reads the rows of every fourth edge, whose column and
// weights it gets by shuffles. Columns are loaded two tiles ahead and scores one tile ahead, else a
// tile would wait for three dependent loads. Where edges may be skipped, the remaining ones are
// queued in shared memory until there are 32.
#pragma once

#include <type_traits>

#include "cuda/attention/walk_rows.cuh"

namespace jaxgnn::attention {

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
  Gathered<A> at_row;
  Waiting* queue;  // the warp's
  int queued;
  A acc[kSums][V];
  Softmax<A> softmax;  // its total: the lane's sum of numbers, in every pass

  __device__ static int lane() { return threadIdx.x % 32; }
  // The lane's edge in a tile: lane u of a group has the group's u-th one.
  __device__ static int slot() { return lane() % kLanes * kGroups + lane() / kLanes; }

  // The terms of the column and of the lane's edge in the current tile or the next one.
  __device__ Gathered<A> gather(int column, int ahead, bool valid) const {
    Gathered<A> at_column{A(0), A(0), A(0), A(0), 0};
    if constexpr (kPass == Pass::kSenders) {
      constexpr int kPer = 16 / sizeof(A);
      const Vector<A, kPer> first = load_vector<A, kPer>(table + int64_t(column) * 4);
      at_column.score = unpack(first, 0);
      at_column.log_sum = unpack(first, 1);
      if constexpr (kPer == 4) {
        at_column.delta = unpack(first, 2);
      } else {
        at_column.delta = __ldg(table + int64_t(column) * 4 + 2);
      }
    } else {
      at_column.score = __ldg(table + column);
    }
    if (!kPlain && valid) {
      at_column.number = edge_number(p.scoring, place + ahead);
      at_column.bias = edge_bias(p.scoring, at_column.number, head);
    }
    return at_column;
  }

  // The contribution of the lane's edge: 0 unless `valid`. Edges on the wrong side of the kink are
  // not valid.
  template <bool kBiased>
  __device__ Terms<A> terms_of(const Gathered<A>& at_column, bool& valid) {
    Score<A> score = score_of<!kBiased>(p.scoring, at_column, at_row.score);
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
                   : kPass == Pass::kSenders ? at_column.log_sum
                                             : at_row.log_sum;
    const Terms<A> terms = weigh<kPass, kPlain>(p.scoring, score, base, at_column, head);
    return valid ? terms : Terms<A>{A(0), A(0), A(0)};
  }

  // Edges first .. first + kInFlight - 1 of each group: rows loaded, ahead() called, rows added. Of
  // a tile that is not whole only the edges below `left`.
  template <bool kWhole, typename F>
  __device__ void batch(int first, int current, const Terms<A>& terms, int left, const F& ahead) {
    Vector<T, V> vectors[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const unsigned from = __shfl_sync(kFullWarp, current, first + u, kLanes);
      if constexpr (!kWhole) vectors[u] = {};
      if (kWhole || (first + u) * kGroups + lane() / kLanes < left) {
        vectors[u] = load_vector<T, V>(row_of(x, from, p.row_bytes));
      }
    }
    ahead();
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      add_scaled(__shfl_sync(kFullWarp, terms.weight, first + u, kLanes), vectors[u], acc[0]);
      if constexpr (kSums == 2) {
        add_scaled(__shfl_sync(kFullWarp, terms.second, first + u, kLanes), vectors[u], acc[1]);
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

  // Queues the lanes' selected edges, and processes a tile once the queue holds one.
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
    Gathered<A> at_column = gather(column, 0, slot() < left);
    for (; left > 0; left -= 32, place += 32) {
      bool valid = slot() < left && !(p.scoring.self_loops && column == row);
      const Terms<A> terms = terms_of<!kPlain>(at_column, valid);
      softmax.total += terms.number;
      const int current = column;
      column = next;
      columns += 32;
      next = slot() + 64 < left ? __ldg(columns + 32) : 0;
      if constexpr (kQueued) {
        at_column = gather(column, 32, slot() + 32 < left);
        // A weight of 0 that dropout made: its row is not read.
        const bool dropped = terms.weight == A(0) && terms.number != A(0);
        enqueue(current, terms, valid && !dropped);
      } else if (left >= 32) {
#pragma unroll
        for (int first = 0; first < kLanes; first += kInFlight) {
          batch<true>(first, current, terms, left, [&] {
            if (first == 0) at_column = gather(column, 32, slot() + 32 < left);
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
    Gathered<A> at_column = gather(row, 0, false);
    at_column.bias = loop_bias(p.scoring, row, head);
    at_column.number = p.scoring.num_edges + row;
    bool valid = true;
    const Terms<A> terms = terms_of<true>(at_column, valid);
    if (lane() == 0) softmax.total += terms.number;
    if (lane() >= kLanes || !valid) return;
    const Vector<T, V> vector = load_vector<T, V>(row_of(x, row, p.row_bytes));
    add_scaled(terms.weight, vector, acc[0]);
    if constexpr (kSums == 2) add_scaled(terms.second, vector, acc[1]);
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
            load_node<kPass>(p.at_row, work.row, head, true),
            waiting + threadIdx.x / 32,
            0,
            {},
            {}};
  walk.run(work.count);
  // Recomputed to save registers.
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
    // The slice's dot product; the first slice of a head subtracts the sum of the terms.
    A number = walk.softmax.total;
    if (kPass == Pass::kReceivers) number *= walk.at_row.delta;
    A dot = place.slice == 0 ? -number : A(0);
    if (place.active) {
      const Vector<T, V> own = load_vector<T, V>(p.own + work.row * p.width + place.feature);
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

}  // namespace jaxgnn::attention
