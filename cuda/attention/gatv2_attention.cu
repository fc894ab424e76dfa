// GATv2's scores: a vector's product with the LeakyReLU of the two ends' sum.
#include "cuda/attention/pair_attention.cuh"

namespace jaxgnn::attention {
namespace {

// <vector, LeakyReLU(at_row + at_column)>; what is averaged are the keys.
struct Gatv2 {
  static constexpr bool kScalesKeys = false;
  static constexpr bool kScalesRows = false;
  static constexpr bool kVector = true;
  static constexpr bool kSharedRows = true;

  // The LeakyReLU of the sum, by which the vector is multiplied.
  template <typename A>
  __device__ static A activation(A at_row, A at_column, A slope) {
    const A sum = at_row + at_column;
    return sum > A(0) ? sum : sum * slope;
  }
  template <typename A>
  __device__ static A term(A at_row, A at_column, A vector, A slope) {
    return vector * activation(at_row, at_column, slope);
  }
  template <typename A>
  __device__ static A score(A sum, A) {
    return sum;
  }
  template <typename A>
  __device__ static A derivative(A at_row, A at_column, A slope) {
    return at_row + at_column > A(0) ? A(1) : slope;
  }
  template <typename A>
  __device__ static A factor(A vector, A) {
    return vector;
  }
};

}  // namespace

cudaError_t launch_gatv2_attention(const PairForwardArgs& args, const Launch& launch) {
  return launch_pair_attention<Gatv2>(args, launch);
}
cudaError_t launch_gatv2_attention_gradients(const PairGradientArgs& args, const Launch& launch) {
  return launch_pair_gradients<Gatv2>(args, launch);
}

}  // namespace jaxgnn::attention
