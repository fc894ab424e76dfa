#include "cpu/aggregation/sddmm.h"

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

}  // namespace

namespace JAXGNN_ISA {

void sddmm(const SddmmArgs& args, const Executor& executor) {
  if (args.rows.num_edges == 0 || args.heads == 0) return;
  with_type(args.type, [&](auto type) { dots<decltype(type)>(args, executor); });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
