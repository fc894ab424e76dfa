// The walks over the rows of an attention whose scores need both feature rows of an edge, for a
// policy `Score`: its terms are symmetric in the two rows, so that one walk serves either end.
//
// A walk processes one head, and a piece of the features if the head is very wide. For 32 edges at
// a time it computes the scores, then the vectorized weights, then adds the rows, which are in the
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

// Features whose sums are held at a time.
constexpr int64_t kFeatures = 1024;

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

// sums[f] = factor sums[f] + sum_c weights[c] x[c's column, first + f].
template <class T>
JAXGNN_INLINE void add_weighted(const Chunk& chunk, const Accumulator<T>* weights, const T* x,
                                int64_t stride, const Stretch& range, Accumulator<T> factor,
                                Accumulator<T>* sums) {
  over_features<kLanes<T>>(range.first, range.last, [&](auto lanes, auto vectors, int64_t f) {
    constexpr int N = decltype(lanes)::value, K = decltype(vectors)::value;
    Vector<Accumulator<T>, N> acc[K];
    Accumulator<T>* to = sums + f - range.first;
    JAXGNN_UNROLL
    for (int k = 0; k < K; ++k) acc[k] = load<N>(to + k * N) * factor;
    for (int c = 0; c < chunk.count; ++c) {
      const T* from = x + chunk.columns[c] * stride + f;
      JAXGNN_UNROLL
      for (int k = 0; k < K; ++k) acc[k] += weights[c] * load<N>(from + k * N);
    }
    JAXGNN_UNROLL
    for (int k = 0; k < K; ++k) store<N>(to + k * N, acc[k]);
  });
}

// What a walk of one head reads: the rows it walks (`at_row`) and those at the edges' other end
// (`at_column`).
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
  int64_t head, heads;
  int64_t F, G;
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
    return {keys, queries, values, gradient, vector, scale,
            true, head,    heads,  F,        G,      score_parameter};
  }
  return {queries, keys, gradient, values, vector, scale,
          false,   head, heads,    F,      G,      score_parameter};
}

template <class Score, int N, class A>
JAXGNN_INLINE Vector<A, N> load_vector(const A* vector, int64_t f) {
  if constexpr (Score::kVector) {
    return load<N>(vector + f);
  } else {
    return Vector<A, N>{};
  }
}

// values[c] times the scale of its edge's key.
template <class T>
JAXGNN_INLINE void scale_keys(const Ends<T>& ends, const Chunk& chunk, int64_t row,
                              Accumulator<T>* values) {
  if (ends.key_scale == nullptr) return;
  for (int c = 0; c < chunk.count; ++c) {
    const int64_t sender = ends.by_senders ? row : chunk.columns[c];
    values[c] *= ends.key_scale[sender * ends.heads + ends.head];
  }
}

// The scores of a chunk.
template <class Score, class T>
JAXGNN_INLINE void pair_scores(const AttentionArgs& args, const Ends<T>& ends, const Chunk& chunk,
                               int64_t row, Accumulator<T>* scores) {
  using A = Accumulator<T>;
  const T* at_row = ends.at_row + row * ends.heads * ends.F;
  for (int c = 0; c < chunk.count; ++c) {
    const T* at_column = ends.at_column + chunk.columns[c] * ends.heads * ends.F;
    const A sum = sum_terms<A, kLanes<T>>(0, ends.F, [&](auto lanes, int64_t f) {
      constexpr int N = decltype(lanes)::value;
      return Score::term(load<N>(at_row + f), load<N>(at_column + f),
                         load_vector<Score, N, A>(ends.vector, f), ends.score_parameter);
    });
    scores[c] = Score::score(sum, ends.score_parameter);
  }
  if constexpr (Score::kScalesKeys) scale_keys(ends, chunk, row, scores);
  add_biases(args, chunk, ends.head, scores);
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
void forward_rows(const PairForwardArgs& args, int64_t head, int64_t piece, const Work& work) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.pair.attention;
  const Ends<T> ends = ends_of<T>(args.pair, false, nullptr, head);
  const int64_t width = attention.width, heads = attention.heads;
  const Stretch range = piece_of(ends.G, piece);
  A sums[kFeatures], scores[kChunk];
  over_work(attention.rows, work, [&](int64_t row, int64_t begin, int64_t end) {
    Softmax<A> softmax;
    for (int64_t f = 0; f < range.size(); ++f) sums[f] = 0;
    auto add = [&](const Chunk& chunk) {
      prefetch_rows(chunk, ends.at_column, heads * ends.F, ends.F);
      pair_scores<Score>(attention, ends, chunk, row, scores);
      const A factor = add_scores(softmax, chunk.count, A{1}, scores);
      drop(attention, chunk, head, scores);
      add_weighted(chunk, scores, ends.column_value, width, range, factor, sums);
    };
    over_chunks(attention, row, begin, end, add, Ignore{});
    const int64_t feature = head * ends.G + range.first;
    if (work.part >= 0) {
      A* partial = static_cast<A*>(args.partials) + work.part * (width + 2 * heads);
      for (int64_t f = 0; f < range.size(); ++f) partial[feature + f] = sums[f];
      if (piece > 0) return;
      partial[width + head] = softmax.largest;
      partial[width + heads + head] = softmax.total;
      return;
    }
    const A divisor = softmax.divisor();
    for (int64_t f = 0; f < range.size(); ++f) sums[f] /= divisor;
    store_row(static_cast<T*>(args.out) + row * width + feature, sums, range.size());
    if (piece == 0) static_cast<A*>(args.log_sum)[row * heads + head] = softmax.log_sum();
  });
}

