// Scores that are scaled dot products.
#include "pair_attention.cuh"

namespace jaxgnn {
namespace {

// scale key_scale <near, far>.
struct Dot {
  static constexpr bool kScalesKeys = true;
  static constexpr bool kVector = false;      // no parameter of its own
  static constexpr bool kSharedRows = false;  // values are not the keys

  template <typename A>
  __device__ static A term(A near, A far, A, A) {
    return near * far;
  }
  template <typename A>
  __device__ static A score(A sum, A scale) {
    return sum * scale;
  }
  // The derivative of a term, but for `factor`.
  template <typename A>
  __device__ static A derivative(A, A far, A) {
    return far;
  }
  template <typename A>
  __device__ static A factor(A, A scale) {
    return scale;
  }
};

}  // namespace

cudaError_t launch_dot_attention(const PairForwardArgs& args, cudaStream_t stream) {
  return launch_pair_attention<Dot>(args, stream);
}
cudaError_t launch_dot_attention_gradients(const PairGradientArgs& args, cudaStream_t stream) {
  return launch_pair_gradients<Dot>(args, stream);
}
cudaError_t load_dot_attention() { return load_pair_kernels<Dot>(); }

}  // namespace jaxgnn
