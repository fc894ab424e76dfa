#include "cpu/attention/gat_attention.h"
#include "cpu/attention/weighted_rows.h"
#include "cpu/core/dot.h"

namespace jaxgnn::attention {
namespace {

constexpr int kMaxVectors = kRegisters / 4;  // two sums a feature

// What the gradients of a chunk's scores are made of, by edge, for one head.
template <class A>
struct Scored {
  A scores[kChunk];  // before the LeakyReLU, then the softmax's weights
  A log_sums[kChunk];
  A deltas[kChunk];
  A slopes[kChunk];
};

// From scores to weights and slopes.
template <class A>
JAXGNN_INLINE void weigh(int count, A slope, Scored<A>& edges) {
  constexpr int N = kLanes<A>;
  using V = Vector<A, N>;
  for (int c = 0; c < count; c += N) {
    const V sum = load<N>(edges.scores + c);
    const V score = leaky_relu(sum, slope);
    store<N>(edges.slopes + c, slopes_of(sum, slope));
    store<N>(edges.scores + c, exponential<A, N>(score - load<N>(edges.log_sums + c)));
  }
}

// By senders: the weights of a chunk's edges before and after the multiplication by the LeakyReLU's
// slope, [edges, 2, heads of the slice]. Adds the edges' terms to `deltas`.
template <class A>
JAXGNN_OUTLINE void weigh_chunk(const AttentionGradientArgs& args, const Chunk& chunk, int64_t row,
                                int64_t first, int64_t count, A* deltas, A* weights) {
  const AttentionArgs& attention = args.attention;
  const int64_t heads = attention.heads;
  const A* receivers = static_cast<const A*>(args.receivers);
  const A* own = static_cast<const A*>(attention.sender_scores) + row * heads;
  const A slope = static_cast<A>(attention.negative_slope);
  Scored<A> edges;
  for (int64_t h = 0; h < count; ++h) {
    const int64_t head = first + h;
    sum_scores(attention, chunk, head, receivers, 3 * heads, own[head], edges.scores);
    for (int c = 0; c < kChunk; ++c) edges.log_sums[c] = edges.deltas[c] = 0;
    for (int c = 0; c < chunk.count; ++c) {
      const A* of_node = receivers + chunk.columns[c] * 3 * heads + head;
      edges.log_sums[c] = of_node[heads];
      edges.deltas[c] = of_node[2 * heads];
    }
    weigh(chunk.count, slope, edges);
    for (int c = 0; c < chunk.count; ++c) {
      deltas[h] += edges.slopes[c] * edges.scores[c] * edges.deltas[c];
    }
    drop(attention, chunk, head, edges.scores);
    for (int c = 0; c < chunk.count; ++c) {
      A* pair = weights + c * 2 * count + h;
      pair[0] = edges.scores[c];
      pair[count] = edges.scores[c] * edges.slopes[c];
    }
  }
}

// By senders. With c the LeakyReLU's slope and w the weight after dropout,
//   dv[j] = sum_e w dy[i],   dscore[j] = <v[j], sum_e c w dy[i]> - sum_e c alpha delta[i]:
// two sums of the rows that are gathered anyway, instead of a dot product for each edge.
template <class T, int N, int kVectors, Weighting kWeighting>
JAXGNN_OUTLINE void run(const AttentionGradientArgs& args, const Slice& slice, int64_t head_width,
                        const Work& work) {
  using A = Accumulator<T>;
  using V = Vector<A, N>;
  const AttentionArgs& attention = args.attention;
  const Rows& csr = attention.rows;
  const int64_t width = attention.width, heads = attention.heads;
  const int64_t longest = longest_whole_row(csr);
  const SliceShape<N, kVectors, kWeighting> shape(slice, head_width);
  const T* cotangent = static_cast<const T*>(args.cotangent) + slice.feature;
  A weights[kChunk * 2 * kMaxHeads], deltas[kMaxHeads], products[kVectors * N + 4 * kLanes<T>];

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    V sums[2][kVectors] = {};
    for (int64_t h = 0; h < shape.count; ++h) deltas[h] = 0;
    auto add = [&](const Chunk& chunk) {
      weigh_chunk<A>(args, chunk, row, shape.first, shape.count, deltas, weights);
      add_rows(csr, chunk, cotangent, width, shape, weights, sums);
    };
    over_chunks(attention, row, begin, end, add, Ignore{});

    A* partial = whole ? nullptr : static_cast<A*>(args.partials) + work.part * (width + heads);
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) {
      const int64_t feature = slice.feature + shape.features[k];
      if (whole) {
        store<N>(static_cast<T*>(args.values_gradient) + row * width + feature, sums[0][k]);
      } else {
        std::memcpy(partial + feature, &sums[0][k], sizeof(V));
      }
      std::memcpy(products + shape.features[k], &sums[1][k], sizeof(V));
    }
    // The slices of a head run in sequence: the first one initializes its sum.
    A* scores = whole ? static_cast<A*>(args.scores_gradient) + row * heads : partial + width;
    const T* values = static_cast<const T*>(attention.values) + row * width + slice.feature;
    for (int64_t h = 0; h < shape.count; ++h) {
      const int64_t head = shape.first + h, feature = head * head_width - slice.feature;
      const A dot =
          sum_terms<A, kLanes<T>>(max_of(feature, 0), min_of(feature + head_width, slice.width),
                                  [&](auto lanes, int64_t f) {
                                    constexpr int kCount = decltype(lanes)::value;
                                    return load<kCount>(products + f) * load<kCount>(values + f);
                                  });
      scores[head] = feature >= 0 ? dot - deltas[h] : scores[head] + dot;
    }
  }
}

