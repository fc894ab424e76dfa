// The walks over the rows of an attention whose scores need both feature rows of an edge, for a
// policy `Score`: its terms are symmetric in the two rows, so that one walk serves either end.
//
// A walk processes one head, several narrow ones, or a piece of a very wide one. For 32 edges at a
// time it computes the scores, then the vectorized weights, then adds the rows, which are in the
// cache by then.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <type_traits>

#include "cpu/attention/softmax.h"
#include "cpu/core/dot.h"

namespace jaxgnn::attention {
namespace {

// Rows that one thread adds up.
constexpr int64_t kRowsTogether = 256;

// Features whose sums are held at a time.
constexpr int64_t kFeatures = 1024;

// Heads that are processed together have no more features.
constexpr int64_t kFeaturesTogether = 64;

// Some features of one head: those of a row are [first, last), and their sums begin at 0.
struct Stretch {
  int64_t first, last;
  int64_t size() const { return last - first; }
};

// Piece `piece` of a head's features; the last pieces of the narrower of two widths are empty.
JAXGNN_INLINE Stretch piece_of(int64_t width, int64_t piece) {
  return {min_of(piece * kFeatures, width), min_of((piece + 1) * kFeatures, width)};
}

// Calls body(Constant<lanes>, Constant<vectors>, feature) for all features: four vectors, so that
// additions overlap, then one vector, then narrower ones.
template <int N, class Body>
JAXGNN_INLINE void over_features(int64_t f, int64_t end, const Body& body) {
  for (; f + 4 * N <= end; f += 4 * N) body(Constant<N>{}, Constant<4>{}, f);
  for (; f + N <= end; f += N) body(Constant<N>{}, Constant<1>{}, f);
  if constexpr (N > 1) {
    if (f < end) over_features<N / 2>(f, end, body);
  }
}

// sums[f] = factor sums[f] + sum_c weights[c step] x[c's column, first + f].
template <class T>
JAXGNN_INLINE void add_weighted(const Chunk& chunk, const Accumulator<T>* weights, int64_t step,
                                const T* x, int64_t stride, const Stretch& range,
                                Accumulator<T> factor, Accumulator<T>* sums) {
  over_features<kLanes<T>>(range.first, range.last, [&](auto lanes, auto vectors, int64_t f) {
    constexpr int N = decltype(lanes)::value, K = decltype(vectors)::value;
    Vector<Accumulator<T>, N> acc[K];
    Accumulator<T>* to = sums + f - range.first;
    JAXGNN_UNROLL
    for (int k = 0; k < K; ++k) acc[k] = load<N>(to + k * N) * factor;
    for (int c = 0; c < chunk.count; ++c) {
      const T* from = x + chunk.columns[c] * stride + f;
      JAXGNN_UNROLL
      for (int k = 0; k < K; ++k) acc[k] += weights[c * step] * load<N>(from + k * N);
    }
    JAXGNN_UNROLL
    for (int k = 0; k < K; ++k) store<N>(to + k * N, acc[k]);
  });
}

// What a walk reads, from its first head on: the rows it walks (`at_row`) and those at the edges'
// other end (`at_column`).
template <class T>
struct Ends {
  using A = Accumulator<T>;
  const T* at_row;        // [rows, heads, F]
  const T* at_column;     // [columns, heads, F]
  const T* row_value;     // [rows, heads, G], or null
  const T* column_value;  // [columns, heads, G]
  const A* vector;        // [F], or null
  const A* key_scale;     // [senders, heads], or null
  bool by_senders;        // whether the rows are the senders
  int64_t heads;          // of a row
  int64_t F, G;           // features of a head
  A score_parameter;
};

template <class T>
Ends<T> ends_of(const PairArgs& args, bool by_senders, const void* cotangent, int64_t head) {
  const int64_t heads = args.attention.heads, F = args.head_width;
  const int64_t G = args.attention.width / heads;
  using A = Accumulator<T>;
  const T* queries = static_cast<const T*>(args.queries) + head * F;
  const T* keys = static_cast<const T*>(args.keys) + head * F;
  const T* values = static_cast<const T*>(args.attention.values) + head * G;
  const T* gradient = cotangent == nullptr ? nullptr : static_cast<const T*>(cotangent) + head * G;
  const A* vector =
      args.vector == nullptr ? nullptr : static_cast<const A*>(args.vector) + head * F;
  const A* scale = static_cast<const A*>(args.key_scale);
  const A score_parameter = static_cast<A>(args.score_parameter);
  if (by_senders) {
    return {keys, queries, values, gradient, vector, scale, true, heads, F, G, score_parameter};
  }
  return {queries, keys, gradient, values, vector, scale, false, heads, F, G, score_parameter};
}

template <class Score, int N, class A>
JAXGNN_INLINE Vector<A, N> load_vector(const A* vector, int64_t f) {
  if constexpr (Score::kVector) {
    return load<N>(vector + f);
  } else {
    return Vector<A, N>{};
  }
}

// Multiplies by the scales of the edges' keys.
template <class T>
JAXGNN_INLINE void scale_keys(const Ends<T>& ends, const Chunk& chunk, int64_t row,
                              const Heads<Accumulator<T>>& heads, Accumulator<T>* values) {
  if (ends.key_scale == nullptr) return;
  for (int c = 0; c < chunk.count; ++c) {
    const int64_t sender = ends.by_senders ? row : chunk.columns[c];
    const Accumulator<T>* scales = ends.key_scale + sender * ends.heads + heads.first;
    for (int64_t h = 0; h < heads.count; ++h) values[c * heads.stride + h] *= scales[h];
  }
}

// The scores of a chunk, and -inf where there is no edge or head.
template <class Score, class T>
JAXGNN_INLINE void pair_scores(const AttentionArgs& args, const Ends<T>& ends, const Chunk& chunk,
                               int64_t row, const Heads<Accumulator<T>>& heads,
                               Accumulator<T>* scores) {
  using A = Accumulator<T>;
  const T* at_row = ends.at_row + row * ends.heads * ends.F;
  for (int c = 0; c < chunk.count; ++c) {
    const T* at_column = ends.at_column + chunk.columns[c] * ends.heads * ends.F;
    A* to = scores + c * heads.stride;
    for (int64_t h = 0; h < heads.count; ++h) {
      const int64_t first = h * ends.F;
      const A sum = sum_terms<A, kLanes<T>>(first, first + ends.F, [&](auto lanes, int64_t f) {
        constexpr int N = decltype(lanes)::value;
        return Score::term(load<N>(at_row + f), load<N>(at_column + f),
                           load_vector<Score, N, A>(ends.vector, f), ends.score_parameter);
      });
      to[h] = Score::score(sum, ends.score_parameter);
    }
    for (int64_t h = heads.count; h < heads.stride; ++h) to[h] = -kInfinity<A>;
  }
  if constexpr (Score::kScalesKeys) scale_keys(ends, chunk, row, heads, scores);
  if (args.edge_bias != nullptr || args.loop_bias != nullptr) {
    add_biases(args, chunk, heads, scores);
  }
  const int64_t end = heads.padded(chunk.count);
  for (int64_t i = chunk.count * heads.stride; i < end; ++i) scores[i] = -kInfinity<A>;
}

// Prefetches the rows of the chunk's columns: the first touch of a row is what takes time.
template <class T>
JAXGNN_INLINE void prefetch_rows(const Chunk& chunk, const T* x, int64_t stride, int64_t width) {
  const int64_t bytes = min_of(width * static_cast<int64_t>(sizeof(T)), 1024);
  for (int c = 0; c < chunk.count; ++c) {
    const char* row = reinterpret_cast<const char*>(x + chunk.columns[c] * stride);
    for (int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(row + offset);
  }
}

// Calls body(row, begin, end) for the rows of a work item.
template <class Body>
JAXGNN_INLINE void over_work(const Rows& csr, const Work& work, const Body& body) {
  if (work.part >= 0) return body(work.first, work.begin, work.end);
  const int64_t longest = longest_whole_row(csr);
  for (int64_t row = work.first; row < work.last; ++row) {
    const int64_t begin = row_begin(csr, row), end = row_begin(csr, row + 1);
    if (end - begin <= longest) body(row, begin, end);
  }
}

template <class Score, class T>
void forward_rows(const PairForwardArgs& args, const Heads<Accumulator<T>>& heads, int64_t piece,
                  const Work& work) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.pair.attention;
  const Ends<T> ends = ends_of<T>(args.pair, false, nullptr, heads.first);
  const int64_t width = attention.width, all = attention.heads;
  const Stretch range = piece_of(ends.G, piece);
  const int64_t features = heads.count * range.size();
  A sums[kFeatures], weights[kChunk * kMaxHeads], factors[kMaxHeads];
  Softmax<A> softmax;
  over_work(attention.rows, work, [&](int64_t row, int64_t begin, int64_t end) {
    softmax.clear(heads);
    for (int64_t f = 0; f < features; ++f) sums[f] = 0;
    auto add = [&](const Chunk& chunk) {
      prefetch_rows(chunk, ends.at_column, all * ends.F, heads.count * ends.F);
      pair_scores<Score>(attention, ends, chunk, row, heads, weights);
      add_scores(heads, chunk.count, A{1}, softmax, weights, factors);
      drop(attention, chunk, heads, weights);
      for (int64_t h = 0; h < heads.count; ++h) {
        add_weighted(chunk, weights + h, heads.stride, ends.column_value + h * ends.G, width, range,
                     factors[h], sums + h * ends.G);
      }
    };
    over_chunks(attention, row, begin, end, add, Ignore{});
    add_lanes(heads, softmax.total);
    const int64_t feature = heads.first * ends.G + range.first;
    if (work.part >= 0) {
      A* partial = static_cast<A*>(args.partials) + work.part * (width + 2 * all);
      for (int64_t f = 0; f < features; ++f) partial[feature + f] = sums[f];
      if (piece > 0) return;
      for (int64_t h = 0; h < heads.count; ++h) {
        partial[width + heads.first + h] = softmax.largest[h];
        partial[width + all + heads.first + h] = softmax.total[h];
      }
      return;
    }
    for (int64_t h = 0; h < heads.count; ++h) {
      const A divisor = softmax[h].divisor();
      A* own = sums + h * ends.G;
      for (int64_t f = 0; f < range.size(); ++f) own[f] /= divisor;
    }
    store_row(static_cast<T*>(args.out) + row * width + feature, sums, features);
    if (piece > 0) return;
    A* log_sums = static_cast<A*>(args.log_sum) + 2 * (row * all + heads.first);
    for (int64_t h = 0; h < heads.count; ++h) softmax[h].store_log_sum(log_sums + 2 * h);
  });
}

// firsts[f] += sum_c ds[c] derivative, and of a vector seconds[f] += sum_c ds[c] activation, for
// head h of the walk.
template <class Score, bool kSenders, class T>
JAXGNN_INLINE void add_derivatives(const Ends<T>& ends, const Chunk& chunk, int64_t row, int64_t h,
                                   const Accumulator<T>* ds, int64_t step, const Stretch& range,
                                   Accumulator<T>* firsts, Accumulator<T>* seconds) {
  using A = Accumulator<T>;
  const T* at_row = ends.at_row + row * ends.heads * ends.F + h * ends.F;
  over_features<kLanes<T>>(range.first, range.last, [&](auto lanes, auto vectors, int64_t f) {
    constexpr int N = decltype(lanes)::value, K = decltype(vectors)::value;
    using V = Vector<A, N>;
    V own[K], acc[K], more[K];
    const int64_t at = f - range.first;
    JAXGNN_UNROLL
    for (int k = 0; k < K; ++k) {
      own[k] = load<N>(at_row + f + k * N);
      acc[k] = load<N>(firsts + at + k * N);
      if constexpr (Score::kVector && !kSenders) more[k] = load<N>(seconds + at + k * N);
    }
    for (int c = 0; c < chunk.count; ++c) {
      const T* at_column = ends.at_column + (chunk.columns[c] * ends.heads + h) * ends.F + f;
      JAXGNN_UNROLL
      for (int k = 0; k < K; ++k) {
        const V other = load<N>(at_column + k * N);
        acc[k] += ds[c * step] * Score::derivative(own[k], other, ends.score_parameter);
        if constexpr (Score::kVector && !kSenders) {
          more[k] += ds[c * step] * Score::activation(own[k], other, ends.score_parameter);
        }
      }
    }
    JAXGNN_UNROLL
    for (int k = 0; k < K; ++k) {
      store<N>(firsts + at + k * N, acc[k]);
      if constexpr (Score::kVector && !kSenders) store<N>(seconds + at + k * N, more[k]);
    }
  });
}

// With w the weight after dropout, p = <dy, v> and ds = w p - alpha delta: the sums of ds times the
// score's derivative; by senders also those of w dy.
template <class Score, bool kSenders, class T>
void gradient_rows(const PairGradientArgs& args, const Heads<Accumulator<T>>& heads, int64_t piece,
                   const Work& work) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<A>;
  constexpr bool kHasSecond = kSenders ? !Score::kSharedRows : Score::kVector;
  const AttentionArgs& attention = args.pair.attention;
  const Ends<T> ends = ends_of<T>(args.pair, kSenders, args.cotangent, heads.first);
  const int64_t width = attention.width, all = attention.heads;
  const int64_t score_width = all * ends.F;
  const A* node_terms = static_cast<const A*>(args.node_terms);
  const Stretch range = piece_of(ends.F, piece);
  const Stretch seconds_range = kSenders ? piece_of(ends.G, piece) : range;
  const int64_t second_width = kSenders ? width : score_width;
  const int64_t F = range.size(), G = seconds_range.size(), count = heads.count;
  A* edge_gradient = piece == 0 ? static_cast<A*>(args.edge_gradient) : nullptr;
  A* loop_gradient = piece == 0 ? static_cast<A*>(args.loop_gradient) : nullptr;
  const bool for_edges = edge_gradient != nullptr || loop_gradient != nullptr;
  constexpr int64_t kSize = kChunk * kMaxHeads;
  A firsts[kFeatures], seconds[kFeatures];
  A weights[kSize], kept[kSize], log_sums[kSize], deltas[kSize], dots[kSize], ds[kSize];
  over_work(attention.rows, work, [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t f = 0; f < count * F; ++f) firsts[f] = 0;
    for (int64_t f = 0; f < count * G; ++f) seconds[f] = 0;
    const T* own_value = ends.row_value + row * width;
    auto add = [&](const Chunk& chunk) {
      prefetch_rows(chunk, ends.at_column, score_width, count * ends.F);
      pair_scores<Score>(attention, ends, chunk, row, heads, weights);
      // Those of the receivers: by receivers, the same for each edge.
      const A* terms = kSenders ? node_terms : node_terms + row * 2 * all;
      const int64_t terms_width = kSenders ? 2 * all : 0;
      gather(chunk, heads, terms, terms_width, A{0}, log_sums);
      gather(chunk, heads, terms + all, terms_width, A{0}, deltas);
      const int64_t size = heads.padded(chunk.count);
      for (int64_t i = 0; i < size; i += N) {
        const auto alpha = exponential<A, N>(load<N>(weights + i) - load<N>(log_sums + i));
        store<N>(weights + i, alpha);
        store<N>(kept + i, Vector<A, N>{} + A{1});
        store<N>(dots + i, Vector<A, N>{});
      }
      for (int c = 0; c < chunk.count; ++c) {
        const T* value = ends.column_value + chunk.columns[c] * width;
        for (int64_t h = 0; h < count; ++h) {
          dots[c * heads.stride + h] =
              sum_terms<A, kLanes<T>>(h * ends.G, (h + 1) * ends.G, [&](auto lanes, int64_t f) {
                constexpr int kCount = decltype(lanes)::value;
                return load<kCount>(own_value + f) * load<kCount>(value + f);
              });
        }
      }
      drop(attention, chunk, heads, kept);
      for (int64_t i = 0; i < size; i += N) {
        const auto alpha = load<N>(weights + i), keep = load<N>(kept + i);
        store<N>(ds + i, alpha * (keep * load<N>(dots + i) - load<N>(deltas + i)));
        store<N>(weights + i, alpha * keep);
      }
      for (int c = 0; for_edges && c < chunk.count; ++c) {
        A* gradient = c < chunk.loops ? loop_gradient : edge_gradient;
        if (gradient == nullptr) continue;
        A* to = gradient + chunk.edges[c] * all + heads.first;
        for (int64_t h = 0; h < count; ++h) to[h] = ds[c * heads.stride + h];
      }
      if constexpr (Score::kScalesKeys && !kSenders) scale_keys(ends, chunk, row, heads, ds);
      for (int64_t h = 0; h < count; ++h) {
        add_derivatives<Score, kSenders>(ends, chunk, row, h, ds + h, heads.stride, range,
                                         firsts + h * F, seconds + h * F);
        if constexpr (kSenders) {
          add_weighted(chunk, weights + h, heads.stride, ends.column_value + h * ends.G, width,
                       seconds_range, A{1}, seconds + h * G);
        }
      }
    };
    auto pass = [&](int64_t edge) {
      if (edge_gradient == nullptr) return;
      for (int64_t h = 0; h < count; ++h) edge_gradient[edge * all + heads.first + h] = 0;
    };
    if (loop_gradient != nullptr && begin == row_begin(attention.rows, row)) {
      for (int64_t h = 0; h < count; ++h) loop_gradient[row * all + heads.first + h] = 0;
    }
    over_chunks(attention, row, begin, end, add, pass);
    for (int64_t f = 0; f < count * F; ++f) {
      const Vector<A, 1> vector = load_vector<Score, 1, A>(ends.vector, range.first + f);
      firsts[f] *= Score::factor(vector, ends.score_parameter)[0];
      if constexpr (kSenders && Score::kSharedRows) firsts[f] += seconds[f];
    }
    A* partials = static_cast<A*>(args.partials);
    const int64_t feature = heads.first * ends.F + range.first;
    const int64_t second = heads.first * (kSenders ? ends.G : ends.F) + seconds_range.first;
    if (work.part >= 0) {
      store_row(partials + work.part * score_width + feature, firsts, count * F);
    } else {
      store_row(static_cast<T*>(args.first) + row * score_width + feature, firsts, count * F);
    }
    if constexpr (kHasSecond) {
      using S = std::conditional_t<kSenders, T, A>;
      if (work.part >= 0) {
        A* more = partials + attention.rows.num_chunks * score_width;
        store_row(more + work.part * second_width + second, seconds, count * G);
      } else {
        store_row(static_cast<S*>(args.second) + row * second_width + second, seconds, count * G);
      }
    }
  });
}

