#include "cpu/attention/pair_attention.h"
#include "cpu/attention/pair_walk.h"

namespace jaxgnn::attention {
namespace {

// <vector, LeakyReLU(near + far)>; what is averaged are the keys.
struct Gatv2 {
  static constexpr bool kScalesKeys = false;
  static constexpr bool kVector = true;
  static constexpr bool kSharedRows = true;

  // The LeakyReLU of the sum, by which the vector is multiplied.
  template <class V, class A>
  static JAXGNN_INLINE V activation(V near, V far, A slope) {
    const V sum = near + far;
    return sum * slopes_of(sum, slope);
  }
  template <class V, class A>
  static JAXGNN_INLINE V term(V near, V far, V vector, A slope) {
    return vector * activation(near, far, slope);
  }
  template <class A>
  static JAXGNN_INLINE A score(A sum, A) {
    return sum;
  }
  template <class V, class A>
  static JAXGNN_INLINE V derivative(V near, V far, A slope) {
    return slopes_of(near + far, slope);
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
