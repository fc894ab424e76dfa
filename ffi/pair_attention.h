// What the handlers of attention with scores of pairs have in common on either platform.
#pragma once

#include <cstdint>

#include "ffi/check.h"

namespace jaxgnn {

// Which scores, by their FFI attribute.
enum class PairScore : int64_t { dot = 0, gatv2 = 1 };

// What both handlers take. Without values they are the keys; GATv2 has a vector, and no key_scale.
struct PairOperands {
  const AnyBuffer& row_offsets;
  const AnyBuffer& columns;
  const AnyBuffer& splits;
  const AnyBuffer& row_order;
  const AnyBuffer& queries;
  const AnyBuffer& keys;
  const AnyBuffer& values;
  const AnyBuffer& vector;
  const AnyBuffer& key_scale;
  const AnyBuffer& edge_bias;
  const AnyBuffer& loop_bias;
  const AnyBuffer& streams;
  int64_t score;
  double number;
  int64_t heads;
  int64_t drop_below;
  int64_t self_loops;
  int64_t split_length;

  bool shares_rows() const { return score == static_cast<int64_t>(PairScore::gatv2); }
  const AnyBuffer& averaged() const { return shares_rows() ? keys : values; }
};

// All of the arguments but the rows and the type.
template <class Pair>
void take_pair(Check& check, const PairOperands& from, bool rows_are_senders, Pair& args) {
  const xla::ffi::DataType type = from.keys.element_type(), sums = accumulator(type);
  const int64_t senders = dim(from.keys, 0), receivers = dim(from.queries, 0);
  const int64_t score_width = dim(from.keys, 1), width = dim(from.averaged(), 1);
  auto& common = args.attention;
  check.row_structure(from.row_offsets, from.columns, from.splits, from.split_length);
  check.row_order(from.row_order, from.row_offsets);
  check.that(from.score == 0 || from.score == 1, "score must be 0 or 1");
  check.that(is_value_type(type), "keys must be float32, bfloat16, float16 or float64");
  check.that(from.heads > 0 && score_width % from.heads == 0 && width % from.heads == 0,
             "the heads must divide the features");
  check.that(count(from.row_offsets) - 1 == (rows_are_senders ? senders : receivers),
             "the rows must be the nodes of their end");
  check.matrix(from.queries, type, receivers, score_width,
               "queries must have the keys' type and width");
  check.matrix(from.averaged(), type, senders, width,
               "values must have the keys' type and a row for each sender");
  if (check.failed()) return;
  args.head_width = score_width / from.heads;
  if (from.shares_rows()) {
    check.matrix(from.vector, sums, from.heads, args.head_width,
                 "the vector must be [heads, features] of the accumulation type");
  } else {
    check.optional_matrix(from.key_scale, sums, senders, from.heads,
                          "key_scale must be [senders, heads] of the accumulation type");
  }
  check.optional_matrix(from.edge_bias, sums, count(from.columns), from.heads,
                        "edge_bias must be [edges, heads]");
  check.optional_matrix(from.loop_bias, sums, receivers, from.heads,
                        "loop_bias must be [receivers, heads]");
  check.optional_matrix(from.streams, xla::ffi::U32, 3, from.heads,
                        "streams must be uint32 [3, heads]");
  check.drop_below(from.drop_below);
  common.heads = from.heads;
  common.width = width;
  common.num_columns = rows_are_senders ? receivers : senders;
  common.values = from.averaged().untyped_data();
  common.edge_bias = data_or_null(from.edge_bias);
  common.loop_bias = data_or_null(from.loop_bias);
  common.streams = static_cast<const uint32_t*>(data_or_null(from.streams));
  common.drop_below = static_cast<uint32_t>(from.drop_below);
  common.negative_slope = 1;  // of the score itself
  common.self_loops = from.self_loops != 0;
  args.queries = from.queries.untyped_data();
  args.keys = from.keys.untyped_data();
  args.vector = data_or_null(from.vector);
  args.key_scale = from.shares_rows() ? nullptr : data_or_null(from.key_scale);
  args.number = from.number;
}

template <class Forward>
void take_pair_results(Check& check, const PairOperands& from, AnyBuffer& out, AnyBuffer& log_sum,
                       AnyBuffer& partials, Forward& args) {
  const auto& common = args.pair.attention;
  const xla::ffi::DataType type = from.keys.element_type(), sums = accumulator(type);
  const int64_t receivers = dim(from.queries, 0);
  check.matrix(out, type, receivers, common.width,
               "the result must have the values' type and a row for each receiver");
  check.matrix(log_sum, sums, receivers, common.heads, "log_sum must be [receivers, heads]");
  check.matrix(partials, sums, dim(from.splits, 0), common.width + 2 * common.heads,
               "partials must be [parts, features and two numbers a head]");
  args.out = out.untyped_data();
  args.log_sum = log_sum.untyped_data();
  args.partials = partials.untyped_data();
}

// What the gradients take besides, and their results.
struct PairGradients {
  const AnyBuffer& permutation;
  const AnyBuffer& cotangent;
  const AnyBuffer& records;
  AnyBuffer& first;
  AnyBuffer& second;
  AnyBuffer& edge_gradient;
  AnyBuffer& loop_gradient;
  AnyBuffer& partials;
};

template <class Gradient>
void take_pair_gradients(Check& check, const PairOperands& from, const PairGradients& results,
                         Gradient& args) {
  const auto& common = args.pair.attention;
  const xla::ffi::DataType type = from.keys.element_type(), sums = accumulator(type);
  const int64_t receivers = dim(from.queries, 0), rows = count(from.row_offsets) - 1;
  const int64_t score_width = dim(from.keys, 1), heads = common.heads;
  const bool values = args.by_senders && !from.shares_rows();
  const bool shares = !args.by_senders && from.shares_rows();
  const int64_t second_width = values ? common.width : shares ? score_width : 0;
  if (args.by_senders) {
    check.integers(results.permutation, "the permutation must be int32 or int64");
    check.that(count(results.permutation) == count(from.columns),
               "the permutation must have a number for each edge");
  }
  check.matrix(results.cotangent, type, receivers, common.width,
               "the cotangent must have the values' type and a row for each receiver");
  check.matrix(results.records, sums, receivers, 2 * heads, "records must be [receivers, 2 heads]");
  check.matrix(results.first, type, rows, score_width, "the gradient must be shaped like the rows");
  if (second_width > 0) {
    check.matrix(results.second, values ? type : sums, rows, second_width,
                 "the second gradient must have a row for each row");
  }
  check.optional_matrix(results.edge_gradient, sums, count(from.columns), heads,
                        "the edge bias's gradient must be [edges, heads]");
  check.optional_matrix(results.loop_gradient, sums, receivers, heads,
                        "the loop bias's gradient must be [receivers, heads]");
  check.that(results.partials.element_type() == sums &&
                 count(results.partials) == dim(from.splits, 0) * (score_width + second_width),
             "partials must have the numbers of a row for each part");
  const auto data = [](AnyBuffer& result) {
    return count(result) == 0 ? nullptr : result.untyped_data();
  };
  args.cotangent = results.cotangent.untyped_data();
  args.records = results.records.untyped_data();
  args.first = results.first.untyped_data();
  args.second = data(results.second);
  args.edge_gradient = data(results.edge_gradient);
  args.loop_gradient = data(results.loop_gradient);
  args.partials = results.partials.untyped_data();
}

}  // namespace jaxgnn
