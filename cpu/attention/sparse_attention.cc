#include "cpu/attention/sparse_attention.h"

#include "cpu/attention/softmax.h"
#include "cpu/attention/sparse_rows.h"

namespace jaxgnn::attention {
namespace {

template <class T, class Index>
JAXGNN_OUTLINE void run(const SparseForwardArgs& args, int64_t first, int64_t last,
                        const Work& work) {
  using A = Accumulator<T>;
  const AttentionArgs& attention = args.forward.attention;
  const Rows& csr = attention.rows;
  const maxk::Cbsr& cbsr = args.cbsr;
  const int64_t width = attention.width, all = attention.heads, F = cbsr.width, k = cbsr.k;
  const int64_t longest = longest_whole_row(csr);
  const Heads<A> heads(first, last - first);
  const A* senders = static_cast<const A*>(attention.sender_scores);
  const A slope = static_cast<A>(attention.negative_slope);
  alignas(64) A sums[kMaxSums];
  A weights[kChunk * kMaxHeads], factors[kMaxHeads];
  Softmax<A> softmax;

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    const A* own = static_cast<const A*>(args.forward.receiver_scores) + row * all;
    std::memset(sums, 0, static_cast<size_t>(heads.count * F) * sizeof(A));
    softmax.clear(heads);
    auto add = [&](const Chunk& chunk) {
      sum_scores(attention, chunk, heads, senders, all, own, weights);
      if (add_scores(heads, chunk.count, slope, softmax, weights, factors)) {
        for (int64_t h = 0; h < heads.count; ++h) {
          if (factors[h] == A{1}) continue;
          for (int64_t f = h * F; f < (h + 1) * F; ++f) sums[f] *= factors[h];
        }
      }
      drop(attention, chunk, heads, weights);
      over_cbsr_rows<T, Index>(
          attention, cbsr, chunk, heads,
          [&](int, int64_t h, const T* values, const Index* indices, int64_t weight) {
            A* to = sums + h * F;
            for (int64_t j = 0; j < k; ++j) {
              to[indices[j]] += weights[weight] * load<1>(values + j)[0];
            }
          });
    };
    over_chunks(attention, row, begin, end, add, Ignore{});
    add_lanes(heads, softmax.total);

    A* partial = static_cast<A*>(args.forward.partials) + work.part * (width + 2 * all);
    T* out = static_cast<T*>(args.forward.out) + row * width;
    for (int64_t h = 0; h < heads.count; ++h) {
      const int64_t head = first + h;
      const auto sum = softmax[h];
      A* from = sums + h * F;
      if (!whole) {
        std::memcpy(partial + head * F, from, static_cast<size_t>(F) * sizeof(A));
        partial[width + head] = sum.largest;
        partial[width + all + head] = sum.total;
        continue;
      }
      const A divisor = sum.divisor();
      for (int64_t f = 0; f < F; ++f) from[f] /= divisor;
      store_row(out + head * F, from, F);
      sum.store_log_sum(static_cast<A*>(args.forward.log_sum) + 2 * (row * all + head));
    }
  }
}

template <class T, class Index>
void forward(const SparseForwardArgs& args, const Executor& executor) {
  const AttentionArgs& attention = args.forward.attention;
  const HeadBlocks blocks(attention.heads, args.cbsr.width);
  const int64_t bytes = cbsr_bytes<T, Index>(args.cbsr, blocks);
  over_rows(attention.rows, executor, blocks.count, bytes, [&](int64_t block, const Work& work) {
    run<T, Index>(args, blocks.first(block), blocks.last(block), work);
  });
  over_chunked_rows(attention.rows, executor, [&](int64_t row, int64_t first, int64_t last) {
    join<T>(args.forward, row, first, last);
  });
}

}  // namespace

namespace JAXGNN_ISA {

void sparse_attention(const SparseForwardArgs& args, const Executor& executor) {
  const AttentionArgs& attention = args.forward.attention;
  if (attention.rows.num_rows == 0 || attention.width == 0) return;
  with_type(attention.type, [&](auto type) {
    maxk::with_index(args.cbsr.width > 256,
                     [&](auto index) { forward<decltype(type), decltype(index)>(args, executor); });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::attention
