// Scores that are scaled dot products.
#include "cuda/attention/pair_attention.cuh"

namespace jaxgnn::attention {
namespace {

// scale key_scale <near, far>.
struct Dot {
  static constexpr bool kScalesKeys = true;
  static constexpr bool kScalesRows = false;
  static constexpr bool kVector = false;      // no parameter of its own
  static constexpr bool kSharedRows = false;  // values are not the keys
  static constexpr bool kBySenders = true;

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

// The same where the values are the keys, as AGNN's, which are then read once. Not by senders,
// where there are two gradients even so: who gave the same rows twice need not add them.
struct DotOfValues : Dot {
  static constexpr bool kSharedRows = true;
  static constexpr bool kBySenders = false;
};

bool values_are_keys(const PairArgs& args) {
  const int64_t width = args.attention.heads * args.head_width;
  return args.keys == args.attention.values && width == args.attention.width;
}

}  // namespace

cudaError_t launch_dot_attention(const PairForwardArgs& args, const Launch& launch) {
  const bool shared = values_are_keys(args.pair);
  if (launch.load || shared) JAXGNN_TRY(launch_pair_attention<DotOfValues>(args, launch));
  if (launch.load || !shared) JAXGNN_TRY(launch_pair_attention<Dot>(args, launch));
  return cudaSuccess;
}
cudaError_t launch_dot_attention_gradients(const PairGradientArgs& args, const Launch& launch) {
  const bool shared = !args.by_senders && values_are_keys(args.pair);
  if (launch.load || shared) JAXGNN_TRY(launch_pair_gradients<DotOfValues>(args, launch));
  if (launch.load || !shared) JAXGNN_TRY(launch_pair_gradients<Dot>(args, launch));
  return cudaSuccess;
}

}  // namespace jaxgnn::attention
