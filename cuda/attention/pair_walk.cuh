// The walks over the rows of an attention whose scores need both feature rows of an edge, for a
// policy `Score`: its terms are symmetric in the two rows, so that one walk serves either end.
//
// A group of lanes processes a row (or a chunk of a long one) and a head, with one to four vectors
// of 16 bytes a lane; where heads are narrow, adjacent groups process adjacent heads of the row.
// The rows of several edges are loaded before the first is used, then the columns of the next
// edges. The groups of a warp run in lockstep, so that sums over a group are plain shuffles. Where
// rows are long, all groups of a warp share one row and combine their results at its end. Heads are
// the grid's slow axis: all rows of a head are gathered while its slice of the columns is in L2.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/walk.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::attention {

constexpr int kPairThreads = 64;

template <typename T>
struct PairParams {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Scoring<A> scoring;
  const T* at_row;        // [rows, heads, F], of the end whose rows these are
  const T* at_column;     // [columns, heads, F]
  const T* row_value;     // [rows, heads, G], of the gradients
  const T* column_value;  // [columns, heads, G]
  const A* vector;        // [heads, F], or null
  const A* key_scale;     // [senders, heads], or null
  const A* row_scale;     // [rows, heads], if Score::kScalesRows
  const A* node_terms;    // [receivers, 2, heads]: log_sum, delta
  T* out;                 // [rows, heads, G] forward, else [rows, heads, F]
  void* second;           // by senders T, by receivers A: what PairGradientArgs says
  A* log_sum;             // [rows, heads, 2], forward
  A* edge_gradient;
  A* loop_gradient;
  A* partials;  // forward [parts, width + 2 heads], else [parts, heads F]
  A* more;      // [parts, width of `second`]
  A score_parameter;
  int heads;
  int F, G;
  int lanes;  // of a head, a power of two
  int heads_per_worker;
  int groups;  // that share a row; above 1: all of a warp
  int pieces;  // of a head's features
};

// A lane's place: which of the features of which head.
struct PairPlace {
  int head;
  int lane;
  int group;
  int piece;
  bool active;
};

template <typename P>
__device__ inline PairPlace pair_place(const P& p, int64_t thread) {
  const int beside = p.lanes * p.heads_per_worker;
  const int in = static_cast<int>(thread % (beside * p.groups));
  const int tile = slice_number() / p.pieces;
  PairPlace place{tile * p.heads_per_worker + in % beside / p.lanes, in % p.lanes, in / beside,
                  slice_number() % p.pieces, true};
  place.active = place.head < p.heads;
  if (!place.active) place.head = 0;
  return place;
}

// The maximum number of blocks a multiprocessor: on sm_90 without register spills, except a few
// words in float32 with biases, or with four vectors a lane.
template <typename T, Pass kPass>
constexpr int kPairBlocks = kPass == Pass::kForward || sizeof(T) == 4 ? 8 : 6;