template <class T>
void by_senders(const AttentionGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.attention;
  const int64_t width = attention.width, heads = attention.heads;
  const Slices cut = cut_features<T>(width, heads, true, kMaxVectors);
  const int64_t groups = cut.count / cut.group_slices;
  const int64_t edge_bytes = width * static_cast<int64_t>(sizeof(T)) / groups;
  over_rows(attention.rows, executor, groups, edge_bytes, [&](int64_t group, const Work& work) {
    for (int64_t s = group * cut.group_slices; s < (group + 1) * cut.group_slices; ++s) {
      with_slice<T, kMaxVectors>(cut, cut[s], [&](auto lanes, auto vectors, auto weighting) {
        run<T, decltype(lanes)::value, decltype(vectors)::value, decltype(weighting)::value>(
            args, cut[s], cut.head_width, work);
      });
    }
  });
  over_split_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = sum_parts(static_cast<A*>(args.partials), width + heads, first, last);
    store_row(static_cast<T*>(args.values_gradient) + row * width, sums, width);
    std::memcpy(static_cast<A*>(args.scores_gradient) + row * heads, sums + width,
                sizeof(A) * static_cast<size_t>(heads));
  });
}

// By receivers, for some heads: the gradients of the scores' sums, edge by edge.
constexpr int64_t kHeadsAtOnce = 16;

