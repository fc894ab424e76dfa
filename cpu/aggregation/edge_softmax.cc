// The softmax of edge scores over each row, while a row's scores are in the cache.
//
// A row is read three times: its maxima, the exponentials and their sums, which are written, and
// the quotients. Of rows in chunks each chunk has its maxima and sums first.
#include "cpu/aggregation/edge_softmax.h"

#include "cpu/core/edge_values.h"
#include "cpu/core/softmax.h"

namespace jaxgnn::aggregation {
namespace {

// The heads of a block, in vectors of N lanes.
template <class A, int N, bool kPacked>
class Softmax {
 public:
  Softmax(const EdgeSoftmaxArgs& args, const HeadBlock& block) : args_(args), block_(block) {}

  // The rows [first, last), without those in chunks.
  JAXGNN_OUTLINE void whole_rows(int64_t first, int64_t last) const {
    const Rows& csr = args_.rows;
    const int64_t longest = longest_whole_row(csr);
    const auto is_whole = [&](int64_t row) {
      return row_begin(csr, row + 1) - row_begin(csr, row) <= longest;
    };
    while (first < last) {
      // A vector may be written past a row where whole rows follow that are not written yet.
      int64_t run = csr.num_chunks == 0 ? last : first;
      while (run < last && is_whole(run)) ++run;
      const int64_t end = row_begin(csr, run);
      for (int64_t row = first; row < run; ++row) {
        const int64_t begin = row_begin(csr, row);
        one_row(begin, max_of(row_begin(csr, row + 1), begin), end);
      }
      first = run + 1;
    }
  }

  // The maxima of a chunk, and the sums of the exponentials relative to them.
  JAXGNN_OUTLINE void reduce_chunk(const Work& work) const {
    const auto row = scores_of(work.begin, work.end);
    const V most = find_maxima(row);
    V total{};
    over_values<N>(row, kLowest, [&](V v) { total += exponential<A, N>(v - base_of<A>(most)); });
    total = combined(total, plus);
    A* partials = static_cast<A*>(args_.partials) + work.part * 2 * args_.heads + block_.first;
    for (int h = 0; h < block_.heads; ++h) {
      partials[h] = most[h];
      partials[args_.heads + h] = total[h];
    }
  }

  // Writes a chunk, given the maxima and sums of its row, which each of its chunks has.
  JAXGNN_OUTLINE void finish_chunk(const Work& work) const {
    const A* of_row = static_cast<const A*>(args_.partials) + work.part * 2 * args_.heads;
    V most{}, total{};
    for (int l = 0; l < N; ++l) {
      if (!kPacked && l >= block_.heads) break;
      const int64_t head = block_.first + l % block_.heads;
      most[l] = of_row[head];
      total[l] = of_row[args_.heads + head];
    }
    write(scores_of(work.begin, work.end), results_of(work.begin, work.end, work.end),
          base_of<A>(most), divisor_of(total));
  }

 private:
  using V = Vector<A, N>;
  static constexpr A kLowest = -kInfinity<A>;
  static constexpr auto plus = [](V a, V b) { return a + b; };
  static constexpr auto larger = [](V a, V b) { return maximum(a, b); };

  RowValues<const A> scores_of(int64_t begin, int64_t end) const {
    return row_values<N, kPacked>(static_cast<const A*>(args_.scores), block_, begin, end,
                                  args_.rows.num_edges);
  }
  // Where the results of [begin, end) go; those before the edge `last` are free.
  RowValues<A> results_of(int64_t begin, int64_t end, int64_t last) const {
    return row_values<N, kPacked>(static_cast<A*>(args_.out), block_, begin, end, last);
  }
  static JAXGNN_INLINE void put(const RowValues<A>& to, int64_t vector, V v) {
    A* at = to.values + vector * to.step;
    if (vector < to.full || to.whole) {
      store<N>(at, v);
    } else {
      store_few<N>(at, v, to.rest);
    }
  }

  template <class F>
  JAXGNN_INLINE V combined(V v, const F& combine) const {
    return kPacked ? over_lanes<A, N>(v, block_.heads, combine) : v;
  }
  JAXGNN_INLINE V find_maxima(const RowValues<const A>& row) const {
    V most = V{} + kLowest;
    over_values<N>(row, kLowest, [&](V v) { most = maximum(most, v); });
    return combined(most, larger);
  }
  static JAXGNN_INLINE void write(const RowValues<const A>& row, const RowValues<A>& to, V most,
                                  V total) {
    int64_t vector = 0;
    over_values<N>(row, kLowest,
                   [&](V v) { put(to, vector++, exponential<A, N>(v - most) / total); });
  }

  JAXGNN_INLINE void one_row(int64_t begin, int64_t end, int64_t last) const {
    const auto row = scores_of(begin, end);
    const auto to = results_of(begin, end, last);
    if (row.full == 0) {  // in registers
      if (row.rest == 0) return;
      const V v = load_rest<N>(row, kLowest);
      const V power = exponential<A, N>(v - base_of<A>(combined(v, larger)));
      put(to, 0, power / divisor_of(combined(power, plus)));
      return;
    }
    const V most = base_of<A>(find_maxima(row));
    V total{};
    if (!kPacked) {
      // A vector written has the next edge's place at its end: exponentials are made twice.
      over_values<N>(row, kLowest, [&](V v) { total += exponential<A, N>(v - most); });
      return write(row, to, most, divisor_of(total));
    }
    int64_t vector = 0;
    over_values<N>(row, kLowest, [&](V v) {
      const V power = exponential<A, N>(v - most);
      total += power;
      put(to, vector++, power);
    });
    total = divisor_of(combined(total, plus));
    vector = 0;
    over_values<N>(to, A{0}, [&](V v) { put(to, vector++, v / total); });
  }

  const EdgeSoftmaxArgs& args_;
  const HeadBlock block_;
};

// Joins the maxima and sums of a row's chunks, in each of them.
template <class A>
void join_chunks(const EdgeSoftmaxArgs& args, int64_t first, int64_t last) {
  const int64_t heads = args.heads;
  A* partials = static_cast<A*>(args.partials);
  for (int64_t h = 0; h < heads; ++h) {
    A most = partials[first * 2 * heads + h];
    for (int64_t part = first + 1; part < last; ++part) {
      most = maximum(most, partials[part * 2 * heads + h]);
    }
    A total = 0;
    for (int64_t part = first; part < last; ++part) {
      const A* of_part = partials + part * 2 * heads + h;
      total += of_part[heads] * exponential(of_part[0] - base_of<A>(most));
    }
    for (int64_t part = first; part < last; ++part) {
      partials[part * 2 * heads + h] = most;
      partials[part * 2 * heads + heads + h] = total;
    }
  }
}

// Calls f(softmax) for the heads, block by block.
template <class A, class F>
JAXGNN_INLINE void over_blocks(const EdgeSoftmaxArgs& args, const F& f) {
  with_head_lanes<A>(args.heads, [&](auto lanes, auto packed) {
    constexpr int N = decltype(lanes)::value;
    over_head_blocks<N>(args.heads, [&](const HeadBlock& block) {
      f(Softmax<A, N, decltype(packed)::value != 0>(args, block));
    });
  });
}

template <class A>
void normalize(const EdgeSoftmaxArgs& args, const Executor& executor) {
  const Rows& csr = args.rows;
  const int64_t edge_bytes = 32 * args.heads;  // an exponential costs as much as that
  over_rows(csr, executor, 1, edge_bytes, [&](int64_t, const Work& work) {
    over_blocks<A>(args, [&](const auto& softmax) {
      if (work.part < 0) {
        softmax.whole_rows(work.first, work.last);
      } else {
        softmax.reduce_chunk(work);
      }
    });
  });
  over_chunked_rows(csr, executor, [&](int64_t, int64_t first, int64_t last) {
    join_chunks<A>(args, first, last);
  });
  parallel_for(executor, csr.num_chunks, [&](int64_t part) {
    const Work work = chunk_at(csr, part);
    if (work.first == work.last) return;
    over_blocks<A>(args, [&](const auto& softmax) { softmax.finish_chunk(work); });
  });
  // Edges of no row.
  const int64_t last = row_begin(csr, csr.num_rows);
  std::memset(static_cast<A*>(args.out) + last * args.heads, 0,
              (csr.num_edges - last) * args.heads * sizeof(A));
}

}  // namespace

namespace JAXGNN_ISA {

void edge_softmax(const EdgeSoftmaxArgs& args, const Executor& executor) {
  if (args.rows.num_edges == 0 || args.heads == 0) return;
  if (args.type == Type::kF64) {
    normalize<double>(args, executor);
  } else {
    normalize<float>(args, executor);
  }
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
