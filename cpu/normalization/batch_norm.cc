#include "cpu/normalization/batch_norm.h"

#include "cpu/core/moments.h"

namespace jaxgnn::normalization {
namespace {

// One row, whose terms are added to `sums`.
template <bool kGradient, class T>
void add_row(const CenteredSumsArgs& args, int64_t row, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  if (args.mask != nullptr && !args.mask[row]) return;
  const int64_t width = args.width;
  const T* x = static_cast<const T*>(args.x) + row * width;
  const T* gradient = static_cast<const T*>(args.gradient) + (kGradient ? row * width : 0);
  const A* shift = static_cast<const A*>(args.shift);
  over_vectors<T>(width, [&](auto lanes, int64_t f) {
    constexpr int N = decltype(lanes)::value;
    const auto centered = load<N>(x + f) - load<N>(shift + f);
    auto own = centered, product = centered * centered;
    if constexpr (kGradient) {
      own = load<N>(gradient + f);
      product = own == 0 ? own : own * centered;
    }
    A* const products = sums + width + f;
    store<N>(sums + f, load<N>(sums + f) + own);
    store<N>(products, load<N>(products) + product);
  });
}

template <bool kGradient, class T>
void add_rows(const CenteredSumsArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  sum_over_rows(executor, args.num_rows, args.num_blocks, 2 * args.width,
                static_cast<A*>(args.partials), static_cast<A*>(args.sums),
                [&](int64_t row, A* sums) { add_row<kGradient, T>(args, row, sums); });
}

}  // namespace

namespace JAXGNN_ISA {

void centered_sums(const CenteredSumsArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    using T = decltype(type);
    args.gradient == nullptr ? add_rows<false, T>(args, executor)
                             : add_rows<true, T>(args, executor);
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::normalization