// Calls body(heads, piece, work) for all rows and parts, of some heads at a time or of each piece
// of a head.
template <class T, class Body>
void over_heads(const PairArgs& args, const Executor& executor, int64_t widest, const Body& body) {
  const AttentionArgs& attention = args.attention;
  const int64_t heads = attention.heads;
  const int64_t pieces = max_of((widest + kFeatures - 1) / kFeatures, 1);
  int64_t together = max_of(kFeaturesTogether / max_of(widest, 1), 1);
  if (together > kHeadsPerBlock) together -= together % kHeadsPerBlock;
  const int64_t groups = (heads + together - 1) / together;
  const int64_t bytes = (args.head_width + attention.width / heads) *
                        static_cast<int64_t>(sizeof(T)) * min_of(together, heads);
  over_rows(attention.rows, executor, groups * pieces, bytes, [&](int64_t slice, const Work& work) {
    const int64_t first = slice / pieces * together;
    const Heads<Accumulator<T>> some(first, min_of(together, heads - first));
    body(some, slice % pieces, work);
  });
}

// Combines the chunks of each long row in order.
template <class S, class A>
void join_parts(const Rows& csr, const Executor& executor, A* partials, int64_t width, S* out) {
  over_chunked_rows(csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = partials + first * width;
    for (int64_t part = first + 1; part < last; ++part) {
      for (int64_t f = 0; f < width; ++f) sums[f] += partials[part * width + f];
    }
    store_row(out + row * width, sums, width);
  });
}

