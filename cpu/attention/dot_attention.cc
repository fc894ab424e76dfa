#include "cpu/attention/pair_attention.h"
#include "cpu/attention/pair_walk.h"

namespace jaxgnn::attention {
namespace {

// scale key_scale <at_row, at_column>.
struct Dot {
  static constexpr bool kScalesKeys = true;
  static constexpr bool kVector = false;      // no parameter of its own
  static constexpr bool kSharedRows = false;  // values are not the keys

  template <class V, class A>
  static JAXGNN_INLINE V term(V at_row, V at_column, V, A) {
    return at_row * at_column;
  }
  template <class A>
  static JAXGNN_INLINE A score(A sum, A scale) {
    return sum * scale;
  }
  // The derivative of a term, but for `factor`.
  template <class V, class A>
  static JAXGNN_INLINE V derivative(V, V at_column, A) {
    return at_column;
  }
  template <class V, class A>
  static JAXGNN_INLINE V factor(V, A scale) {
    return V{} + scale;
  }
};

}  // namespace

namespace JAXGNN_ISA {

void dot_attention(const PairForwardArgs& args, const Executor& executor) {
  pair_attention<Dot>(args, executor);
}

void dot_attention_gradients(const PairGradientArgs& args, const Executor& executor) {
  pair_attention_gradients<Dot>(args, executor);
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::attention
