// The handlers of attention, for either platform.
#pragma once

#include "common/attention_scratch.h"
#include "ffi/binding.h"

namespace jaxgnn::attention {

// Optional operands that all attentions share.
struct EdgeOperands {
  const AnyBuffer& edge_bias;
  const AnyBuffer& loop_bias;
  const AnyBuffer& streams;
  int64_t drop_below;
  int64_t self_loops;
};

// The arguments that all attentions share. `num_rows` and `num_columns` count the nodes at the
// rows' end and at the other; args.heads and args.width are set.
inline void take_common(Check& check, const RowOperands& rows, const EdgeOperands& edges,
                        DataType type, int64_t num_receivers, int64_t num_rows, int64_t num_columns,
                        AttentionArgs& args) {
  const DataType sums = accumulator(type);
  args.rows = check.rows(rows);
  args.type = value_type(type);
  args.num_columns = num_columns;
  check.that(is_value_type(type), "values must be float32, bfloat16, float16 or float64");
  check.that(args.rows.num_rows == num_rows, "the rows must be the nodes of their end");
  check.features(args.heads, args.width);
  check.gathered(num_columns, args.rows.num_edges);
  check.optional_matrix(edges.edge_bias, sums, args.rows.num_edges, args.heads,
                        "edge_bias must be [edges, heads] of the accumulation type");
  check.optional_matrix(edges.loop_bias, sums, num_receivers, args.heads,
                        "loop_bias must be [receivers, heads] of the accumulation type");
  check.optional_matrix(edges.streams, xla::ffi::U32, 3, args.heads,
                        "streams must be uint32 [3, heads]");
  check.drop_below(edges.drop_below);
  args.edge_bias = data_or_null(edges.edge_bias);
  args.loop_bias = data_or_null(edges.loop_bias);
  args.streams = static_cast<const uint32_t*>(data_or_null(edges.streams));
  args.drop_below = static_cast<uint32_t>(edges.drop_below);
  args.self_loops = edges.self_loops != 0;
  args.negative_slope = 1;
}

inline void take_permutation(Check& check, const AnyBuffer& permutation, AttentionArgs& args) {
  check.permutation(permutation, args.rows.num_edges);
  args.permutation = permutation.untyped_data();
  args.wide_permutation = is_wide(permutation);
}

// The forward pass's results.
template <class Forward>
void take_results(Check& check, DataType type, int64_t num_receivers, const AttentionArgs& common,
                  AnyBuffer& out, AnyBuffer& log_sum, AnyBuffer& partials, Forward& args) {
  const DataType sums = accumulator(type);
  check.matrix(out, type, num_receivers, common.width,
               "the result must have the values' type and a row for each receiver");
  check.matrix(log_sum, sums, num_receivers, 2 * common.heads,
               "log_sum must be [receivers, 2 heads] of the accumulation type");
  check.matrix(partials, sums, common.rows.num_chunks, common.width + 2 * common.heads,
               "partials must be [parts, features and two numbers a head]");
  args.out = out.untyped_data();
  args.log_sum = log_sum.untyped_data();
  args.partials = partials.untyped_data();
}

// The gradients of the biases, each of which may be absent.
template <class Gradient>
void take_bias_gradients(Check& check, DataType type, int64_t num_receivers,
                         const AttentionArgs& common, AnyBuffer& edge_gradient,
                         AnyBuffer& loop_gradient, Gradient& args) {
  const DataType sums = accumulator(type);
  check.optional_matrix(edge_gradient, sums, common.rows.num_edges, common.heads,
                        "the edge bias's gradient must be [edges, heads]");
  check.optional_matrix(loop_gradient, sums, num_receivers, common.heads,
                        "the loop bias's gradient must be [receivers, heads]");
  if (count(edge_gradient) > 0) check.has_rows(common.rows);
  args.edge_gradient = data_or_null(edge_gradient);
  args.loop_gradient = data_or_null(loop_gradient);
}

// Additive scores.

inline void check_scratch(Check& check, DataType type, int64_t size, const AnyBuffer& scratch) {
  check.vector(scratch, accumulator(type), size,
               "scratch must be of the accumulation type and of the size in attention_scratch.h");
}

struct GatOperands {
  const AnyBuffer& values;
  const AnyBuffer& sender_scores;
  const AnyBuffer& receivers;
  double negative_slope;