// Adds all rows up in the first, whatever the number of threads in the same order, and clears the
// others: their sum, in any order, is the first row.
template <class A>
void collect_rows(const Executor& executor, int64_t rows, int64_t width, A* x) {
  for (int64_t step = 1; step < rows; step *= kRowsTogether) {
    const int64_t block = step * kRowsTogether;
    parallel_for(executor, (rows + block - 1) / block, [&](int64_t item) {
      A* sums = x + item * block * width;
      const int64_t last = min_of((item + 1) * block, rows);
      for (int64_t row = item * block + step; row < last; row += step) {
        A* from = x + row * width;
        for (int64_t f = 0; f < width; ++f) sums[f] += from[f];
        for (int64_t f = 0; f < width; ++f) from[f] = 0;
      }
    });
  }
}

inline bool is_empty(const PairArgs& args) {
  return args.attention.rows.num_rows == 0 || args.attention.width == 0 || args.head_width == 0;
}

template <class Score>
void pair_attention(const PairForwardArgs& args, const Executor& executor) {
  const AttentionArgs& attention = args.pair.attention;
  if (is_empty(args.pair)) return;
  with_type(attention.type, [&](auto type) {
    using T = decltype(type);
    over_heads<T>(args.pair, executor, attention.width / attention.heads,
                  [&](const auto& heads, int64_t piece, const Work& work) {
                    forward_rows<Score, T>(args, heads, piece, work);
                  });
    AttentionForwardArgs joined{attention, nullptr, args.out, args.log_sum, args.partials, nullptr};
    over_chunked_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
      join<T>(joined, row, first, last);
    });
  });
}