// firsts[f] += sum_c ds[c] derivative, and of a vector seconds[f] += sum_c ds[c] activation.
template <class Score, bool kSenders, class T>
JAXGNN_INLINE void add_derivatives(const Ends<T>& ends, const Chunk& chunk, int64_t row,
                                   const Accumulator<T>* ds, const Stretch& range,
                                   Accumulator<T>* firsts, Accumulator<T>* seconds) {
  using A = Accumulator<T>;
  const T* at_row = ends.at_row + row * ends.heads * ends.F;
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
      const T* at_column = ends.at_column + chunk.columns[c] * ends.heads * ends.F + f;
      JAXGNN_UNROLL
      for (int k = 0; k < K; ++k) {
        const V other = load<N>(at_column + k * N);
        acc[k] += ds[c] * Score::derivative(own[k], other, ends.score_parameter);
        if constexpr (Score::kVector && !kSenders) {
          more[k] += ds[c] * Score::activation(own[k], other, ends.score_parameter);
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
void gradient_rows(const PairGradientArgs& args, int64_t head, int64_t piece, const Work& work) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<A>;
  constexpr bool kHasSecond = kSenders ? !Score::kSharedRows : Score::kVector;
  const AttentionArgs& attention = args.pair.attention;
  const Ends<T> ends = ends_of<T>(args.pair, kSenders, args.cotangent, head);
  const int64_t width = attention.width, heads = attention.heads;
  const int64_t score_width = heads * ends.F;
  const A* node_terms = static_cast<const A*>(args.node_terms) + head;
  const Stretch range = piece_of(ends.F, piece);
  const Stretch seconds_range = kSenders ? piece_of(ends.G, piece) : range;
  const int64_t second_width = kSenders ? width : score_width;
  A* edge_gradient = piece == 0 ? static_cast<A*>(args.edge_gradient) : nullptr;
  A* loop_gradient = piece == 0 ? static_cast<A*>(args.loop_gradient) : nullptr;
  A firsts[kFeatures], seconds[kFeatures];
  A weights[kChunk], kept[kChunk], log_sums[kChunk], deltas[kChunk], dots[kChunk], ds[kChunk];
  over_work(attention.rows, work, [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t f = 0; f < range.size(); ++f) firsts[f] = 0;
    for (int64_t f = 0; f < seconds_range.size(); ++f) seconds[f] = 0;
    const T* own_value = ends.row_value + row * width;
    auto add = [&](const Chunk& chunk) {
      prefetch_rows(chunk, ends.at_column, score_width, ends.F);
      pair_scores<Score>(attention, ends, chunk, row, weights);
      for (int c = 0; c < kChunk; ++c) {
        const int64_t receiver = kSenders && c < chunk.count ? chunk.columns[c] : row;
        const bool there = !kSenders || c < chunk.count;
        log_sums[c] = there ? node_terms[receiver * 2 * heads] : A{0};
        deltas[c] = there ? node_terms[receiver * 2 * heads + heads] : A{0};
        dots[c] = 0;
      }
      for (int c = 0; c < chunk.count; ++c) {
        const T* value = ends.column_value + chunk.columns[c] * width;
        dots[c] = sum_terms<A, kLanes<T>>(0, ends.G, [&](auto lanes, int64_t f) {
          constexpr int kCount = decltype(lanes)::value;
          return load<kCount>(own_value + f) * load<kCount>(value + f);
        });
      }
      for (int c = 0; c < kChunk; c += N) {
        const auto alpha = exponential<A, N>(load<N>(weights + c) - load<N>(log_sums + c));
        store<N>(weights + c, alpha);
        store<N>(kept + c, Vector<A, N>{} + A{1});
      }
      drop(attention, chunk, head, kept);
      for (int c = 0; c < kChunk; c += N) {
        const auto alpha = load<N>(weights + c), keep = load<N>(kept + c);
        store<N>(ds + c, alpha * (keep * load<N>(dots + c) - load<N>(deltas + c)));
        store<N>(weights + c, alpha * keep);
      }
      A* gradient = chunk.loop ? loop_gradient : edge_gradient;
      if (gradient != nullptr) {
        for (int c = 0; c < chunk.count; ++c) gradient[chunk.edges[c] * heads + head] = ds[c];
      }
      if constexpr (Score::kScalesKeys && !kSenders) scale_keys(ends, chunk, row, ds);
      add_derivatives<Score, kSenders>(ends, chunk, row, ds, range, firsts, seconds);
      if constexpr (kSenders) {
        add_weighted(chunk, weights, ends.column_value, width, seconds_range, A{1}, seconds);
      }
    };
    auto pass = [&](int64_t edge) {
      if (edge_gradient != nullptr) edge_gradient[edge * heads + head] = 0;
    };
    if (loop_gradient != nullptr && begin == row_begin(attention.rows, row)) {
      loop_gradient[row * heads + head] = 0;
    }
    over_chunks(attention, row, begin, end, add, pass);
    for (int64_t f = 0; f < range.size(); ++f) {
      const Vector<A, 1> vector = load_vector<Score, 1, A>(ends.vector, range.first + f);
      firsts[f] *= Score::factor(vector, ends.score_parameter)[0];
      if constexpr (kSenders && Score::kSharedRows) firsts[f] += seconds[f];
    }
    A* partials = static_cast<A*>(args.partials);
    const int64_t feature = head * ends.F + range.first;
    const int64_t second = head * (kSenders ? ends.G : ends.F) + seconds_range.first;
    if (work.part >= 0) {
      store_row(partials + work.part * score_width + feature, firsts, range.size());
    } else {
      store_row(static_cast<T*>(args.first) + row * score_width + feature, firsts, range.size());
    }
    if constexpr (kHasSecond) {
      using S = std::conditional_t<kSenders, T, A>;
      if (work.part >= 0) {
        A* more = partials + attention.rows.num_splits * score_width;
        store_row(more + work.part * second_width + second, seconds, seconds_range.size());
      } else {
        store_row(static_cast<S*>(args.second) + row * second_width + second, seconds,
                  seconds_range.size());
      }
    }
  });
}

// Calls body(head, piece, work) for all rows and parts of every head, and of its pieces.
template <class T, class Body>
void over_heads(const PairArgs& args, const Executor& executor, int64_t widest, const Body& body) {
  const AttentionArgs& attention = args.attention;
  const int64_t pieces = max_of((widest + kFeatures - 1) / kFeatures, 1);
  const int64_t bytes =
      (args.head_width + attention.width / attention.heads) * static_cast<int64_t>(sizeof(T));
  over_rows(attention.rows, executor, attention.heads * pieces, bytes,
            [&](int64_t slice, const Work& work) { body(slice / pieces, slice % pieces, work); });
}

// Combines the chunks of each long row in order.
template <class S, class A>
void join_parts(const Rows& csr, const Executor& executor, A* partials, int64_t width, S* out) {
  over_split_rows(csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = partials + first * width;
    for (int64_t part = first + 1; part < last; ++part) {
      for (int64_t f = 0; f < width; ++f) sums[f] += partials[part * width + f];
    }
    store_row(out + row * width, sums, width);
  });
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
                  [&](int64_t head, int64_t piece, const Work& work) {
                    forward_rows<Score, T>(args, head, piece, work);
                  });
    AttentionForwardArgs joined{attention, nullptr, args.out, args.log_sum, args.partials, nullptr};
    over_split_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
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
                [&](int64_t head, int64_t piece, const Work& work) {
                  gradient_rows<Score, kSenders, T>(args, head, piece, work);
                });
  A* partials = static_cast<A*>(args.partials);
  join_parts(attention.rows, executor, partials, score_width, static_cast<T*>(args.first));
  partials += attention.rows.num_splits * score_width;
  if constexpr (kSenders && !Score::kSharedRows) {
    join_parts(attention.rows, executor, partials, width, static_cast<T*>(args.second));
  }
  if constexpr (!kSenders && Score::kVector) {
    join_parts(attention.rows, executor, partials, score_width, static_cast<A*>(args.second));
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
