// The gradients. With c the LeakyReLU's slope, w the weight after dropout and delta = <dy, y>,
//   dv[j] = sum_e w dy[i],   dscore[j] = <v[j], sum_e c w dy[i]> - sum_e c alpha delta[i],
//   dscore[i] = <dy[i], sum_e c w v[j]> - delta[i] sum_e c alpha:
// sums of rows, and no dot product for each edge. edge_weights.cuh says why half of the rows are
// enough for the last.
#include "cuda/attention/walk.cuh"

namespace jaxgnn::attention {
namespace {

template <typename T, Pass kPass>
cudaError_t launch_type(const AttentionGradientArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  constexpr bool kBySenders = kPass == Pass::kSenders;
  const AttentionArgs& from = args.attention;
  const End<A> senders = senders_of<A>(from);
  const End<A> receivers = receivers_of<A>(args);
  A* scratch = static_cast<A*>(args.scratch);
  RowParams<T> p{};
  p.rows = from.rows;
  p.scoring = make_scoring<A>(from);
  p.at_row = kBySenders ? senders : receivers;
  p.at_column = kBySenders ? receivers : senders;
  p.x = static_cast<const T*>(kBySenders ? args.cotangent : from.values);
  p.own = static_cast<const T*>(kBySenders ? from.values : args.cotangent);
  p.out = static_cast<T*>(args.values_gradient);
  p.partials = static_cast<A*>(args.partials);
  p.dots = scratch + 4 * from.num_columns * from.heads;
  p.sides = kBySenders ? nullptr : reinterpret_cast<int*>(scratch + sides_offset(from));
  p.partials_stride = from.width + from.heads;
  p.width = from.width;
  p.head_width = static_cast<int>(from.heads > 0 ? from.width / from.heads : 0);
  p.row_bytes = static_cast<unsigned>(from.width * sizeof(T));
  return walk_rows<T, kPass>(p, scratch, static_cast<A*>(args.scores_gradient), launch);
}

}  // namespace

cudaError_t launch_attention_senders(const AttentionGradientArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.attention)) return cudaSuccess;
  return with_type(launch, args.attention.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type, Pass::kSenders>(args, launch);
  });
}

cudaError_t launch_attention_receivers(const AttentionGradientArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.attention)) return cudaSuccess;
  // The edges' gradients are made of dot products on edges, and the rows' are sums of them.
  if (launch.load || args.edge_gradient != nullptr) {
    JAXGNN_TRY(launch_attention_edges(args, launch));
    if (!launch.load) return cudaSuccess;
  }
  if (args.loop_gradient != nullptr) JAXGNN_TRY(launch_attention_loops(args, launch));
  return with_type(launch, args.attention.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type, Pass::kReceivers>(args, launch);
  });
}

}  // namespace jaxgnn::attention
