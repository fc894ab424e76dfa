// The derivative of extrema over neighbors, of rows narrower than a vector. Products are compared
// exactly as the reduction computes them: this file is compiled without contraction to fused
// multiply-adds.
#include "cpu/aggregation/narrow_rows.h"
#include "cpu/aggregation/row_lanes.h"

namespace jaxgnn::aggregation {
namespace {

template <class T, class Lanes>
struct Attained {
  using A = Accumulator<T>;
  using V = typename Lanes::V;
  using Reduced = typename Lanes::Values;

  const ExtremumArgs& args;
  const Lanes lanes;

  JAXGNN_INLINE Reduced reduce(int64_t row, int64_t begin, int64_t end) const {
    if (args.weights == nullptr) return reduce_edges<false, false>(row, begin, end);
    return args.transpose ? reduce_edges<true, true>(row, begin, end)
                          : reduce_edges<true, false>(row, begin, end);
  }

  template <bool kWeighted, bool kTranspose>
  JAXGNN_INLINE Reduced reduce_edges(int64_t row, int64_t begin, int64_t end) const {
    const int64_t width = lanes.width;
    // The row's own operand stays put, the other is gathered.
    const T* own = static_cast<const T*>(args.transpose ? args.x : args.y) + row * width;
    const T* other = static_cast<const T*>(args.transpose ? args.y : args.x);
    const T* values = static_cast<const T*>(args.values);
    const A* weights = static_cast<const A*>(args.weights);
    const A* scale = static_cast<const A*>(args.scale);
    const Reduced mine = lanes.load_row(own);
    Reduced sums{};
    over_neighbors(
        args.rows, false, begin, end,
        [=, this](int64_t column) {
          lanes.prefetch_row(other + column * width);
          lanes.prefetch_row(values + column * width);
        },
        [&](int64_t e, int64_t column) {
          sums.each([&](V& sum, int k) {
            const V theirs = lanes.load_part(other + column * width, k);
            V term = lanes.load_part(values + column * width, k);
            V a = theirs, b = mine.of[k];
            if constexpr (kWeighted) {
              V& product = kTranspose ? b : a;
              product = Lanes::rounded(weights[e] * product);
              term = scale[e] * term;
            }
            sum += a == b ? term : V{};
          });
        });
    return sums;
  }

  JAXGNN_INLINE void finish(int64_t row, int64_t, const Reduced& sums) const {
    lanes.store_row(static_cast<T*>(args.out) + row * lanes.width, sums);
  }

  static JAXGNN_INLINE Reduced unite(Reduced a, const Reduced& b) {
    a.each([&](V& v, int k) { v += b.of[k]; });
    return a;
  }
  JAXGNN_INLINE void store_partial(int64_t part, const Reduced& sums) const {
    lanes.store_row(partial_of<A>(args, part), sums);
  }
  JAXGNN_INLINE Reduced load_partial(int64_t part) const {
    return lanes.load_row(partial_of<A>(args, part));
  }
};

}  // namespace

namespace JAXGNN_ISA {

bool takes_narrow_extremum(const ExtremumArgs& args) { return takes_row_lanes(args, true); }

void narrow_spmm_extremum(const ExtremumArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    using T = decltype(type);
    with_row_lanes<T, kWidestCompared<T>>(args.width, [&](auto lanes) {
      reduce_rows(args.rows, executor, Attained<T, decltype(lanes)>{args, lanes});
    });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
