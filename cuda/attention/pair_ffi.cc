// The XLA FFI handlers of attention with scores of pairs.
#include "cuda/attention/pair_attention.h"
#include "cuda/core/ffi.h"
#include "ffi/pair_attention.h"

namespace jaxgnn::attention {
namespace {

namespace ffi = xla::ffi;

PairArgs make_pair(Check& check, const PairOperands& from, bool rows_are_senders) {
  PairArgs args{};
  take_pair(check, from, rows_are_senders, args);
  args.attention.rows = make_rows(from.row_offsets, from.columns, &from.splits, count(from.columns),
                                  from.split_length, &from.row_order);
  args.attention.type = value_type(from.keys.element_type());
  return args;
}

ffi::Error forward(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer splits,
                   AnyBuffer row_order, AnyBuffer queries, AnyBuffer keys, AnyBuffer values,
                   AnyBuffer vector, AnyBuffer key_scale, AnyBuffer edge_bias, AnyBuffer loop_bias,
                   AnyBuffer streams, Result out, Result log_sum, Result partials, int64_t score,
                   double number, int64_t heads, int64_t drop_below, int64_t self_loops,
                   int64_t split_length) {
  Check check("jaxgnn_pair_attention");
  const PairOperands from{row_offsets, columns, splits,    row_order,  queries,    keys,
                          values,      vector,  key_scale, edge_bias,  loop_bias,  streams,
                          score,       number,  heads,     drop_below, self_loops, split_length};
  PairForwardArgs args{};
  args.pair = make_pair(check, from, false);
  take_pair_results(check, from, *out, *log_sum, *partials, args);
  if (check.failed()) return check.error();
  const auto launch = from.shares_rows() ? launch_gatv2_attention : launch_dot_attention;
  return status("jaxgnn_pair_attention", launch(args, stream));
}

ffi::Error gradients(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer row_order, AnyBuffer permutation,
                     AnyBuffer queries, AnyBuffer keys, AnyBuffer values, AnyBuffer vector,
                     AnyBuffer key_scale, AnyBuffer edge_bias, AnyBuffer loop_bias,
                     AnyBuffer streams, AnyBuffer cotangent, AnyBuffer records, Result first,
                     Result second, Result edge_gradient, Result loop_gradient, Result partials,
                     int64_t by_senders, int64_t score, double number, int64_t heads,
                     int64_t drop_below, int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_pair_attention_gradients");
  const PairOperands from{row_offsets, columns, splits,    row_order,  queries,    keys,
                          values,      vector,  key_scale, edge_bias,  loop_bias,  streams,
                          score,       number,  heads,     drop_below, self_loops, split_length};
  PairGradientArgs args{};
  args.by_senders = by_senders != 0;
  args.pair = make_pair(check, from, args.by_senders);
  take_pair_gradients(
      check, from,
      {permutation, cotangent, records, *first, *second, *edge_gradient, *loop_gradient, *partials},
      args);
  if (check.failed()) return check.error();
  if (args.by_senders) {
    args.pair.attention.order = permutation.untyped_data();
    args.pair.attention.wide_order = permutation.element_type() == ffi::S64;
  }
  const auto launch =
      from.shares_rows() ? launch_gatv2_attention_gradients : launch_dot_attention_gradients;
  return status("jaxgnn_pair_attention_gradients", launch(args, stream));
}

XLA_FFI_DEFINE_HANDLER(forward_handler, forward,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // queries
                           .Arg<AnyBuffer>()  // keys
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // vector
                           .Arg<AnyBuffer>()  // key_scale
                           .Arg<AnyBuffer>()  // edge_bias
                           .Arg<AnyBuffer>()  // loop_bias
                           .Arg<AnyBuffer>()  // streams
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // log_sum
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("score")
                           .Attr<double>("number")
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(gradients_handler, gradients,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // permutation
                           .Arg<AnyBuffer>()  // queries
                           .Arg<AnyBuffer>()  // keys
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // vector
                           .Arg<AnyBuffer>()  // key_scale
                           .Arg<AnyBuffer>()  // edge_bias
                           .Arg<AnyBuffer>()  // loop_bias
                           .Arg<AnyBuffer>()  // streams
                           .Arg<AnyBuffer>()  // cotangent
                           .Arg<AnyBuffer>()  // records
                           .Ret<AnyBuffer>()  // first
                           .Ret<AnyBuffer>()  // second
                           .Ret<AnyBuffer>()  // edge_gradient
                           .Ret<AnyBuffer>()  // loop_gradient
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("by_senders")
                           .Attr<int64_t>("score")
                           .Attr<double>("number")
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_pair_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_pair_attention", forward_handler);
  add_target(targets, "jaxgnn_pair_attention_gradients", gradients_handler);
}

cudaError_t load_pair() {
  const cudaError_t error = load_dot_attention();
  return error == cudaSuccess ? load_gatv2_attention() : error;
}

}  // namespace jaxgnn::attention