template <class Score, bool kSenders, class T>
void gradients_at(const PairGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.pair.attention;
  const int64_t width = attention.width, score_width = attention.heads * args.pair.head_width;
  over_heads<T>(args.pair, executor, max_of(width, score_width) / attention.heads,
                [&](const auto& heads, int64_t piece, const Work& work) {
                  gradient_rows<Score, kSenders, T>(args, heads, piece, work);
                });
  A* partials = static_cast<A*>(args.partials);
  join_parts(attention.rows, executor, partials, score_width, static_cast<T*>(args.first));
  partials += attention.rows.num_chunks * score_width;
  if constexpr (kSenders && !Score::kSharedRows) {
    join_parts(attention.rows, executor, partials, width, static_cast<T*>(args.second));
  }
  if constexpr (!kSenders && Score::kVector) {
    A* shares = static_cast<A*>(args.second);
    join_parts(attention.rows, executor, partials, score_width, shares);
    collect_rows(executor, attention.rows.num_rows, score_width, shares);
  }
}

template <class Score>
void pair_attention_gradients(const PairGradientArgs& args, const Executor& executor) {
  if (is_empty(args.pair)) return;
  with_type(args.pair.attention.type, [&](auto type) {
    using T = decltype(type);
    if (args.by_senders) {
      gradients_at<Score, true, T>(args, executor);
    } else {
      gradients_at<Score, false, T>(args, executor);
    }
  });
}

}  // namespace
}  // namespace jaxgnn::attention
