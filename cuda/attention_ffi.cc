// The XLA FFI handlers of attention.
#include "ffi_common.h"
#include "gat_attention.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// What every one of them takes. `receivers` has a row for each receiver.
struct Operands {
  const AnyBuffer& row_offsets;
  const AnyBuffer& columns;
  const AnyBuffer& splits;
  const AnyBuffer& values;
  const AnyBuffer& sender_scores;
  const AnyBuffer& receivers;
  const AnyBuffer& edge_bias;
  const AnyBuffer& loop_bias;
  const AnyBuffer& streams;
  double negative_slope;
  int64_t drop_below;
  int64_t self_loops;
  int64_t split_length;
};

AttentionArgs make_attention(Check& check, const Operands& from, bool rows_are_senders) {
  const ffi::DataType type = from.values.element_type(), sums = accumulator(type);
  const int64_t edges = count(from.columns);
  const int64_t num_senders = dim(from.values, 0), num_receivers = dim(from.receivers, 0);
  AttentionArgs args{};
  check.row_structure(from.row_offsets, from.columns, from.splits, from.split_length);
  args.rows = make_rows(from.row_offsets, from.columns, &from.splits, edges, from.split_length);
  check.that(is_value_type(type), "values must be float32, bfloat16, float16 or float64");
  args.type = value_type(type);
  args.heads = dim(from.sender_scores, 1);
  args.width = dim(from.values, 1);
  check.that(args.heads > 0 && args.width % args.heads == 0, "the heads must divide the features");
  check.that(args.rows.num_rows == (rows_are_senders ? num_senders : num_receivers),
             "the rows must be the nodes of their end");
  args.num_columns = rows_are_senders ? num_receivers : num_senders;
  check.matrix(from.sender_scores, sums, num_senders, args.heads,
               "sender_scores must be [senders, heads] of the accumulation type");
  check.optional_matrix(from.edge_bias, sums, edges, args.heads,
                        "edge_bias must be [edges, heads]");
  check.optional_matrix(from.loop_bias, sums, num_receivers, args.heads,
                        "loop_bias must be [receivers, heads]");
  check.optional_matrix(from.streams, ffi::U32, 3, args.heads, "streams must be uint32 [3, heads]");
  check.that(from.drop_below >= 0 && from.drop_below < int64_t{1} << 32,
             "drop_below must be a 32-bit word");
  args.values = from.values.untyped_data();
  args.sender_scores = from.sender_scores.untyped_data();
  args.edge_bias = data_or_null(from.edge_bias);
  args.loop_bias = data_or_null(from.loop_bias);
  args.streams = static_cast<const uint32_t*>(data_or_null(from.streams));
  args.drop_below = static_cast<uint32_t>(from.drop_below);
  args.negative_slope = from.negative_slope;
  args.self_loops = from.self_loops != 0;
  return args;
}

void check_scratch(Check& check, const AnyBuffer& scratch, ffi::DataType sums, int64_t size) {
  check.that(scratch.element_type() == sums && count(scratch) == size,
             "scratch must be of the accumulation type and the size of gat_attention.h");
}

ffi::Error attention(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer values, AnyBuffer sender_scores,
                     AnyBuffer receiver_scores, AnyBuffer edge_bias, AnyBuffer loop_bias,
                     AnyBuffer streams, Result out, Result log_sum, Result partials, Result scratch,
                     double negative_slope, int64_t drop_below, int64_t self_loops,
                     int64_t split_length) {
  Check check("jaxgnn_gat_attention");
  AttentionForwardArgs args{};
  args.attention = make_attention(
      check,
      {row_offsets, columns, splits, values, sender_scores, receiver_scores, edge_bias, loop_bias,
       streams, negative_slope, drop_below, self_loops, split_length},
      false);
  const AttentionArgs& common = args.attention;
  const ffi::DataType sums = accumulator(values.element_type());
  const int64_t rows = common.rows.num_rows;
  check.matrix(receiver_scores, sums, rows, common.heads,
               "receiver_scores must be [receivers, heads] of the accumulation type");
  check.matrix(*out, values.element_type(), rows, common.width,
               "the result must have the values' type and a row for each receiver");
  check.matrix(*log_sum, sums, rows, common.heads, "log_sum must be [receivers, heads]");
  check.matrix(*partials, sums, common.rows.num_splits, common.width + 2 * common.heads,
               "partials must be [parts, features and two numbers a head]");
  check_scratch(check, *scratch, sums, forward_scratch(common.num_columns, common.heads));
  if (check.failed()) return check.error();
  args.receiver_scores = receiver_scores.untyped_data();
  args.out = out->untyped_data();
  args.log_sum = log_sum->untyped_data();
  args.partials = partials->untyped_data();
  args.scratch = scratch->untyped_data();
  return status("jaxgnn_gat_attention", launch_attention(args, stream));
}