template <class T>
void run_receivers(const AttentionGradientArgs& args, int64_t first, int64_t last,
                   const Work& work) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.attention;
  const Rows& csr = attention.rows;
  const int64_t width = attention.width, heads = attention.heads, head_width = width / heads;
  const int64_t longest = longest_whole_row(csr);
  const int64_t bytes = (last - first) * head_width * static_cast<int64_t>(sizeof(T));
  const T* values = static_cast<const T*>(attention.values);
  const A* senders = static_cast<const A*>(attention.sender_scores);
  const A slope = static_cast<A>(attention.negative_slope);
  A* edge_gradient = static_cast<A*>(args.edge_gradient);
  A* loop_gradient = static_cast<A*>(args.loop_gradient);
  Scored<A> edges[kHeadsAtOnce];
  A kept[kHeadsAtOnce][kChunk], totals[kHeadsAtOnce];

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    const A* own = static_cast<const A*>(args.receivers) + row * 3 * heads;
    const T* cotangent = static_cast<const T*>(args.cotangent) + row * width;
    for (int64_t h = first; h < last; ++h) totals[h - first] = 0;
    auto add = [&](const Chunk& chunk) {
      for (int64_t h = first; h < last; ++h) {
        Scored<A>& scored = edges[h - first];
        sum_scores(attention, chunk, h, senders, heads, own[h], scored.scores);
        for (int c = 0; c < kChunk; ++c) scored.log_sums[c] = own[heads + h];
        weigh(chunk.count, slope, scored);
        for (int c = 0; c < kChunk; ++c) kept[h - first][c] = 1;
        drop(attention, chunk, h, kept[h - first]);
      }
      A* gradient = chunk.loop ? loop_gradient : edge_gradient;
      for (int c = 0; c < chunk.count; ++c) {
        const T* column = values + chunk.columns[c] * width;
        if (!chunk.loop) {
          prefetch_ahead(csr, chunk.place + c, values + first * head_width, width, bytes);
        }
        for (int64_t h = first; h < last; ++h) {
          const A dot = sum_terms<A, kLanes<T>>(
              h * head_width, (h + 1) * head_width, [&](auto lanes, int64_t f) {
                constexpr int kCount = decltype(lanes)::value;
                return load<kCount>(cotangent + f) * load<kCount>(column + f);
              });
          const Scored<A>& scored = edges[h - first];
          const A difference = kept[h - first][c] * dot - own[2 * heads + h];
          const A ds = scored.scores[c] * difference * scored.slopes[c];
          totals[h - first] += ds;
          if (gradient != nullptr) gradient[chunk.edges[c] * heads + h] = ds;
        }
      }
    };
    auto pass = [&](int64_t edge) {
      if (edge_gradient == nullptr) return;
      for (int64_t h = first; h < last; ++h) edge_gradient[edge * heads + h] = 0;
    };
    over_chunks(attention, row, begin, end, add, pass);
    A* scores = whole ? static_cast<A*>(args.scores_gradient) + row * heads
                      : static_cast<A*>(args.partials) + work.part * heads;
    for (int64_t h = first; h < last; ++h) scores[h] = totals[h - first];
    const bool beginning = begin == row_begin(csr, row);
    if (loop_gradient != nullptr && row >= attention.num_columns && beginning) {
      for (int64_t h = first; h < last; ++h) loop_gradient[row * heads + h] = 0;
    }
  }
}

template <class T>
void by_receivers(const AttentionGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.attention;
  const int64_t heads = attention.heads;
  const int64_t blocks = (heads + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int64_t bytes = attention.width * static_cast<int64_t>(sizeof(T)) / blocks;
  over_rows(attention.rows, executor, blocks, bytes, [&](int64_t block, const Work& work) {
    run_receivers<T>(args, heads * block / blocks, heads * (block + 1) / blocks, work);
  });
  over_split_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    const A* sums = sum_parts(static_cast<A*>(args.partials), heads, first, last);
    std::memcpy(static_cast<A*>(args.scores_gradient) + row * heads, sums,
                sizeof(A) * static_cast<size_t>(heads));
  });
}

}  // namespace

namespace JAXGNN_ISA {

void attention_senders(const AttentionGradientArgs& args, const Executor& executor) {
  if (args.attention.rows.num_rows == 0 || args.attention.width == 0) return;
  with_type(args.attention.type, [&](auto type) { by_senders<decltype(type)>(args, executor); });
}

void attention_receivers(const AttentionGradientArgs& args, const Executor& executor) {
  if (args.attention.rows.num_rows == 0 || args.attention.width == 0) return;
  with_type(args.attention.type, [&](auto type) { by_receivers<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::attention
