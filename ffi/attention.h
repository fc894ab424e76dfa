// What the handlers of attention have in common on either platform: the checks of their operands,
// and the arguments that the launchers call alike.
#pragma once

#include <cstdint>

#include "ffi/check.h"

namespace jaxgnn {

// What every one of them takes. `receivers` has a row for each receiver.
struct AttentionOperands {
  const AnyBuffer& row_offsets;
  const AnyBuffer& columns;
  const AnyBuffer& splits;
  const AnyBuffer& row_order;
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

// All of an attention's arguments but its rows and its type.
template <class Attention>
void take_operands(Check& check, const AttentionOperands& from, bool rows_are_senders,
                   Attention& args) {
  const xla::ffi::DataType type = from.values.element_type(), sums = accumulator(type);
  const int64_t edges = count(from.columns), num_rows = count(from.row_offsets) - 1;
  const int64_t num_senders = dim(from.values, 0), num_receivers = dim(from.receivers, 0);
  check.row_structure(from.row_offsets, from.columns, from.splits, from.split_length);
  check.row_order(from.row_order, from.row_offsets);
  check.that(is_value_type(type), "values must be float32, bfloat16, float16 or float64");
  args.heads = dim(from.sender_scores, 1);
  args.width = dim(from.values, 1);
  check.that(args.heads > 0 && args.width % args.heads == 0, "the heads must divide the features");
  check.that(num_rows == (rows_are_senders ? num_senders : num_receivers),
             "the rows must be the nodes of their end");
  args.num_columns = rows_are_senders ? num_receivers : num_senders;
  check.matrix(from.sender_scores, sums, num_senders, args.heads,
               "sender_scores must be [senders, heads] of the accumulation type");
  check.optional_matrix(from.edge_bias, sums, edges, args.heads,
                        "edge_bias must be [edges, heads]");
  check.optional_matrix(from.loop_bias, sums, num_receivers, args.heads,
                        "loop_bias must be [receivers, heads]");
  check.optional_matrix(from.streams, xla::ffi::U32, 3, args.heads,
                        "streams must be uint32 [3, heads]");
  check.drop_below(from.drop_below);
  args.values = from.values.untyped_data();
  args.sender_scores = from.sender_scores.untyped_data();
  args.edge_bias = data_or_null(from.edge_bias);
  args.loop_bias = data_or_null(from.loop_bias);
  args.streams = static_cast<const uint32_t*>(data_or_null(from.streams));
  args.drop_below = static_cast<uint32_t>(from.drop_below);
  args.negative_slope = from.negative_slope;
  args.self_loops = from.self_loops != 0;
}

// The forward pass's results, whose operands have been taken.
template <class Forward>
void take_results(Check& check, const AttentionOperands& from, AnyBuffer& out, AnyBuffer& log_sum,
                  AnyBuffer& partials, Forward& args) {
  const auto& common = args.attention;
  const xla::ffi::DataType type = from.values.element_type(), sums = accumulator(type);
  const int64_t rows = dim(from.receivers, 0);
  check.matrix(from.receivers, sums, rows, common.heads,
               "receiver_scores must be [receivers, heads] of the accumulation type");
  check.matrix(out, type, rows, common.width,
               "the result must have the values' type and a row for each receiver");
  check.matrix(log_sum, sums, rows, common.heads, "log_sum must be [receivers, heads]");
  check.matrix(partials, sums, dim(from.splits, 0), common.width + 2 * common.heads,
               "partials must be [parts, features and two numbers a head]");
  args.receiver_scores = from.receivers.untyped_data();
  args.out = out.untyped_data();
  args.log_sum = log_sum.untyped_data();
  args.partials = partials.untyped_data();
}

// What both gradients take besides, and their results.
template <class Gradient>
void take_gradients(Check& check, const AttentionOperands& from, bool rows_are_senders,
                    const AnyBuffer& cotangent, AnyBuffer& scores_gradient, AnyBuffer& partials,
                    Gradient& args) {
  const auto& common = args.attention;
  const xla::ffi::DataType type = from.values.element_type(), sums = accumulator(type);
  const int64_t receivers = dim(from.receivers, 0);
  check.matrix(from.receivers, sums, receivers, 3 * common.heads,
               "receivers must be [receivers, 3 heads] of the accumulation type");
  check.matrix(cotangent, type, receivers, common.width,
               "the cotangent must have the values' type and a row for each receiver");
  check.matrix(scores_gradient, sums, count(from.row_offsets) - 1, common.heads,
               "the scores' gradient must be [rows, heads]");
  check.matrix(partials, sums, dim(from.splits, 0),
               (rows_are_senders ? common.width : 0) + common.heads,
               "partials must be [parts, the numbers of a row]");
  args.cotangent = cotangent.untyped_data();
  args.receivers = from.receivers.untyped_data();
  args.scores_gradient = scores_gradient.untyped_data();
  args.partials = partials.untyped_data();
}

// The senders' results; their edges' numbers are the launcher's to take.
template <class Gradient>
void take_senders(Check& check, const AttentionOperands& from, const AnyBuffer& permutation,
                  AnyBuffer& values_gradient, Gradient& args) {
  check.integers(permutation, "the permutation must be int32 or int64");
  check.that(count(permutation) == count(from.columns),
             "the permutation must have a number for each edge");
  check.matrix(values_gradient, from.values.element_type(), count(from.row_offsets) - 1,
               args.attention.width, "the values' gradient must be shaped like them");
  args.values_gradient = values_gradient.untyped_data();
}

// The receivers' results.
template <class Gradient>
void take_receivers(Check& check, const AttentionOperands& from, AnyBuffer& edge_gradient,
                    AnyBuffer& loop_gradient, Gradient& args) {
  const xla::ffi::DataType sums = accumulator(from.values.element_type());
  check.optional_matrix(edge_gradient, sums, count(from.columns), args.attention.heads,
                        "the edge bias's gradient must be [edges, heads]");
  check.optional_matrix(loop_gradient, sums, count(from.row_offsets) - 1, args.attention.heads,
                        "the loop bias's gradient must be [receivers, heads]");
  const auto data = [](AnyBuffer& result) {
    return count(result) == 0 ? nullptr : result.untyped_data();
  };
  args.edge_gradient = data(edge_gradient);
  args.loop_gradient = data(loop_gradient);
}

}  // namespace jaxgnn