// What the two gradients have in common.
AttentionGradientArgs make_gradient(Check& check, const Operands& from, bool rows_are_senders,
                                    const AnyBuffer& cotangent, AnyBuffer& scores_gradient,
                                    AnyBuffer& partials, AnyBuffer& scratch) {
  AttentionGradientArgs args{};
  args.attention = make_attention(check, from, rows_are_senders);
  const AttentionArgs& common = args.attention;
  const ffi::DataType type = from.values.element_type(), sums = accumulator(type);
  const int64_t receivers = dim(from.receivers, 0);
  check.matrix(from.receivers, sums, receivers, 3 * common.heads,
               "receivers must be [receivers, 3 heads] of the accumulation type");
  check.matrix(cotangent, type, receivers, common.width,
               "the cotangent must have the values' type and a row for each receiver");
  check.matrix(scores_gradient, sums, common.rows.num_rows, common.heads,
               "the scores' gradient must be [rows, heads]");
  check.matrix(partials, sums, common.rows.num_splits,
               (rows_are_senders ? common.width : 0) + common.heads,
               "partials must be [parts, the numbers of a row]");
  check_scratch(check, scratch, sums, check.failed() ? 0 : gradient_scratch(common));
  args.cotangent = cotangent.untyped_data();
  args.receivers = from.receivers.untyped_data();
  args.scores_gradient = scores_gradient.untyped_data();
  args.partials = partials.untyped_data();
  args.scratch = scratch.untyped_data();
  return args;
}

ffi::Error attention_senders(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                             AnyBuffer splits, AnyBuffer permutation, AnyBuffer cotangent,
                             AnyBuffer values, AnyBuffer sender_scores, AnyBuffer receivers,
                             AnyBuffer edge_bias, AnyBuffer loop_bias, AnyBuffer streams,
                             Result values_gradient, Result scores_gradient, Result partials,
                             Result scratch, double negative_slope, int64_t drop_below,
                             int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention_senders");
  AttentionGradientArgs args =
      make_gradient(check,
                    {row_offsets, columns, splits, values, sender_scores, receivers, edge_bias,
                     loop_bias, streams, negative_slope, drop_below, self_loops, split_length},
                    true, cotangent, *scores_gradient, *partials, *scratch);
  check.integers(permutation, "the permutation must be int32 or int64");
  check.that(count(permutation) == args.attention.rows.num_edges,
             "the permutation must have a number for each edge");
  check.matrix(*values_gradient, values.element_type(), args.attention.rows.num_rows,
               args.attention.width, "the values' gradient must be shaped like them");
  if (check.failed()) return check.error();
  args.attention.order = permutation.untyped_data();
  args.attention.wide_order = permutation.element_type() == ffi::S64;
  args.values_gradient = values_gradient->untyped_data();
  return status("jaxgnn_gat_attention_senders", launch_attention_senders(args, stream));
}

ffi::Error attention_receivers(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                               AnyBuffer splits, AnyBuffer cotangent, AnyBuffer values,
                               AnyBuffer sender_scores, AnyBuffer receivers, AnyBuffer edge_bias,
                               AnyBuffer loop_bias, AnyBuffer streams, Result scores_gradient,
                               Result edge_gradient, Result loop_gradient, Result partials,
                               Result scratch, double negative_slope, int64_t drop_below,
                               int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_gat_attention_receivers");
  AttentionGradientArgs args =
      make_gradient(check,
                    {row_offsets, columns, splits, values, sender_scores, receivers, edge_bias,
                     loop_bias, streams, negative_slope, drop_below, self_loops, split_length},
                    false, cotangent, *scores_gradient, *partials, *scratch);
  const ffi::DataType sums = accumulator(values.element_type());
  check.optional_matrix(*edge_gradient, sums, args.attention.rows.num_edges, args.attention.heads,
                        "the edge bias's gradient must be [edges, heads]");
  check.optional_matrix(*loop_gradient, sums, args.attention.rows.num_rows, args.attention.heads,
                        "the loop bias's gradient must be [receivers, heads]");
  if (check.failed()) return check.error();
  auto data = [](Result& result) { return count(*result) == 0 ? nullptr : result->untyped_data(); };
  args.edge_gradient = data(edge_gradient);
  args.loop_gradient = data(loop_gradient);
  return status("jaxgnn_gat_attention_receivers", launch_attention_receivers(args, stream));
}

XLA_FFI_DEFINE_HANDLER(attention_handler, attention,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
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

void add_attention_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_gat_attention", attention_handler);
  add_target(targets, "jaxgnn_gat_attention_senders", attention_senders_handler);
  add_target(targets, "jaxgnn_gat_attention_receivers", attention_receivers_handler);
}

cudaError_t load_attention_kernels() {
  for (cudaError_t (*load)() : {load_attention, load_attention_gradients, load_attention_edges}) {
    const cudaError_t error = load();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxgnn
