#include "cpu/core/moments.h"
#include "cpu/maxk/cbsr.h"
#include "cpu/maxk/maxk.h"
#include "cpu/maxk/transform.h"

namespace jaxgnn::maxk {
namespace {

// One row. With t = scale g, where g has the gradients of z at the kept columns and n(x) is the
// normalized row, dx = (t - mean(t) - n mean(t n)) / deviation; g n and g are added to `sums`.
template <class T, class Index>
void row_gradient(const MaxkNormalizedGradientArgs& args, int64_t row, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  alignas(64) uint32_t words[kMaxWidth + kDrawn];
  A kept[kMaxWidth];
  const int64_t width = args.cbsr.width, k = args.cbsr.k;
  const T* x = static_cast<const T*>(args.x) + row * width;
  const T* gradient = values_of<T>(args.cbsr, row);
  const Index* columns = indices_of<Index>(args.cbsr, row);
  const A* scale = static_cast<const A*>(args.scale);
  const Moments<A> moments = moments_of(x, width, args.epsilon);
  const A inverse = moments.inverse_deviation, mean = moments.mean;
  const A keep = static_cast<A>(keep_scale(args.drop_below));
  if (args.key != nullptr) draw_words(static_cast<uint64_t>(row), args.key, width, words);

  const auto normalized = [&](int64_t f) { return (load<1>(x + f)[0] - mean) * inverse; };
  A sum = 0, product = 0;
  for (int64_t c = 0; c < k; ++c) {
    const int64_t f = columns[c];
    A g = load<1>(gradient + c)[0];
    if (args.key != nullptr) g = words[f] >= args.drop_below ? g * keep : A{0};
    const A n = normalized(f), t = scale[f] * g;
    sums[f] += g * n;
    sums[width + f] += g;
    sum += t;
    product += t * n;
    kept[c] = t;
  }
  const A count = static_cast<A>(width);
  const A mean_sum = sum / count, mean_product = product / count;

  T* dx = static_cast<T*>(args.dx) + row * width;
  over_vectors<T>(width, [&](auto lanes, int64_t f) {  // as if no entry were kept
    constexpr int N = decltype(lanes)::value;
    const auto n = (load<N>(x + f) - mean) * inverse;
    store<N>(dx + f, (n * mean_product + mean_sum) * -inverse);
  });
  for (int64_t c = 0; c < k; ++c) {
    const A others = normalized(columns[c]) * mean_product + mean_sum;
    store<1>(dx + columns[c], Sum<T, 1>{} + (kept[c] - others) * inverse);
  }
}

template <class T, class Index>
void gradients(const MaxkNormalizedGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  sum_over_rows(executor, args.cbsr.num_rows, args.num_blocks, 2 * args.cbsr.width,
                static_cast<A*>(args.partials), static_cast<A*>(args.sums),
                [&](int64_t row, A* sums) { row_gradient<T, Index>(args, row, sums); });
}

}  // namespace

namespace JAXGNN_ISA {

void maxk_normalized_gradient(const MaxkNormalizedGradientArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.width > 256,
               [&](auto index) { gradients<decltype(type), decltype(index)>(args, executor); });
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::maxk
