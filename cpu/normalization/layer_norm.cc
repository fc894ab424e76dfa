#include "cpu/normalization/layer_norm.h"

#include "cpu/core/moments.h"

namespace jaxgnn::normalization {
namespace {

template <class T>
void normalize_rows(const LayerNormArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  const A *scale = static_cast<const A*>(args.scale), *bias = static_cast<const A*>(args.bias);
  const int64_t bytes = 2 * args.width * static_cast<int64_t>(sizeof(T));
  over_blocks(executor, args.num_rows, bytes, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.width;
      T* out = static_cast<T*>(args.out) + row * args.width;
      const Moments<A> moments = moments_of(x, args.width, args.epsilon);
      over_vectors<T>(args.width, [&](auto lanes, int64_t f) {
        constexpr int N = decltype(lanes)::value;
        const auto n = (load<N>(x + f) - moments.mean) * moments.inverse_deviation;
        store<N>(out + f, n * load<N>(scale + f) + load<N>(bias + f));
      });
    }
  });
}

// One row. With t = scale g, dx = (t - mean(t) - n mean(t n)) / deviation of the normalized row n;
// g n and g are added to `sums`.
template <class T>
void row_gradient(const LayerNormGradientArgs& args, int64_t row, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<T>;
  const int64_t width = args.width;
  const T* x = static_cast<const T*>(args.x) + row * width;
  const T* g = static_cast<const T*>(args.gradient) + row * width;
  T* dx = static_cast<T*>(args.dx) + row * width;
  const A* scale = static_cast<const A*>(args.scale);
  const Moments<A> moments = moments_of(x, width, args.epsilon);
  const A mean = moments.mean, inverse = moments.inverse_deviation;
  const A sum = sum_terms<A, N>(0, width, [&](auto lanes, int64_t f) {
    constexpr int M = decltype(lanes)::value;
    return load<M>(scale + f) * load<M>(g + f);
  });
  const A product = sum_terms<A, N>(0, width, [&](auto lanes, int64_t f) {
    constexpr int M = decltype(lanes)::value;
    return load<M>(scale + f) * load<M>(g + f) * ((load<M>(x + f) - mean) * inverse);
  });
  const A mean_sum = sum / static_cast<A>(width), mean_product = product / static_cast<A>(width);
  over_vectors<T>(width, [&](auto lanes, int64_t f) {
    constexpr int M = decltype(lanes)::value;
    const auto own = load<M>(g + f), n = (load<M>(x + f) - mean) * inverse;
    A* const of_scale = sums + f;
    A* const of_bias = sums + width + f;
    store<M>(of_scale, load<M>(of_scale) + own * n);
    store<M>(of_bias, load<M>(of_bias) + own);
    store<M>(dx + f, (load<M>(scale + f) * own - mean_sum - n * mean_product) * inverse);
  });
}

template <class T>
void gradients(const LayerNormGradientArgs& args, const Executor& executor) {
  using A = Accumulator<T>;
  sum_over_rows(executor, args.num_rows, args.num_blocks, 2 * args.width,
                static_cast<A*>(args.partials), static_cast<A*>(args.sums),
                [&](int64_t row, A* sums) { row_gradient<T>(args, row, sums); });
}

}  // namespace

namespace JAXGNN_ISA {

void layer_norm(const LayerNormArgs& args, const Executor& executor) {
  if (args.num_rows == 0) return;
  with_type(args.type, [&](auto type) { normalize_rows<decltype(type)>(args, executor); });
}

void layer_norm_gradient(const LayerNormGradientArgs& args, const Executor& executor) {
  with_type(args.type, [&](auto type) { gradients<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::normalization