// kPlain: no biases, no dropout, and columns of 32 bits.
// kWhole: a lane's vectors are all of its head's features. Else they are a piece of them, of single
// values, and the scores come from memory: for unaligned rows and very wide heads, right but slow.
template <class Score, typename T, Pass kPass, int V, int P, bool kWhole, bool kPlain>
__global__ void __launch_bounds__(kPairThreads, kPairBlocks<T, kPass>)
    pair_rows(const PairParams<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr bool kForward = kPass == Pass::kForward, kSenders = kPass == Pass::kSenders;
  constexpr bool kReceivers = kPass == Pass::kReceivers;
  constexpr bool kOneColumn = Score::kSharedRows && !kSenders;  // values and keys are the same rows
  constexpr bool kOneRow = Score::kSharedRows && kSenders;
  // Edges whose rows are in flight at once: more if an edge has one row and registers are left.
  constexpr bool kLight = kOneColumn && kPlain && !Score::kVector && sizeof(T) == 4;
  constexpr int kSteps = kWhole && P < 4 ? (kLight ? 4 : 4 / P) : 1;

  const int64_t thread = int64_t(blockIdx.x) * kPairThreads + threadIdx.x;
  const PairPlace place = pair_place(p, thread);
  Work work = find_work(p.rows, thread / (p.lanes * p.heads_per_worker * p.groups));
  const bool working = work.row >= 0 && place.active;  // others only take part in shuffles
  if (!working) work.row = work.count = 0;
  const Scoring<A>& scoring = p.scoring;
  const int64_t stride = int64_t(p.heads) * p.F, value_stride = int64_t(p.heads) * p.G;
  const int64_t row = work.row;
  const T* at_column = p.at_column + int64_t(place.head) * p.F;
  const T* column_value = p.column_value + int64_t(place.head) * p.G;
  const T* own_features = p.at_row + row * stride + int64_t(place.head) * p.F;
  const T* row_value_features =
      kForward ? nullptr : p.row_value + row * value_stride + int64_t(place.head) * p.G;
  const A* vector_row = Score::kVector ? p.vector + int64_t(place.head) * p.F : nullptr;

  const auto feature = [&](int q) { return ((place.piece * P + q) * p.lanes + place.lane) * V; };
  const auto load_vectors = [&](const T* at, int width, Vector<T, V>(&vectors)[P]) {
#pragma unroll
    for (int q = 0; q < P; ++q) {
      // Beyond the head: any of its features, as what they are multiplied by is 0 there.
      const int f = feature(q);
      vectors[q] = load_vector<T, V>(at + (f < width ? f : 0));
    }
  };
  const auto load_own = [&](const T* at, int width, Vector<T, V>(&vectors)[P]) {
#pragma unroll
    for (int q = 0; q < P; ++q) {
      vectors[q].word = {};
      if (feature(q) < width) vectors[q] = load_vector<T, V>(at + feature(q));
    }
  };
  Vector<T, V> at_row[P], row_value[P];
  A vector[P][V] = {};
  load_own(own_features, p.F, at_row);
  if constexpr (!kForward && !kOneRow) load_own(row_value_features, p.G, row_value);
  if constexpr (Score::kVector) {
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (feature(q) < p.F) vector[q][i] = __ldg(vector_row + feature(q) + i);
      }
    }
  }
  const auto own_value = [&](int q, int i) {
    return kOneRow ? unpack(at_row[q], i) : unpack(row_value[q], i);
  };
  A log_sum = A(0), delta = A(0);  // by receivers: the row's
  if (kReceivers && working) {
    log_sum = __ldg(p.node_terms + row * 2 * p.heads + place.head);
    delta = __ldg(p.node_terms + row * 2 * p.heads + p.heads + place.head);
  }

  const auto key_scale_at = [&](int64_t sender) {
    const bool given = Score::kScalesKeys && p.key_scale != nullptr;
    return given ? __ldg(p.key_scale + sender * p.heads + place.head) : A(1);
  };
  A own_scale = A(1);
  if constexpr (kSenders) own_scale = key_scale_at(row);
  if constexpr (Score::kScalesRows) own_scale = __ldg(p.row_scale + row * p.heads + place.head);

  A first[P][V] = {}, sums[P][V] = {};
  Softmax<A> softmax;
  const bool loop = working && has_loop(scoring, p.rows, work);
  // An edge's column; after the last one the row itself, if it gets a self-loop. Beyond, columns
  // are repeated and count for nothing: that costs less than loads that depend on a condition.
  const auto column_at = [&](int i) {
    int column = 0;
    if (work.count > 0) {
      const int64_t at = work.begin + (i < work.count ? i : work.count - 1);
      column = kPlain ? __ldg(static_cast<const int32_t*>(p.rows.columns) + at)
                      : static_cast<int>(load_column(p.rows, at));
    }
    return loop && i >= work.count ? static_cast<int>(row) : column;
  };
  const auto number_at = [&](int i) -> int64_t {
    if (i < work.count) return edge_number(scoring, work.begin + i);
    return scoring.num_edges + row;
  };
  int next[kSteps];
