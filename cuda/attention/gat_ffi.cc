// The XLA FFI handlers of attention.
#include "cuda/attention/gat_attention.h"
#include "cuda/core/ffi.h"
#include "ffi/attention.h"

namespace jaxgnn::attention {
namespace {

namespace ffi = xla::ffi;

AttentionArgs make_attention(Check& check, const AttentionOperands& from, bool rows_are_senders) {
  AttentionArgs args{};
  take_operands(check, from, rows_are_senders, args);
  args.rows = make_rows(from.row_offsets, from.columns, &from.splits, count(from.columns),
                        from.split_length, &from.row_order);
  args.type = value_type(from.values.element_type());
  return args;
}

void check_scratch(Check& check, const AnyBuffer& scratch, ffi::DataType sums, int64_t size) {
  check.that(scratch.element_type() == sums && count(scratch) == size,
             "scratch must be of the accumulation type and the size of gat_attention.h");
}

ffi::Error attention(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer row_order, AnyBuffer values,
                     AnyBuffer sender_scores, AnyBuffer receiver_scores, AnyBuffer edge_bias,
                     AnyBuffer loop_bias, AnyBuffer streams, Result out, Result log_sum,
                     Result partials, Result scratch, double negative_slope, int64_t drop_below,
                     int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention");
  const AttentionOperands from{row_offsets,    columns,         splits,     row_order,   values,
                               sender_scores,  receiver_scores, edge_bias,  loop_bias,   streams,
                               negative_slope, drop_below,      self_loops, split_length};
  AttentionForwardArgs args{};
  args.attention = make_attention(check, from, false);
  take_results(check, from, *out, *log_sum, *partials, args);
  check_scratch(check, *scratch, accumulator(values.element_type()),
                forward_scratch(args.attention.num_columns, args.attention.heads));
  if (check.failed()) return check.error();
  args.scratch = scratch->untyped_data();
  return status("jaxgnn_gat_attention", launch_attention(args, stream));
}

// What the two gradients have in common.
AttentionGradientArgs make_gradient(Check& check, const AttentionOperands& from,
                                    bool rows_are_senders, const AnyBuffer& cotangent,
                                    AnyBuffer& scores_gradient, AnyBuffer& partials,
                                    AnyBuffer& scratch) {
  AttentionGradientArgs args{};
  args.attention = make_attention(check, from, rows_are_senders);
  take_gradients(check, from, rows_are_senders, cotangent, scores_gradient, partials, args);
  check_scratch(check, scratch, accumulator(from.values.element_type()),
                check.failed() ? 0 : gradient_scratch(args.attention));
  args.scratch = scratch.untyped_data();
  return args;
}

ffi::Error attention_senders(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                             AnyBuffer splits, AnyBuffer row_order, AnyBuffer permutation,
                             AnyBuffer cotangent, AnyBuffer values, AnyBuffer sender_scores,
                             AnyBuffer receivers, AnyBuffer edge_bias, AnyBuffer loop_bias,
                             AnyBuffer streams, Result values_gradient, Result scores_gradient,
                             Result partials, Result scratch, double negative_slope,
                             int64_t drop_below, int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention_senders");
  const AttentionOperands from{row_offsets,    columns,    splits,     row_order,   values,
                               sender_scores,  receivers,  edge_bias,  loop_bias,   streams,
                               negative_slope, drop_below, self_loops, split_length};
  AttentionGradientArgs args =
      make_gradient(check, from, true, cotangent, *scores_gradient, *partials, *scratch);
  take_senders(check, from, permutation, *values_gradient, args);
  if (check.failed()) return check.error();
  args.attention.order = permutation.untyped_data();
  args.attention.wide_order = permutation.element_type() == ffi::S64;
  return status("jaxgnn_gat_attention_senders", launch_attention_senders(args, stream));
}

ffi::Error attention_receivers(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                               AnyBuffer splits, AnyBuffer row_order, AnyBuffer cotangent,
                               AnyBuffer values, AnyBuffer sender_scores, AnyBuffer receivers,
                               AnyBuffer edge_bias, AnyBuffer loop_bias, AnyBuffer streams,
                               Result scores_gradient, Result edge_gradient, Result loop_gradient,
                               Result partials, Result scratch, double negative_slope,
                               int64_t drop_below, int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention_receivers");
  const AttentionOperands from{row_offsets,    columns,    splits,     row_order,   values,
                               sender_scores,  receivers,  edge_bias,  loop_bias,   streams,
                               negative_slope, drop_below, self_loops, split_length};
  AttentionGradientArgs args =
      make_gradient(check, from, false, cotangent, *scores_gradient, *partials, *scratch);
  take_receivers(check, from, *edge_gradient, *loop_gradient, args);
  if (check.failed()) return check.error();
  return status("jaxgnn_gat_attention_receivers", launch_attention_receivers(args, stream));
}

XLA_FFI_DEFINE_HANDLER(attention_handler, attention,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // sender_scores
                           .Arg<AnyBuffer>()  // receiver_scores
                           .Arg<AnyBuffer>()  // edge_bias
                           .Arg<AnyBuffer>()  // loop_bias
                           .Arg<AnyBuffer>()  // streams
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // log_sum
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // scratch
                           .Attr<double>("negative_slope")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(attention_senders_handler, attention_senders,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // permutation
                           .Arg<AnyBuffer>()  // cotangent
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // sender_scores
                           .Arg<AnyBuffer>()  // receivers
                           .Arg<AnyBuffer>()  // edge_bias
                           .Arg<AnyBuffer>()  // loop_bias
                           .Arg<AnyBuffer>()  // streams
                           .Ret<AnyBuffer>()  // values_gradient
                           .Ret<AnyBuffer>()  // scores_gradient
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // scratch
                           .Attr<double>("negative_slope")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(attention_receivers_handler, attention_receivers,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // cotangent
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // sender_scores
                           .Arg<AnyBuffer>()  // receivers
                           .Arg<AnyBuffer>()  // edge_bias
                           .Arg<AnyBuffer>()  // loop_bias
                           .Arg<AnyBuffer>()  // streams
                           .Ret<AnyBuffer>()  // scores_gradient
                           .Ret<AnyBuffer>()  // edge_gradient
                           .Ret<AnyBuffer>()  // loop_gradient
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // scratch
                           .Attr<double>("negative_slope")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_gat_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_gat_attention", attention_handler);
  add_target(targets, "jaxgnn_gat_attention_senders", attention_senders_handler);
  add_target(targets, "jaxgnn_gat_attention_receivers", attention_receivers_handler);
}

cudaError_t load_gat() {
  for (cudaError_t (*load)() : {load_attention, load_attention_gradients, load_attention_edges}) {
    const cudaError_t error = load();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxgnn::attention
