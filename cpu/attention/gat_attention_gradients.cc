#include "cpu/attention/gat_attention.h"
#include "cpu/attention/score_gradients.h"
#include "cpu/attention/weighted_rows.h"
#include "cpu/core/dot.h"

namespace jaxgnn::attention {
namespace {

constexpr int kMaxVectors = kRegisters / 4;  // two sums a feature

// By senders: the weights of a chunk's edges, and their products with the LeakyReLU's slopes, in
// place of the slopes. Adds the edges' terms to `deltas`, in their lanes.
template <class A>
JAXGNN_OUTLINE void weigh_chunk(const AttentionGradientArgs& args, const Chunk& chunk, int64_t row,
                                const Heads<A>& heads, A* deltas, Scored<A, kMaxHeads>& scored) {
  constexpr int N = kLanes<A>;
  const AttentionArgs& attention = args.attention;
  const int64_t all = attention.heads;
  const A* receivers = static_cast<const A*>(args.receivers);
  const A* own = static_cast<const A*>(attention.sender_scores) + row * all;
  const A slope = static_cast<A>(attention.negative_slope);
  sum_scores(attention, chunk, heads, receivers, 3 * all, own, scored.weights);
  gather(chunk, heads, receivers + all, 3 * all, A{0}, scored.log_sums);
  gather(chunk, heads, receivers + 2 * all, 3 * all, A{0}, scored.deltas);
  weigh(heads, chunk.count, slope, scored, [&](int64_t i, int64_t j, auto weights, auto slopes) {
    const auto delta = slopes * weights * load<N>(scored.deltas + i);
    store<N>(deltas + j, load<N>(deltas + j) + delta);
  });
  drop(attention, chunk, heads, scored.weights);
  for (int64_t i = 0; i < heads.padded(chunk.count); i += N) {
    store<N>(scored.slopes + i, load<N>(scored.weights + i) * load<N>(scored.slopes + i));
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
  const int64_t width = attention.width, num_heads = attention.heads;
  const int64_t longest = longest_whole_row(csr);
  const SliceShape<N, kVectors, kWeighting> shape(slice, head_width);
  const Heads<A> heads(shape.first, shape.count);
  const T* cotangent = static_cast<const T*>(args.cotangent) + slice.feature;
  Scored<A, kMaxHeads> scored;
  A deltas[kMaxHeads], products[kVectors * N + 4 * kLanes<T>];

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    V sums[2][kVectors] = {};
    for (int64_t h = 0; h < heads.period; ++h) deltas[h] = 0;
    auto add = [&](const Chunk& chunk) {
      weigh_chunk<A>(args, chunk, row, heads, deltas, scored);
      add_rows(csr, chunk, cotangent, width, shape, heads.stride, {scored.weights, scored.slopes},
               sums);
    };
    over_chunks(attention, row, begin, end, add, Ignore{});
    add_lanes(heads, deltas);

    A* partial = whole ? nullptr : static_cast<A*>(args.partials) + work.part * (width + num_heads);
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
    A* scores = whole ? static_cast<A*>(args.scores_gradient) + row * num_heads : partial + width;
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
  over_chunked_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
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
  const int64_t width = attention.width, num_heads = attention.heads;
  const int64_t head_width = width / num_heads;
  const Heads<A> heads(first, last - first);
  const int64_t longest = longest_whole_row(csr);
  const int64_t bytes = (last - first) * head_width * static_cast<int64_t>(sizeof(T));
  const T* values = static_cast<const T*>(attention.values);
  const A* senders = static_cast<const A*>(attention.sender_scores);
  const A slope = static_cast<A>(attention.negative_slope);
  A* edge_gradient = static_cast<A*>(args.edge_gradient);
  A* loop_gradient = static_cast<A*>(args.loop_gradient);
  Scored<A, kHeadsAtOnce> scored;
  A* kept = scored.deltas;  // delta is one for the row here
  A totals[kHeadsAtOnce];

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    const A* own = static_cast<const A*>(args.receivers) + row * 3 * num_heads;
    const T* cotangent = static_cast<const T*>(args.cotangent) + row * width;
    for (int64_t h = first; h < last; ++h) totals[h - first] = 0;
    auto add = [&](const Chunk& chunk) {
      sum_scores(attention, chunk, heads, senders, num_heads, own, scored.weights);
      gather(chunk, heads, own + num_heads, 0, A{0}, scored.log_sums);  // the same at each edge
      weigh(heads, chunk.count, slope, scored, [](int64_t, int64_t, auto, auto) {});
      for (int64_t i = 0; i < heads.padded(chunk.count); ++i) kept[i] = 1;
      drop(attention, chunk, heads, kept);
      for (int c = 0; c < chunk.count; ++c) {
        A* gradient = c < chunk.loops ? loop_gradient : edge_gradient;
        const T* column = values + chunk.columns[c] * width;
        if (c >= chunk.loops) {
          prefetch_ahead(csr, chunk.place + c, values + first * head_width, width, bytes);
        }
        for (int64_t h = first; h < last; ++h) {
          const A dot = sum_terms<A, kLanes<T>>(
              h * head_width, (h + 1) * head_width, [&](auto lanes, int64_t f) {
                constexpr int kCount = decltype(lanes)::value;
                return load<kCount>(cotangent + f) * load<kCount>(column + f);
              });
          const int64_t i = c * heads.stride + h - first;
          const A difference = kept[i] * dot - own[2 * num_heads + h];
          const A ds = scored.weights[i] * difference * scored.slopes[i];
          totals[h - first] += ds;
          if (gradient != nullptr) gradient[chunk.edges[c] * num_heads + h] = ds;
        }
      }
    };
    auto pass = [&](int64_t edge) {
      if (edge_gradient == nullptr) return;
      for (int64_t h = first; h < last; ++h) edge_gradient[edge * num_heads + h] = 0;
    };
    over_chunks(attention, row, begin, end, add, pass);
    A* scores = whole ? static_cast<A*>(args.scores_gradient) + row * num_heads
                      : static_cast<A*>(args.partials) + work.part * num_heads;
    for (int64_t h = first; h < last; ++h) scores[h] = totals[h - first];
    const bool beginning = begin == row_begin(csr, row);
    if (loop_gradient != nullptr && row >= attention.num_columns && beginning) {
      for (int64_t h = first; h < last; ++h) loop_gradient[row * num_heads + h] = 0;
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
  over_chunked_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
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