#pragma unroll
  for (int u = 0; u < kSteps; ++u) next[u] = column_at(place.group * kSteps + u);
  const int length = work.count + (loop ? 1 : 0);
  const int steps = __reduce_max_sync(kFullWarp, length);
  const unsigned column_bytes = static_cast<unsigned>(stride * sizeof(T));
  const unsigned column_value_bytes = static_cast<unsigned>(value_stride * sizeof(T));
  for (int start = 0; start < steps; start += kSteps * p.groups) {
    const int i = start + place.group * kSteps;
    bool valid[kSteps];
    Vector<T, V> column_vectors[kSteps][P], value_vectors[kSteps][P];
    A score[kSteps], dot[kSteps], bias[kSteps], reference[kSteps], difference[kSteps];
    A scale[kSteps];  // of the keys
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const int column = next[u];
      const bool is_edge = i + u < work.count;
      valid[u] = i + u < length && !(is_edge && scoring.self_loops && column == row);
      const T* column_features = row_of(at_column, column, column_bytes);
      const T* column_value_features = row_of(column_value, column, column_value_bytes);
      load_vectors(column_features, p.F, column_vectors[u]);
      if constexpr (!kOneColumn) load_vectors(column_value_features, p.G, value_vectors[u]);
      scale[u] = kSenders ? own_scale : own_scale * key_scale_at(column);
      reference[u] = log_sum;
      difference[u] = delta;
      if constexpr (kSenders) {
        const A* of_node = p.node_terms + int64_t(column) * 2 * p.heads + place.head;
        reference[u] = __ldg(of_node);
        difference[u] = __ldg(of_node + p.heads);
      }
      bias[u] = A(0);
      if constexpr (!kPlain) {
        if (valid[u] && is_edge && scoring.edge_bias != nullptr) {
          bias[u] = edge_bias(scoring, number_at(i + u), place.head);
        } else if (valid[u] && !is_edge) {
          bias[u] = loop_bias(scoring, row, place.head);
        }
      }
      score[u] = dot[u] = A(0);
      if constexpr (!kWhole) {
        if (valid[u]) {
          for (int f = place.lane; f < p.F; f += p.lanes) {
            score[u] += Score::term(widen(own_features[f]), widen(column_features[f]),
                                    Score::kVector ? vector_row[f] : A(0), p.score_parameter);
          }
          if constexpr (!kForward) {
            for (int f = place.lane; f < p.G; f += p.lanes) {
              dot[u] += widen(row_value_features[f]) * widen(column_value_features[f]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) next[u] = column_at(i + kSteps * p.groups + u);
    const auto value = [&](int u, int q, int k) {
      return kOneColumn ? unpack(column_vectors[u][q], k) : unpack(value_vectors[u][q], k);
    };
    if constexpr (kWhole) {
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
#pragma unroll
        for (int q = 0; q < P; ++q) {
#pragma unroll
          for (int k = 0; k < V; ++k) {
            score[u] += Score::term(unpack(at_row[q], k), unpack(column_vectors[u][q], k),
                                    vector[q][k], p.score_parameter);
            if constexpr (!kForward) dot[u] += own_value(q, k) * value(u, q, k);
          }
        }
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      if (offset >= p.lanes) continue;
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        score[u] += __shfl_xor_sync(kFullWarp, score[u], offset);
        if constexpr (!kForward) dot[u] += __shfl_xor_sync(kFullWarp, dot[u], offset);
      }
    }
    A keep[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) keep[u] = A(1);
    if (!kPlain && scoring.streams != nullptr) {
      if (p.lanes >= kSteps) {  // a lane draws for one edge of these
        const int own = i + place.lane % kSteps;
        const bool there = own < work.count || (own == work.count && loop);
        const A drawn = there ? keep_factor(scoring, number_at(own), place.head) : A(0);
        const int base = threadIdx.x % 32 & ~(p.lanes - 1);
#pragma unroll
        for (int u = 0; u < kSteps; ++u) keep[u] = __shfl_sync(kFullWarp, drawn, base + u);
      } else {
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
          if (valid[u]) keep[u] = keep_factor(scoring, number_at(i + u), place.head);
        }
      }
    }
    A most = A(-INFINITY);
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      score[u] =
          valid[u] ? Score::score(score[u], p.score_parameter) * scale[u] + bias[u] : A(-INFINITY);
      if (score[u] > most) most = score[u];
    }
    if constexpr (kForward) {
      if (most > softmax.largest) {
        const A factor = softmax.raise(most);
#pragma unroll
        for (int q = 0; q < P; ++q) {
#pragma unroll
          for (int k = 0; k < V; ++k) sums[q][k] *= factor;
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const A alpha = exponential(score[u] - (kForward ? softmax.base() : reference[u]));
      const A weight = alpha * keep[u];
      if constexpr (kForward) softmax.total += alpha;
      const A ds = valid[u] ? weight * dot[u] - alpha * difference[u] : A(0);
      const A pull = kReceivers && Score::kScalesKeys ? ds * scale[u] : ds;
      if (kReceivers && !kPlain && working && place.lane == 0 && place.piece == 0) {
        if (i + u < work.count) {
          A* to = p.edge_gradient;
          if (to != nullptr) to[(work.begin + i + u) * p.heads + place.head] = ds;
        } else if (i + u == work.count && loop && p.loop_gradient != nullptr) {
          p.loop_gradient[row * p.heads + place.head] = ds;
        }
      }
#pragma unroll
      for (int q = 0; q < P; ++q) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const A own = unpack(at_row[q], k), other = unpack(column_vectors[u][q], k);
          if constexpr (!kReceivers) sums[q][k] += weight * value(u, q, k);
          if constexpr (!kForward)
            first[q][k] += pull * Score::derivative(own, other, p.score_parameter);
          if constexpr (kReceivers && Score::kVector) {
            sums[q][k] += ds * Score::activation(own, other, p.score_parameter);
          }
        }
      }
    }
  }
  // The groups of a row join what they have.
  for (int offset = p.lanes * p.heads_per_worker; p.groups > 1 && offset < 32; offset *= 2) {
    A factor = A(1);
    if constexpr (kForward) {
      factor = softmax.raise(__shfl_xor_sync(kFullWarp, softmax.largest, offset));
      softmax.total += __shfl_xor_sync(kFullWarp, softmax.total, offset);
    }
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if constexpr (kForward) sums[q][k] *= factor;
        if constexpr (!kReceivers || Score::kVector) {
          sums[q][k] += __shfl_xor_sync(kFullWarp, sums[q][k], offset);
        }
        if constexpr (!kForward) first[q][k] += __shfl_xor_sync(kFullWarp, first[q][k], offset);
      }
    }
  }
  if (!working || place.group > 0) return;
  if (length == 0) {  // what was repeated for the others of the warp need not have been finite
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int k = 0; k < V; ++k) first[q][k] = sums[q][k] = A(0);
    }
  }

  const bool leads = place.lane == 0 && place.piece == 0;
  if (kReceivers && p.loop_gradient != nullptr && leads && row >= scoring.num_columns &&
      work.begin == load_offset(p.rows, row)) {
    p.loop_gradient[row * p.heads + place.head] = A(0);
  }
  // A vector goes to the part's place, or to the row's.
  const auto store = [&](T* rows, A* parts, int64_t width, int64_t at, const A(&values)[V]) {
    if (work.part < 0) return store_vector<T, V, A>(rows + row * width + at, values);
#pragma unroll
    for (int k = 0; k < V; ++k) parts[work.part * width + at + k] = values[k];
  };