  DataType type() const { return values.element_type(); }
  int64_t num_senders() const { return dim(values, 0); }
  int64_t num_receivers() const { return dim(receivers, 0); }
};

inline AttentionArgs take_gat(Check& check, const RowOperands& rows, const EdgeOperands& edges,
                              const GatOperands& from, bool by_senders) {
  AttentionArgs args{};
  args.heads = dim(from.sender_scores, 1);
  args.width = dim(from.values, 1);
  const int64_t senders = from.num_senders(), receivers = from.num_receivers();
  take_common(check, rows, edges, from.type(), receivers, by_senders ? senders : receivers,
              by_senders ? receivers : senders, args);
  check.matrix(from.values, from.type(), senders, args.width, "values must be [senders, features]");
  check.matrix(from.sender_scores, accumulator(from.type()), senders, args.heads,
               "sender_scores must be [senders, heads] of the accumulation type");
  args.values = from.values.untyped_data();
  args.sender_scores = from.sender_scores.untyped_data();
  args.negative_slope = from.negative_slope;
  return args;
}

template <class Launch>
Error gat_attention(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                    AnyBuffer row_order, AnyBuffer values, AnyBuffer sender_scores,
                    AnyBuffer receiver_scores, AnyBuffer edge_bias, AnyBuffer loop_bias,
                    AnyBuffer streams, Result out, Result log_sum, Result partials, Result scratch,
                    Float<attr::negative_slope> negative_slope, Int<attr::drop_below> drop_below,
                    Int<attr::self_loops> self_loops, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_gat_attention");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const GatOperands from{values, sender_scores, receiver_scores, *negative_slope};
  AttentionForwardArgs args{};
  args.attention = take_gat(check, rows, edges, from, false);
  check.matrix(receiver_scores, accumulator(from.type()), from.num_receivers(),
               args.attention.heads,
               "receiver_scores must be [receivers, heads] of the accumulation type");
  take_results(check, from.type(), from.num_receivers(), args.attention, *out, *log_sum, *partials,
               args);
  check_scratch(check, from.type(), forward_scratch(args.attention), *scratch);
  if (check.failed()) return check.error();
  args.receiver_scores = receiver_scores.untyped_data();
  args.scratch = scratch->untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_attention(args, launch));
}

// What both gradients have in common.
inline AttentionGradientArgs take_gat_gradient(Check& check, const RowOperands& rows,
                                               const EdgeOperands& edges, const GatOperands& from,
                                               bool by_senders, const AnyBuffer& cotangent,
                                               AnyBuffer& scores_gradient, AnyBuffer& partials,
                                               AnyBuffer& scratch) {
  AttentionGradientArgs args{};
  args.attention = take_gat(check, rows, edges, from, by_senders);
  const AttentionArgs& common = args.attention;
  const DataType sums = accumulator(from.type());
  check.matrix(from.receivers, sums, from.num_receivers(), 3 * common.heads,
               "receivers must be [receivers, 3 heads] of the accumulation type");
  check.matrix(cotangent, from.type(), from.num_receivers(), common.width,
               "the cotangent must have the values' type and a row for each receiver");
  check.matrix(scores_gradient, sums, common.rows.num_rows, common.heads,
               "the scores' gradient must be [rows, heads]");
  check.matrix(partials, sums, common.rows.num_chunks,
               (by_senders ? common.width : 0) + common.heads,
               "partials must be [parts, the numbers of a row]");
  check_scratch(check, from.type(), gradient_scratch(common), scratch);
  args.cotangent = cotangent.untyped_data();
  args.receivers = from.receivers.untyped_data();
  args.scores_gradient = scores_gradient.untyped_data();
  args.partials = partials.untyped_data();
  args.scratch = scratch.untyped_data();
  return args;
}

template <class Launch>
Error gat_attention_senders(Launch launch, AnyBuffer row_offsets, AnyBuffer columns,
                            AnyBuffer chunks, AnyBuffer row_order, AnyBuffer permutation,
                            AnyBuffer cotangent, AnyBuffer values, AnyBuffer sender_scores,
                            AnyBuffer receivers, AnyBuffer edge_bias, AnyBuffer loop_bias,
                            AnyBuffer streams, Result values_gradient, Result scores_gradient,
                            Result partials, Result scratch,
                            Float<attr::negative_slope> negative_slope,
                            Int<attr::drop_below> drop_below, Int<attr::self_loops> self_loops,
                            Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_gat_attention_senders");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const GatOperands from{values, sender_scores, receivers, *negative_slope};
  AttentionGradientArgs args = take_gat_gradient(check, rows, edges, from, true, cotangent,
                                                 *scores_gradient, *partials, *scratch);
  take_permutation(check, permutation, args.attention);
  check.matrix(*values_gradient, from.type(), from.num_senders(), args.attention.width,
               "the values' gradient must be like them");
  if (check.failed()) return check.error();
  args.values_gradient = values_gradient->untyped_data();
  expect_writes(launch, *values_gradient);
  return finish(check, launch_attention_senders(args, launch));
}

