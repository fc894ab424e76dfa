// Other rows: 8 or 32 lanes a row, each of which computes the weights of all edges for its own
// head. This repeats work, but needs no full tiles, and heads may be narrower than a slice.
#pragma once

#include <type_traits>

#include "cuda/attention/walk_rows.cuh"

namespace jaxgnn::attention {

template <typename T, Pass kPass, int V, int kLanes, bool kPlain>
__global__ void __launch_bounds__(kRowThreads) any_rows(const RowParams<T> p) {
  using A = typename Accumulator<T>::type;
  using Index = std::conditional_t<kPlain, int, int64_t>;  // plain: columns are of 32 bits
  constexpr int kSums = kPass == Pass::kSenders ? 2 : 1;
  constexpr int kSteps = 4;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kRowThreads + threadIdx.x) / kLanes);
  const int lane = threadIdx.x % kLanes;
  const Place place = place_of<V, kLanes>(p, lane);
  const bool working = work.row >= 0 && place.active;  // others only take part in shuffles
  const Scoring<A>& scoring = p.scoring;
  Gathered<A> at_row{};
  A acc[kSums][V] = {};
  Softmax<A> softmax;  // its total: the sum of numbers, in every pass
  if (working) {
    at_row = load_node<kPass>(p.at_row, work.row, place.head, true);
    const T* x = p.x + place.feature;
    const auto features = [&](Index column) {
      if constexpr (kPlain) return load_vector<T, V>(row_of(x, column, p.row_bytes));
      return load_vector<T, V>(x + column * p.width);
    };
    const auto raise = [&](A score) {
      const A factor = softmax.raise(score);
#pragma unroll
      for (int i = 0; i < V; ++i) acc[0][i] *= factor;
    };
    const auto add = [&](const Gathered<A>& at_column, const Score<A>& score,
                         const Vector<T, V>& vector) {
      if (kPass == Pass::kReceivers && !score.positive()) return;
      const A base = kPass == Pass::kForward   ? softmax.base()
                     : kPass == Pass::kSenders ? at_column.log_sum
                                               : at_row.log_sum;
      const Terms<A> terms = weigh<kPass, kPlain>(scoring, score, base, at_column, place.head);
      softmax.total += terms.number;
      add_scaled(terms.weight, vector, acc[0]);
      if constexpr (kSums == 2) add_scaled(terms.second, vector, acc[1]);
    };
    // The columns of the next edges are loaded behind the rows of these.
    Index next[kSteps];
    const auto load_next = [&](int first) {
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        next[u] = -1;
        if (first + u >= work.count) continue;
        if constexpr (kPlain) {
          next[u] = __ldg(static_cast<const int32_t*>(p.rows.columns) + work.begin + first + u);
        } else {
          next[u] = load_column(p.rows, work.begin + first + u);
        }
      }
    };
    load_next(0);
    for (int i = 0; i < work.count; i += kSteps) {
      bool valid[kSteps];
      Gathered<A> at_column[kSteps];
      Score<A> score[kSteps];
      Vector<T, V> vectors[kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        valid[u] = next[u] >= 0 && !(scoring.self_loops && next[u] == work.row);
        if (!valid[u]) continue;
        vectors[u] = features(next[u]);
        at_column[u] = load_node<kPass>(p.at_column, next[u], place.head, false);
        if constexpr (!kPlain) {
          at_column[u].number = edge_number(scoring, work.begin + i + u);
          at_column[u].bias = edge_bias(scoring, at_column[u].number, place.head);
        }
      }
      load_next(i + kSteps);
      A most = A(-INFINITY);
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (!valid[u]) continue;
        score[u] = score_of<kPlain>(scoring, at_column[u], at_row.score);
        if (score[u].score > most) most = score[u].score;
      }
      if (kPass == Pass::kForward && most > softmax.largest) raise(most);
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (valid[u]) add(at_column[u], score[u], vectors[u]);
      }
    }
    if (has_loop(scoring, p.rows, work)) {
      Gathered<A> at_column = load_node<kPass>(p.at_column, work.row, place.head, false);
      at_column.bias = loop_bias(scoring, work.row, place.head);
      at_column.number = scoring.num_edges + work.row;
      const Score<A> score = score_of<false>(scoring, at_column, at_row.score);
      if (kPass == Pass::kForward && score.score > softmax.largest) raise(score.score);
      add(at_column, score, load_vector<T, V>(x + work.row * p.width));
    }
  }
  if constexpr (kPass != Pass::kForward) {
    A dot = A(0);
    if (working) {
      A number = softmax.total;
      if (kPass == Pass::kReceivers) number *= at_row.delta;
      if (place.slice == 0 && place.local == 0) dot = -number;
      const Vector<T, V> own = load_vector<T, V>(p.own + work.row * p.width + place.feature);
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

}  // namespace jaxgnn::attention
