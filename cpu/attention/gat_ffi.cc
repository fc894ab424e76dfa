// The XLA FFI handlers of attention.
#include "cpu/core/ffi.h"
#include "cpu/core/huge_pages.h"
#include "cpu/core/isa.h"
#include "cpu/core/parallel.h"
#include "ffi/attention.h"

namespace jaxgnn::attention {
namespace {

namespace ffi = xla::ffi;

AttentionArgs make_attention(Check& check, const AttentionOperands& from, bool rows_are_senders) {
  AttentionArgs args{};
  take_operands(check, from, rows_are_senders, args);
  args.csr =
      make_csr(from.row_offsets, from.columns, from.splits, count(from.columns), from.split_length);
  args.type = value_type(from.values.element_type()).value_or(ValueType::f32);
  return args;
}

ffi::Error attention(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer row_order, AnyBuffer values,
                     AnyBuffer sender_scores, AnyBuffer receiver_scores, AnyBuffer edge_bias,
                     AnyBuffer loop_bias, AnyBuffer streams, Result out, Result log_sum,
                     Result partials, Result /*scratch*/, double negative_slope, int64_t drop_below,
                     int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention");
  const AttentionOperands from{row_offsets,    columns,         splits,     row_order,   values,
                               sender_scores,  receiver_scores, edge_bias,  loop_bias,   streams,
                               negative_slope, drop_below,      self_loops, split_length};
  AttentionForwardArgs args{};
  args.attention = make_attention(check, from, false);
  take_results(check, from, *out, *log_sum, *partials, args);
  if (check.failed()) return check.error();
  prefer_huge_pages(args.out, out->size_bytes());
  kernels().attention(args, make_executor(pool));
  return ffi::Error::Success();
}

// What the two gradients have in common.
AttentionGradientArgs make_gradient(Check& check, const AttentionOperands& from,
                                    bool rows_are_senders, const AnyBuffer& cotangent,
                                    AnyBuffer& scores_gradient, AnyBuffer& partials) {
  AttentionGradientArgs args{};
  args.attention = make_attention(check, from, rows_are_senders);
  take_gradients(check, from, rows_are_senders, cotangent, scores_gradient, partials, args);
  return args;
}

ffi::Error attention_senders(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                             AnyBuffer splits, AnyBuffer row_order, AnyBuffer permutation,
                             AnyBuffer cotangent, AnyBuffer values, AnyBuffer sender_scores,
                             AnyBuffer receivers, AnyBuffer edge_bias, AnyBuffer loop_bias,
                             AnyBuffer streams, Result values_gradient, Result scores_gradient,
                             Result partials, Result /*scratch*/, double negative_slope,
                             int64_t drop_below, int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention_senders");
  const AttentionOperands from{row_offsets,    columns,    splits,     row_order,   values,
                               sender_scores,  receivers,  edge_bias,  loop_bias,   streams,
                               negative_slope, drop_below, self_loops, split_length};
  AttentionGradientArgs args =
      make_gradient(check, from, true, cotangent, *scores_gradient, *partials);
  take_senders(check, from, permutation, *values_gradient, args);
  if (check.failed()) return check.error();
  args.attention.permutation = permutation.untyped_data();
  args.attention.wide_permutation = permutation.element_type() == ffi::S64;
  prefer_huge_pages(args.values_gradient, values_gradient->size_bytes());
  kernels().attention_senders(args, make_executor(pool));
  return ffi::Error::Success();
}

ffi::Error attention_receivers(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                               AnyBuffer splits, AnyBuffer row_order, AnyBuffer cotangent,
                               AnyBuffer values, AnyBuffer sender_scores, AnyBuffer receivers,
                               AnyBuffer edge_bias, AnyBuffer loop_bias, AnyBuffer streams,
                               Result scores_gradient, Result edge_gradient, Result loop_gradient,
                               Result partials, Result /*scratch*/, double negative_slope,
                               int64_t drop_below, int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention_receivers");
  const AttentionOperands from{row_offsets,    columns,    splits,     row_order,   values,
                               sender_scores,  receivers,  edge_bias,  loop_bias,   streams,
                               negative_slope, drop_below, self_loops, split_length};
  AttentionGradientArgs args =
      make_gradient(check, from, false, cotangent, *scores_gradient, *partials);
  take_receivers(check, from, *edge_gradient, *loop_gradient, args);
  if (check.failed()) return check.error();
  kernels().attention_receivers(args, make_executor(pool));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(attention_handler, attention,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
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
                           .Ret<AnyBuffer>()  // scratch, of other platforms
                           .Attr<double>("negative_slope")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(attention_senders_handler, attention_senders,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
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
                           .Ret<AnyBuffer>()  // scratch, of other platforms
                           .Attr<double>("negative_slope")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(attention_receivers_handler, attention_receivers,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
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
                           .Ret<AnyBuffer>()  // scratch, of other platforms
                           .Attr<double>("negative_slope")
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"));

}  // namespace

void add_gat_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_gat_attention", attention_handler);
  add_target(targets, "jaxgnn_gat_attention_senders", attention_senders_handler);
  add_target(targets, "jaxgnn_gat_attention_receivers", attention_receivers_handler);
}

}  // namespace jaxgnn::attention