#pragma unroll
  for (int q = 0; q < P; ++q) {
    const int f = feature(q);
    const int64_t at = int64_t(place.head) * p.F + f, value_at = int64_t(place.head) * p.G + f;
    if constexpr (kForward) {
      if (f >= p.G) continue;
      if (work.part < 0) {
        const A scale = softmax.scale();
#pragma unroll
        for (int k = 0; k < V; ++k) sums[q][k] *= scale;
        store_vector<T, V, A>(p.out + row * value_stride + value_at, sums[q]);
      } else {
        A* partial = p.partials + work.part * (value_stride + 2 * p.heads) + value_at;
#pragma unroll
        for (int k = 0; k < V; ++k) partial[k] = sums[q][k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        first[q][k] *= Score::factor(vector[q][k], p.score_parameter);
        if constexpr (kOneRow) first[q][k] += sums[q][k];
      }
      if (f < p.F) store(p.out, p.partials, stride, at, first[q]);
      if constexpr (kSenders && !Score::kSharedRows) {
        if (f < p.G) store(static_cast<T*>(p.second), p.more, value_stride, value_at, sums[q]);
      }
      if constexpr (kReceivers && Score::kVector) {
        A* to =
            work.part < 0 ? static_cast<A*>(p.second) + row * stride : p.more + work.part * stride;
        if (f < p.F) {
#pragma unroll
          for (int k = 0; k < V; ++k) to[at + k] = sums[q][k];
        }
      }
    }
  }
  if (kForward && leads) {
    if (work.part >= 0) {
      A* numbers = p.partials + work.part * (value_stride + 2 * p.heads) + value_stride;
      numbers[place.head] = softmax.largest;
      numbers[p.heads + place.head] = softmax.total;
    } else {
      softmax.store_log_sum(p.log_sum + 2 * (row * p.heads + place.head));
    }
  }
}

}  // namespace jaxgnn::attention
