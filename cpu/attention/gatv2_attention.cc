#include "cpu/attention/pair_attention.h"
#include "cpu/attention/pair_walk.h"

namespace jaxgnn::attention {
namespace {

// <vector, LeakyReLU(at_row + at_column)>; what is averaged are the keys.
struct Gatv2 {
  static constexpr bool kScalesKeys = false;
  static constexpr bool kVector = true;
  static constexpr bool kSharedRows = true;

  // The LeakyReLU of the sum, by which the vector is multiplied.
  template <class V, class A>
  static JAXGNN_INLINE V activation(V at_row, V at_column, A slope) {
    const V sum = at_row + at_column;
    return sum * slopes_of(sum, slope);
  }
  template <class V, class A>
  static JAXGNN_INLINE V term(V at_row, V at_column, V vector, A slope) {
    return vector * activation(at_row, at_column, slope);
  }
  template <class A>
  static JAXGNN_INLINE A score(A sum, A) {
    return sum;
  }
  template <class V, class A>
  static JAXGNN_INLINE V derivative(V at_row, V at_column, A slope) {
    return slopes_of(at_row + at_column, slope);
  }
  template <class V, class A>
  static JAXGNN_INLINE V factor(V vector, A) {
    return vector;
  }
};

}  // namespace

namespace JAXGNN_ISA {

void gatv2_attention(const PairForwardArgs& args, const Executor& executor) {
  pair_attention<Gatv2>(args, executor);
}

void gatv2_attention_gradients(const PairGradientArgs& args, const Executor& executor) {
  pair_attention_gradients<Gatv2>(args, executor);
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::attention
