// Scores that are scaled dot products.
#include "cuda/attention/pair_attention.cuh"

namespace jaxgnn::attention {
namespace {

// scale key_scale <at_row, at_column>.
struct Dot {
  static constexpr bool kScalesKeys = true;
  static constexpr bool kScalesRows = false;
  static constexpr bool kVector = false;      // no parameter of its own
  static constexpr bool kSharedRows = false;  // values are not the keys

  template <typename A>
  __device__ static A term(A at_row, A at_column, A, A) {
    return at_row * at_column;
  }
  template <typename A>
  __device__ static A score(A sum, A scale) {
    return sum * scale;
  }
  // The derivative of a term, but for `factor`.
  template <typename A>
  __device__ static A derivative(A, A at_column, A) {
    return at_column;
  }
  template <typename A>
  __device__ static A factor(A, A scale) {
    return scale;
  }
};

}  // namespace

cudaError_t launch_dot_attention(const PairForwardArgs& args, const Launch& launch) {
  return launch_pair_attention<Dot>(args, launch);
}
cudaError_t launch_dot_attention_gradients(const PairGradientArgs& args, const Launch& launch) {
  return launch_pair_gradients<Dot>(args, launch);
}

}  // namespace jaxgnn::attention
