#include "cpu/attention/score_gradients.h"
#include "cpu/attention/sparse_attention.h"
#include "cpu/attention/sparse_rows.h"

namespace jaxgnn::attention {
namespace {

// Rows of receivers' numbers, one after the other: score, log_sum, delta, and one of a GPU.
constexpr int64_t kTerms = 4;

// By senders, over the transpose, for some heads. With c the LeakyReLU's slope, w the weight after
// dropout and I the row's columns,
//   dv[j, c] = sum_e w dy[i, I[c]],
//   dscore[j] = <v[j], sum_e c w dy[i, I]> - sum_e c alpha delta[i].
template <class T, class Index>
JAXGNN_OUTLINE void run_senders(const SparseGradientArgs& args, const AttentionArgs& attention,
                                int64_t first, int64_t last, const Work& work) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<A>;
  const Rows& csr = attention.rows;
  const maxk::Cbsr& cbsr = args.cbsr;
  const int64_t width = attention.width, all = attention.heads, F = cbsr.width, k = cbsr.k;
  const int64_t longest = longest_whole_row(csr);
  const Heads<A> heads(first, last - first);
  const A slope = static_cast<A>(attention.negative_slope);
  const A* receivers = static_cast<const A*>(args.receivers);
  const T* cotangent = static_cast<const T*>(args.cotangent);
  const int64_t bytes = heads.count * F * static_cast<int64_t>(sizeof(T));
  alignas(64) A sums[kMaxSums], sloped[kMaxSums];
  A deltas[kMaxHeads];
  Scored<A, kMaxHeads> scored;

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    const A* own = static_cast<const A*>(attention.sender_scores) + row * all;
    const size_t sum_bytes = static_cast<size_t>(heads.count * k) * sizeof(A);
    std::memset(sums, 0, sum_bytes);
    std::memset(sloped, 0, sum_bytes);
    for (int64_t h = 0; h < heads.period; ++h) deltas[h] = 0;
    auto add = [&](const Chunk& chunk) {
      sum_scores(attention, chunk, heads, receivers, kTerms * all, own, scored.weights);
      gather(chunk, heads, receivers + all, kTerms * all, A{0}, scored.log_sums);
      gather(chunk, heads, receivers + 2 * all, kTerms * all, A{0}, scored.deltas);
      weigh(heads, chunk.count, slope, scored,
            [&](int64_t i, int64_t j, auto weights, auto slopes) {
              const auto delta = slopes * weights * load<N>(scored.deltas + i);
              store<N>(deltas + j, load<N>(deltas + j) + delta);
            });
      drop(attention, chunk, heads, scored.weights);
      for (int c = 0; c < chunk.count; ++c) {
        if (c >= chunk.loops) {
          prefetch_ahead(csr, chunk.place + c, cotangent + first * F, width, bytes);
        }
        for (int64_t h = 0; h < heads.count; ++h) {
          const T* from = cotangent + chunk.columns[c] * width + (first + h) * F;
          const Index* indices = maxk::indices_of<Index>(cbsr, row * all + first + h);
          const A weight = scored.weights[c * heads.stride + h];
          const A second = weight * scored.slopes[c * heads.stride + h];
          for (int64_t j = 0; j < k; ++j) {
            const A y = load<1>(from + indices[j])[0];
            sums[h * k + j] += weight * y;
            sloped[h * k + j] += second * y;
          }
        }
      }
    };
    over_chunks(attention, row, begin, end, add, Ignore{});
    add_lanes(heads, deltas);

    A* partial = static_cast<A*>(args.sender_partials) + work.part * all * (k + 1);
    for (int64_t h = 0; h < heads.count; ++h) {
      const int64_t head = first + h;
      const T* values = maxk::values_of<T>(cbsr, row * all + head);
      A score = -deltas[h];
      for (int64_t j = 0; j < k; ++j) score += load<1>(values + j)[0] * sloped[h * k + j];
      if (whole) {
        store_row(static_cast<T*>(args.values_gradient) + (row * all + head) * k, sums + h * k, k);
        static_cast<A*>(args.sender_gradient)[row * all + head] = score;
      } else {
        std::memcpy(partial + head * k, sums + h * k, static_cast<size_t>(k) * sizeof(A));
        partial[all * k + head] = score;
      }
    }
  }
}

