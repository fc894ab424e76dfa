#include "gat_attention.h"

#include "weighted_rows.h"

namespace jaxgnn {
namespace {

constexpr int kMaxVectors = kRegisters / 2;

JAXGNN_INLINE float logarithm(float x) { return __builtin_logf(x); }
JAXGNN_INLINE double logarithm(double x) { return __builtin_log(x); }

// The softmax over the edges that were met so far: the largest score, and the sum of the
// exponentials of the differences to it.
template <class A>
struct Softmax {
  A largest = -kInfinity<A>;
  A total = 0;

  // What is subtracted: not the difference of two infinities where all is masked.
  A base() const { return largest == -kInfinity<A> ? A{0} : largest; }
  // The result's divisor: 0 / 1 where there is no edge.
  A divisor() const { return total == 0 ? A{1} : total; }
  A log_sum() const { return total == 0 ? A{0} : base() + logarithm(total); }
};

// Takes a chunk's scores in, given before the LeakyReLU, and makes weights of them. Returns what
// earlier weights are to be multiplied by.
template <class A>
JAXGNN_INLINE A add_scores(Softmax<A>& softmax, int count, A slope, A* scores) {
  constexpr int N = kLanes<A>;
  using V = Vector<A, N>;
  V most = V{} - kInfinity<A>;
  for (int c = 0; c < count; c += N) {
    const V score = leaky_relu(load<N>(scores + c), slope);
    most = maximum(most, score);
    store<N>(scores + c, score);
  }
  const A before = softmax.largest;
  for (int lane = 0; lane < N; ++lane) {
    softmax.largest = maximum(softmax.largest, static_cast<A>(most[lane]));
  }
  const A base = softmax.base();
  V sums = {};
  for (int c = 0; c < count; c += N) {
    const V weight = exponential<A, N>(load<N>(scores + c) - base);
    sums += weight;
    store<N>(scores + c, weight);
  }
  const A factor = softmax.largest == before ? A{1} : exponential<A>(before - base);
  A total = softmax.total * factor;
  for (int lane = 0; lane < N; ++lane) total += sums[lane];
  softmax.total = total;
  return factor;
}

// The weights of a chunk's edges, [edges, heads of the slice], and what earlier ones are to be
// multiplied by. Returns whether one of those factors is not 1.
template <class A>
JAXGNN_OUTLINE bool weigh_chunk(const AttentionForwardArgs& args, const Chunk& chunk, int64_t row,
                                int64_t first, int64_t count, Softmax<A>* softmax, A* factors,
                                A* weights) {
  const AttentionArgs& attention = args.attention;
  const int64_t heads = attention.heads;
  const A* senders = static_cast<const A*>(attention.sender_scores);
  const A* own = static_cast<const A*>(args.receiver_scores) + row * heads;
  const A slope = static_cast<A>(attention.negative_slope);
  A scores[kChunk];
  bool rescale = false;
  for (int64_t h = 0; h < count; ++h) {
    const int64_t head = first + h;
    sum_scores(attention, chunk, head, senders, heads, own[head], scores);
    factors[h] = add_scores(softmax[h], chunk.count, slope, scores);
    rescale = rescale || factors[h] != 1;
    drop(attention, chunk, head, scores);
    for (int c = 0; c < chunk.count; ++c) weights[c * count + h] = scores[c];
  }
  return rescale;
}

template <class T, int N, int kVectors, Weighting kWeighting>
JAXGNN_OUTLINE void run(const AttentionForwardArgs& args, const Slice& slice, int64_t head_width,
                        const Work& work) {
  using A = Accumulator<T>;
  using V = Vector<A, N>;
  const AttentionArgs& attention = args.attention;
  const Csr& csr = attention.csr;
  const int64_t width = attention.width, heads = attention.heads;
  const int64_t longest = longest_whole_row(csr);
  const SliceShape<N, kVectors, kWeighting> shape(slice, head_width);
  const T* values = static_cast<const T*>(attention.values) + slice.feature;
  A weights[kChunk * kMaxHeads], factors[kMaxHeads];
  Softmax<A> softmax[kMaxHeads];

  for (int64_t row = work.first; row < work.last; ++row) {
    const bool whole = work.part < 0;
    const int64_t begin = whole ? row_begin(csr, row) : work.begin;
    const int64_t end = whole ? row_begin(csr, row + 1) : work.end;
    if (whole && end - begin > longest) continue;
    V sums[1][kVectors] = {};
    for (int64_t h = 0; h < shape.count; ++h) softmax[h] = {};
    auto add = [&](const Chunk& chunk) {
      const bool rescale =
          weigh_chunk<A>(args, chunk, row, shape.first, shape.count, softmax, factors, weights);
      if (rescale) {
        JAXGNN_UNROLL
        for (int k = 0; k < kVectors; ++k) {
          sums[0][k] *= load_weight<N, kWeighting>(factors + shape.weights[k]);
        }
      }
      add_rows(csr, chunk, values, width, shape, weights, sums);
    };
    over_chunks(attention, row, begin, end, add, [](int64_t) {});

    // A head's softmax is written by the slice in which the head begins.
    const int64_t skipped = slice.feature > shape.first * head_width ? 1 : 0;
    if (!whole) {
      A* partial = static_cast<A*>(args.partials) + work.part * (width + 2 * heads);
      JAXGNN_UNROLL
      for (int k = 0; k < kVectors; ++k) {
        std::memcpy(partial + slice.feature + shape.features[k], &sums[0][k], sizeof(V));
      }
      for (int64_t h = skipped; h < shape.count; ++h) {
        partial[width + shape.first + h] = softmax[h].largest;
        partial[width + heads + shape.first + h] = softmax[h].total;
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
    for (int64_t h = skipped; h < shape.count; ++h) {
      static_cast<A*>(args.log_sum)[row * heads + shape.first + h] = softmax[h].log_sum();
    }
  }
}

// Joins the parts of a row, in the first of them, and stores it.
template <class T>
void join(const AttentionForwardArgs& args, int64_t row, int64_t first, int64_t last) {
  using A = Accumulator<T>;
  const int64_t width = args.attention.width, heads = args.attention.heads;
  const int64_t head_width = width / heads, stride = width + 2 * heads;
  A* parts = static_cast<A*>(args.partials);
  A* sums = parts + first * stride;
  for (int64_t h = 0; h < heads; ++h) {
    Softmax<A> all;
    for (int64_t part = first; part < last; ++part) {
      all.largest = maximum(all.largest, parts[part * stride + width + h]);
    }
    const A base = all.base();
    for (int64_t part = first; part < last; ++part) {
      const A* more = parts + part * stride;
      const A factor = exponential<A>(more[width + h] - base);
      all.total += factor * more[width + heads + h];
      for (int64_t f = h * head_width; f < (h + 1) * head_width; ++f) {
        sums[f] = (part == first ? A{0} : sums[f]) + factor * more[f];
      }
    }
    const A divisor = all.divisor();
    for (int64_t f = h * head_width; f < (h + 1) * head_width; ++f) sums[f] /= divisor;
    static_cast<A*>(args.log_sum)[row * heads + h] = all.log_sum();
  }
  store_row(static_cast<T*>(args.out) + row * width, sums, width);
}

template <class T>
void forward(const AttentionForwardArgs& args, const Executor& executor) {
  const AttentionArgs& attention = args.attention;
  const int64_t width = attention.width;
  const Slices cut = cut_features<T>(width, attention.heads, true, kMaxVectors);
  const int64_t edge_bytes = width * static_cast<int64_t>(sizeof(T)) / cut.count;
  over_rows(attention.csr, executor, cut.count, edge_bytes, [&](int64_t s, const Work& work) {
    with_slice<T, kMaxVectors>(cut, cut[s], [&](auto lanes, auto vectors, auto weighting) {
      run<T, decltype(lanes)::value, decltype(vectors)::value, decltype(weighting)::value>(
          args, cut[s], cut.head_width, work);
    });
  });
  over_split_rows(attention.csr, executor, [&](int64_t row, int64_t first, int64_t last) {
    join<T>(args, row, first, last);
  });
}

}  // namespace

namespace JAXGNN_ISA {

void attention(const AttentionForwardArgs& args, const Executor& executor) {
  if (args.attention.csr.num_rows == 0 || args.attention.width == 0) return;
  with_type(args.attention.type, [&](auto type) { forward<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn
