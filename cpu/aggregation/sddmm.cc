#include "cpu/aggregation/sddmm.h"

#include "cpu/aggregation/row_lanes.h"
#include "cpu/core/dot.h"

namespace jaxgnn::aggregation {
namespace {

template <class T>
void dots(const SddmmArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  constexpr int kFull = kLanes<T>;
  const int64_t width = args.width, heads = args.heads, head_width = width / heads;
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
  const T* rows = static_cast<const T*>(args.a);
  const T* columns = static_cast<const T*>(args.b);
  A* out = static_cast<A*>(args.out);
  const Rows csr = args.rows;
  over_edges(csr, executor, bytes, [=](int64_t row, int64_t e, int64_t index) {
    prefetch_ahead(csr, e, columns, width, bytes);
    const T* a = rows + row * width;
    const T* b = columns + index * width;
    auto term = [a, b](auto lanes, int64_t f) {
      constexpr int N = decltype(lanes)::value;
      return load<N>(a + f) * load<N>(b + f);
    };
    for (int64_t h = 0; h < heads; ++h) {
      out[e * heads + h] = sum_terms<A, kFull>(h * head_width, (h + 1) * head_width, term);
    }
  });
}

// The same for heads of kWidth features, few. A loop over a short row would cost more for where it
// ends than for its edges: the row of each edge is written down first, for some hundred of them.
template <class T, int kWidth, bool kOneHead>
void narrow_dots(const SddmmArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  constexpr int kFull = kWidth < kLanes<T> ? kWidth : kLanes<T>;
  constexpr int64_t kTogether = 512;
  const int64_t heads = kOneHead ? 1 : args.heads, width = heads * kWidth;
  const bool near = stays_near(args.num_columns, width * static_cast<int64_t>(sizeof(T)));
  const T* rows = static_cast<const T*>(args.a);
  const T* columns = static_cast<const T*>(args.b);
  A* out = static_cast<A*>(args.out);
  const Rows csr = args.rows;
  const int64_t edges = csr.num_edges, items = item_count(executor, edges, 32);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = edges * (item + 1) / items;
    int32_t row_of_edge[kTogether];
    int64_t begin = edges * item / items;
    for (int64_t row = row_of(csr, begin); begin < last; begin += kTogether) {
      const int64_t end = min_of(begin + kTogether, last);
      row = write_row_ids(csr, row, begin, end, row_of_edge);
      over_neighbors(
          csr, near, begin, end,
          [=](int64_t column) { __builtin_prefetch(columns + column * width); },
          [=, &row_of_edge](int64_t e, int64_t column) {
            for (int64_t h = 0; h < heads; ++h) {
              const T* a = rows + row_of_edge[e - begin] * width + h * kWidth;
              const T* b = columns + column * width + h * kWidth;
              if constexpr (kWidth == 1) {  // GCC keeps a vector of one lane in memory
                out[e * heads + h] = load<1>(a)[0] * load<1>(b)[0];
              } else {
                out[e * heads + h] = sum_terms<A, kFull>(0, kWidth, [a, b](auto lanes, int64_t f) {
                  constexpr int N = decltype(lanes)::value;
                  return load<N>(a + f) * load<N>(b + f);
                });
              }
            }
          });
    }
  });
}

template <class T, int kWidth>
void narrow_dots(const SddmmArgs& args, const Executor& executor) {
  args.heads == 1 ? narrow_dots<T, kWidth, true>(args, executor)
                  : narrow_dots<T, kWidth, false>(args, executor);
}

}  // namespace

namespace JAXGNN_ISA {

void sddmm(const SddmmArgs& args, const Executor& executor) {
  if (args.rows.num_edges == 0 || args.heads == 0) return;
  with_type(args.type, [&](auto type) {
    using T = decltype(type);
    switch (args.width / args.heads) {
      case 1:
        return narrow_dots<T, 1>(args, executor);
      case 2:
        return narrow_dots<T, 2>(args, executor);
      case 4:
        return narrow_dots<T, 4>(args, executor);
      default:
        return dots<T>(args, executor);
    }
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