// By receivers, for some heads: the gradients of the scores' sums, edge by edge.
template <class T, class Index>
JAXGNN_OUTLINE void run_receivers(const SparseGradientArgs& args, int64_t first, int64_t last,
                                  const Work& work) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.attention;
  const Rows& csr = attention.rows;
  const maxk::Cbsr& cbsr = args.cbsr;
  const int64_t width = attention.width, all = attention.heads, F = cbsr.width, k = cbsr.k;
  const int64_t longest = longest_whole_row(csr);
  const Heads<A> heads(first, last - first);
  const A* senders = static_cast<const A*>(attention.sender_scores);
  const A slope = static_cast<A>(attention.negative_slope);
  A* edge_gradient = static_cast<A*>(args.edge_gradient);
  A* loop_gradient = static_cast<A*>(args.loop_gradient);
  Scored<A, kMaxHeads> scored;
  A* kept = scored.deltas;  // delta is one for the row here
  A totals[kMaxHeads];

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    const A* own = static_cast<const A*>(args.receivers) + row * kTerms * all;
    const T* cotangent = static_cast<const T*>(args.cotangent) + row * width + first * F;
    for (int64_t h = 0; h < heads.count; ++h) totals[h] = 0;
    auto add = [&](const Chunk& chunk) {
      sum_scores(attention, chunk, heads, senders, all, own, scored.weights);
      gather(chunk, heads, own + all, 0, A{0}, scored.log_sums);  // the same at each edge
      weigh(heads, chunk.count, slope, scored, [](int64_t, int64_t, auto, auto) {});
      for (int64_t i = 0; i < heads.padded(chunk.count); ++i) kept[i] = 1;
      drop(attention, chunk, heads, kept);
      over_cbsr_rows<T, Index>(
          attention, cbsr, chunk, heads,
          [&](int c, int64_t h, const T* values, const Index* indices, int64_t i) {
            const T* y = cotangent + h * F;
            A dot = 0;
            for (int64_t j = 0; j < k; ++j) {
              dot += load<1>(values + j)[0] * load<1>(y + indices[j])[0];
            }
            const A difference = kept[i] * dot - own[2 * all + first + h];
            const A ds = scored.weights[i] * difference * scored.slopes[i];
            totals[h] += ds;
            A* gradient = c < chunk.loops ? loop_gradient : edge_gradient;
            if (gradient != nullptr) gradient[chunk.edges[c] * all + first + h] = ds;
          });
    };
    auto pass = [&](int64_t edge) {
      if (edge_gradient == nullptr) return;
      for (int64_t h = first; h < last; ++h) edge_gradient[edge * all + h] = 0;
    };
    over_chunks(attention, row, begin, end, add, pass);
    A* scores = whole ? static_cast<A*>(args.receiver_gradient) + row * all
                      : static_cast<A*>(args.receiver_partials) + work.part * all;
    for (int64_t h = first; h < last; ++h) scores[h] = totals[h - first];
    const bool beginning = begin == row_begin(csr, row);
    if (loop_gradient != nullptr && row >= attention.num_columns && beginning) {
      for (int64_t h = first; h < last; ++h) loop_gradient[row * all + h] = 0;
    }
  }
}

template <class T, class Index>
void gradients(const SparseGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const AttentionArgs& by_receivers = args.attention;
  const int64_t all = by_receivers.heads, k = args.cbsr.k;
  const HeadBlocks blocks(all, args.cbsr.width);
  const int64_t bytes = cbsr_bytes<T, Index>(args.cbsr, blocks);

  AttentionArgs by_senders = by_receivers;
  by_senders.rows = args.transpose;
  by_senders.num_columns = by_receivers.rows.num_rows;
  by_senders.permutation = args.permutation;
  by_senders.wide_permutation = args.wide_permutation;
  over_rows(by_senders.rows, executor, blocks.count, bytes, [&](int64_t block, const Work& work) {
    run_senders<T, Index>(args, by_senders, blocks.first(block), blocks.last(block), work);
  });
  over_chunked_rows(by_senders.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    A* sums = sum_parts(static_cast<A*>(args.sender_partials), all * (k + 1), first, last);
    store_row(static_cast<T*>(args.values_gradient) + row * all * k, sums, all * k);
    std::memcpy(static_cast<A*>(args.sender_gradient) + row * all, sums + all * k,
                sizeof(A) * static_cast<size_t>(all));
  });

  over_rows(by_receivers.rows, executor, blocks.count, bytes, [&](int64_t block, const Work& work) {
    run_receivers<T, Index>(args, blocks.first(block), blocks.last(block), work);
  });
  over_chunked_rows(by_receivers.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    const A* sums = sum_parts(static_cast<A*>(args.receiver_partials), all, first, last);
    std::memcpy(static_cast<A*>(args.receiver_gradient) + row * all, sums,
                sizeof(A) * static_cast<size_t>(all));
  });
}

}  // namespace

namespace JAXGNN_ISA {

void sparse_attention_gradients(const SparseGradientArgs& args, const Executor& executor) {
  if (args.attention.width == 0) return;
  with_type(args.attention.type, [&](auto type) {
    maxk::with_index(args.cbsr.width > 256, [&](auto index) {
      gradients<decltype(type), decltype(index)>(args, executor);
    });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::attention