template <class Launch>
Error gat_attention_receivers(Launch launch, AnyBuffer row_offsets, AnyBuffer columns,
                              AnyBuffer chunks, AnyBuffer row_order, AnyBuffer cotangent,
                              AnyBuffer values, AnyBuffer sender_scores, AnyBuffer receivers,
                              AnyBuffer edge_bias, AnyBuffer loop_bias, AnyBuffer streams,
                              Result scores_gradient, Result edge_gradient, Result loop_gradient,
                              Result partials, Result scratch,
                              Float<attr::negative_slope> negative_slope,
                              Int<attr::drop_below> drop_below, Int<attr::self_loops> self_loops,
                              Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_gat_attention_receivers");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const GatOperands from{values, sender_scores, receivers, *negative_slope};
  AttentionGradientArgs args = take_gat_gradient(check, rows, edges, from, false, cotangent,
                                                 *scores_gradient, *partials, *scratch);
  take_bias_gradients(check, from.type(), from.num_receivers(), args.attention, *edge_gradient,
                      *loop_gradient, args);
  if (check.failed()) return check.error();
  return finish(check, launch_attention_receivers(args, launch));
}

// Scores of pairs of rows.

enum class PairScore : int64_t { kDot, kGatv2 };  // by their FFI attribute

// Without values they are the keys; GATv2 has a vector, and no key_scale.
struct PairOperands {
  const AnyBuffer& queries;
  const AnyBuffer& keys;
  const AnyBuffer& values;
  const AnyBuffer& vector;
  const AnyBuffer& key_scale;
  int64_t score;
  double score_parameter;
  int64_t heads;

  DataType type() const { return keys.element_type(); }
  int64_t num_senders() const { return dim(keys, 0); }
  int64_t num_receivers() const { return dim(queries, 0); }
  int64_t score_width() const { return dim(keys, 1); }
  bool is_gatv2() const { return score == static_cast<int64_t>(PairScore::kGatv2); }
  const AnyBuffer& averaged() const { return is_gatv2() ? keys : values; }
};

inline PairArgs take_pair(Check& check, const RowOperands& rows, const EdgeOperands& edges,
                          const PairOperands& from, bool by_senders) {
  const DataType type = from.type(), sums = accumulator(type);
  const int64_t senders = from.num_senders(), receivers = from.num_receivers();
  PairArgs args{};
  args.attention.heads = from.heads;
  args.attention.width = dim(from.averaged(), 1);
  take_common(check, rows, edges, type, receivers, by_senders ? senders : receivers,
              by_senders ? receivers : senders, args.attention);
  check.that(from.score == 0 || from.score == 1, "score must be 0 or 1");
  check.features(from.heads, from.score_width());
  check.matrix(from.keys, type, senders, from.score_width(), "keys must be [senders, features]");
  check.matrix(from.queries, type, receivers, from.score_width(),
               "queries must have the keys' type and width");
  check.matrix(from.averaged(), type, senders, args.attention.width,
               "values must have the keys' type and a row for each sender");
  if (check.failed()) return args;
  args.head_width = from.score_width() / from.heads;
  if (from.is_gatv2()) {
    check.matrix(from.vector, sums, from.heads, args.head_width,
                 "the vector must be [heads, features] of the accumulation type");
  } else {
    check.optional_matrix(from.key_scale, sums, senders, from.heads,
                          "key_scale must be [senders, heads] of the accumulation type");
    args.key_scale = data_or_null(from.key_scale);
  }
  args.attention.values = from.averaged().untyped_data();
  args.queries = from.queries.untyped_data();
  args.keys = from.keys.untyped_data();
  args.vector = data_or_null(from.vector);
  args.score_parameter = from.score_parameter;
  return args;
}

