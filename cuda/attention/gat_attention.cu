// The forward pass: a softmax that is scaled as it goes, in the pass that sums the rows.
#include "cuda/attention/walk.cuh"

namespace jaxgnn::attention {
namespace {

template <typename T>
cudaError_t launch_type(const AttentionForwardArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const AttentionArgs& from = args.attention;
  RowParams<T> p{};
  p.rows = from.rows;
  p.scoring = make_scoring<A>(from);
  p.at_row = {static_cast<const A*>(args.receiver_scores), nullptr, nullptr, from.heads};
  p.at_column = senders_of<A>(from);
  p.x = static_cast<const T*>(from.values);
  p.out = static_cast<T*>(args.out);
  p.log_sum = static_cast<A*>(args.log_sum);
  p.partials = static_cast<A*>(args.partials);
  p.partials_stride = from.width + 2 * from.heads;
  p.width = from.width;
  p.head_width = static_cast<int>(from.heads > 0 ? from.width / from.heads : 0);
  p.row_bytes = static_cast<unsigned>(from.width * sizeof(T));
  return walk_rows<T, Pass::kForward>(p, static_cast<A*>(args.scratch), nullptr, launch);
}

}  // namespace

cudaError_t launch_attention(const AttentionForwardArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.attention)) return cudaSuccess;
  return with_type(launch, args.attention.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::attention
