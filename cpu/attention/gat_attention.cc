#include "cpu/attention/gat_attention.h"

#include "cpu/attention/softmax.h"
#include "cpu/attention/weighted_rows.h"

namespace jaxgnn::attention {
namespace {

constexpr int kMaxVectors = kRegisters / 2;

// The weights of a chunk's edges, and the factors that rescale the earlier sums. Returns whether
// any factor is not 1.
template <class A>
JAXGNN_OUTLINE bool weigh_chunk(const AttentionForwardArgs& args, const Chunk& chunk, int64_t row,
                                const Heads<A>& heads, Softmax<A>& softmax, A* factors,
                                A* weights) {
  const AttentionArgs& attention = args.attention;
  const int64_t all = attention.heads;
  const A* senders = static_cast<const A*>(attention.sender_scores);
  const A* own = static_cast<const A*>(args.receiver_scores) + row * all;
  const A slope = static_cast<A>(attention.negative_slope);
  sum_scores(attention, chunk, heads, senders, all, own, weights);
  const bool rescale = add_scores(heads, chunk.count, slope, softmax, weights, factors);
  drop(attention, chunk, heads, weights);
  return rescale;
}

template <class T, int N, int kVectors, Weighting kWeighting>
JAXGNN_OUTLINE void run(const AttentionForwardArgs& args, const Slice& slice, int64_t head_width,
                        const Work& work) {
  using A = Accumulator<T>;
  using V = Vector<A, N>;
  const AttentionArgs& attention = args.attention;
  const Rows& csr = attention.rows;
  const int64_t width = attention.width, num_heads = attention.heads;
  const int64_t longest = longest_whole_row(csr);
  const SliceShape<N, kVectors, kWeighting> shape(slice, head_width);
  const Heads<A> heads(shape.first, shape.count);
  const T* values = static_cast<const T*>(attention.values) + slice.feature;
  A weights[kChunk * kMaxHeads], factors[kMaxHeads];
  Softmax<A> softmax;

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    V sums[1][kVectors] = {};
    softmax.clear(heads);
    auto add = [&](const Chunk& chunk) {
      if (weigh_chunk<A>(args, chunk, row, heads, softmax, factors, weights)) {
        JAXGNN_UNROLL
        for (int k = 0; k < kVectors; ++k) {
          sums[0][k] *= load_weight<N, kWeighting>(factors + shape.weights[k]);
        }
      }
      add_rows(csr, chunk, values, width, shape, heads.stride, {weights}, sums);
    };
    over_chunks(attention, row, begin, end, add, Ignore{});
    add_lanes(heads, softmax.total);

    // A head's softmax is written by the slice in which the head begins.
    const int64_t skipped = slice.feature > shape.first * head_width ? 1 : 0;
    if (!whole) {
      A* partial = static_cast<A*>(args.partials) + work.part * (width + 2 * num_heads);
      JAXGNN_UNROLL
      for (int k = 0; k < kVectors; ++k) {
        std::memcpy(partial + slice.feature + shape.features[k], &sums[0][k], sizeof(V));
      }
      for (int64_t h = skipped; h < shape.count; ++h) {
        partial[width + shape.first + h] = softmax[h].largest;
        partial[width + num_heads + shape.first + h] = softmax[h].total;
      }
      continue;
    }
    for (int64_t h = 0; h < shape.count; ++h) factors[h] = softmax[h].divisor();
    JAXGNN_UNROLL
    for (int k = 0; k < kVectors; ++k) {
      const auto divisor = load_weight<N, kWeighting>(factors + shape.weights[k]);
      store<N>(static_cast<T*>(args.out) + row * width + slice.feature + shape.features[k],
               sums[0][k] / divisor);
    }
    A* log_sums = static_cast<A*>(args.log_sum) + 2 * (row * num_heads + shape.first);
    for (int64_t h = skipped; h < shape.count; ++h) softmax[h].store_log_sum(log_sums + 2 * h);
  }
}

template <class T>
void forward(const AttentionForwardArgs& args, const Executor& executor) {
  const AttentionArgs& attention = args.attention;
  const int64_t width = attention.width;
  const Slices cut = cut_features<T>(width, attention.heads, true, kMaxVectors);
  const int64_t edge_bytes = width * static_cast<int64_t>(sizeof(T)) / cut.count;
  over_rows(attention.rows, executor, cut.count, edge_bytes, [&](int64_t s, const Work& work) {
    with_slice<T, kMaxVectors>(cut, cut[s], [&](auto lanes, auto vectors, auto weighting) {
      run<T, decltype(lanes)::value, decltype(vectors)::value, decltype(weighting)::value>(
          args, cut[s], cut.head_width, work);
    });
  });
  over_chunked_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    join<T>(args, row, first, last);
  });
}

}  // namespace

namespace JAXGNN_ISA {

void attention(const AttentionForwardArgs& args, const Executor& executor) {
  if (args.attention.rows.num_rows == 0 || args.attention.width == 0) return;
  with_type(args.attention.type, [&](auto type) { forward<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::attention