template <class Launch>
Error pair_attention(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                     AnyBuffer row_order, AnyBuffer queries, AnyBuffer keys, AnyBuffer values,
                     AnyBuffer vector, AnyBuffer key_scale, AnyBuffer edge_bias,
                     AnyBuffer loop_bias, AnyBuffer streams, Result out, Result log_sum,
                     Result partials, Int<attr::score> score,
                     Float<attr::score_parameter> score_parameter, Int<attr::heads> heads,
                     Int<attr::drop_below> drop_below, Int<attr::self_loops> self_loops,
                     Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_pair_attention");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const PairOperands from{queries,   keys,   values,           vector,
                          key_scale, *score, *score_parameter, *heads};
  PairForwardArgs args{};
  args.pair = take_pair(check, rows, edges, from, false);
  take_results(check, from.type(), from.num_receivers(), args.pair.attention, *out, *log_sum,
               *partials, args);
  if (check.failed()) return check.error();
  expect_writes(launch, *out);
  return finish(check, from.is_gatv2() ? launch_gatv2_attention(args, launch)
                                       : launch_dot_attention(args, launch));
}

template <class Launch>
Error pair_attention_gradients(Launch launch, AnyBuffer row_offsets, AnyBuffer columns,
                               AnyBuffer chunks, AnyBuffer row_order, AnyBuffer permutation,
                               AnyBuffer queries, AnyBuffer keys, AnyBuffer values,
                               AnyBuffer vector, AnyBuffer key_scale, AnyBuffer edge_bias,
                               AnyBuffer loop_bias, AnyBuffer streams, AnyBuffer cotangent,
                               AnyBuffer node_terms, Result first, Result second,
                               Result edge_gradient, Result loop_gradient, Result partials,
                               Int<attr::by_senders> by_senders, Int<attr::score> score,
                               Float<attr::score_parameter> score_parameter, Int<attr::heads> heads,
                               Int<attr::drop_below> drop_below, Int<attr::self_loops> self_loops,
                               Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_pair_attention_gradients");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const PairOperands from{queries,   keys,   values,           vector,
                          key_scale, *score, *score_parameter, *heads};
  const DataType type = from.type(), sums = accumulator(type);
  PairGradientArgs args{};
  args.by_senders = *by_senders != 0;
  args.pair = take_pair(check, rows, edges, from, args.by_senders);
  AttentionArgs& common = args.pair.attention;
  const int64_t num_rows = common.rows.num_rows;
  // What else a row has: its values' gradient, or its share in the vector's.
  const bool has_values = args.by_senders && !from.is_gatv2();
  const bool has_shares = !args.by_senders && from.is_gatv2();
  const int64_t second_width = has_values ? common.width : has_shares ? from.score_width() : 0;
  if (args.by_senders) take_permutation(check, permutation, common);
  check.matrix(cotangent, type, from.num_receivers(), common.width,
               "the cotangent must have the values' type and a row for each receiver");
  check.matrix(node_terms, sums, from.num_receivers(), 2 * common.heads,
               "node_terms must be [receivers, 2 heads] of the accumulation type");
  check.matrix(*first, type, num_rows, from.score_width(), "the gradient must be like the rows");
  if (second_width > 0) {
    check.matrix(*second, has_values ? type : sums, num_rows, second_width,
                 "the second gradient must have a row for each row");
  }
  check.that(!args.by_senders || count(*edge_gradient) + count(*loop_gradient) == 0,
             "by senders there are no gradients of the biases");
  take_bias_gradients(check, type, from.num_receivers(), common, *edge_gradient, *loop_gradient,
                      args);
  check.vector(*partials, sums, rows.num_chunks() * (from.score_width() + second_width),
               "partials must have the numbers of a row for each part");
  if (check.failed()) return check.error();
  args.cotangent = cotangent.untyped_data();
  args.node_terms = node_terms.untyped_data();
  args.first = first->untyped_data();
  args.second = data_or_null(*second);
  args.partials = partials->untyped_data();
  expect_writes(launch, *first);
  return finish(check, from.is_gatv2() ? launch_gatv2_attention_gradients(args, launch)
                                       : launch_dot_attention_gradients(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<gat_attention<Launch>>("jaxgnn_gat_attention");
  targets.template add<gat_attention_senders<Launch>>("jaxgnn_gat_attention_senders");
  targets.template add<gat_attention_receivers<Launch>>("jaxgnn_gat_attention_receivers");
  targets.template add<pair_attention<Launch>>("jaxgnn_pair_attention");
  targets.template add<pair_attention_gradients<Launch>>("jaxgnn_pair_attention_gradients");
}

}  // namespace jaxgnn::attention
