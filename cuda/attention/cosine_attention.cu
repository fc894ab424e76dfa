// Attention by cosines, forward: dot products of raw rows, which both ends' norms scale.
#include "cuda/attention/cosine_attention.h"
#include "cuda/attention/pair_attention.cuh"

namespace jaxgnn::attention {
namespace {

// row_scale key_scale <at_row, at_column>.
struct Cosine {
  static constexpr bool kScalesKeys = true;
  static constexpr bool kScalesRows = true;
  static constexpr bool kVector = false;
  static constexpr bool kSharedRows = true;

  template <typename A>
  __device__ static A term(A at_row, A at_column, A, A) {
    return at_row * at_column;
  }
  template <typename A>
  __device__ static A score(A sum, A) {
    return sum;
  }
};

template <typename T>
cudaError_t forward(const CosineForwardArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  constexpr int V = 16 / sizeof(T);
  PairArgs pair{};
  pair.attention = args.attention;
  pair.queries = pair.keys = args.attention.values;
  pair.key_scale = args.column_scale;
  pair.head_width = launch.load ? 0 : args.attention.width / args.attention.heads;
  PairParams<T> p = pair_params<T>(pair);
  p.row_scale = static_cast<const A*>(args.row_scale);
  p.out = static_cast<T*>(args.out);
  p.log_sum = static_cast<A*>(args.log_sum);
  p.partials = static_cast<A*>(args.partials);
  if (launch.load || p.F / V <= 8) {
    JAXGNN_TRY((launch_pairs<Cosine, T, Pass::kForward, V, 1, true, true>(p, launch)));
  }
  if (launch.load || p.F / V > 8) {
    JAXGNN_TRY((launch_pairs<Cosine, T, Pass::kForward, V, 2, true, true>(p, launch)));
  }
  return join_forward<T>(p, p.heads, p.G, launch);
}

}  // namespace

cudaError_t launch_cosine_attention(const CosineForwardArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.attention)) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.attention.type,
                   [&](auto tag) { return forward<typename decltype(tag)::type>(args, launch); });
}

}  // namespace jaxgnn::attention
