// The handlers of attention over compressed balanced sparse rows, for either platform.
#pragma once

#include "common/sparse_attention.h"
#include "ffi/attention.h"
#include "ffi/maxk.h"

namespace jaxgnn::attention {

// What both passes take of the senders.
struct SparseOperands {
  const AnyBuffer& values;   // [senders H, k]
  const AnyBuffer& indices;  // [senders H, k]
  const AnyBuffer& sender_scores;
  double negative_slope;

  DataType type() const { return values.element_type(); }
  int64_t num_senders() const { return dim(sender_scores, 0); }
  int64_t heads() const { return dim(sender_scores, 1); }
};

// `dense` has the dense rows of the receivers.
inline AttentionArgs take_sparse(Check& check, const RowOperands& rows, const EdgeOperands& edges,
                                 const SparseOperands& from, const AnyBuffer& dense,
                                 maxk::Cbsr& cbsr) {
  AttentionArgs args{};
  args.heads = from.heads();
  args.width = dim(dense, 1);
  const int64_t receivers = dim(dense, 0);
  take_common(check, rows, edges, from.type(), receivers, receivers, from.num_senders(), args);
  check.that(from.num_senders() > 0 && receivers > 0, "there must be senders and receivers");
  if (check.failed()) return args;
  cbsr = maxk::take_cbsr(check, &from.values, from.indices, from.type(), args.width / args.heads);
  check.that(cbsr.num_rows == from.num_senders() * args.heads, "values must be [senders heads, k]");
  check.that(from.num_senders() <= INT32_MAX && receivers <= INT32_MAX,
             "there must be fewer than 2^31 nodes");
  check.matrix(from.sender_scores, accumulator(from.type()), from.num_senders(), args.heads,
               "sender_scores must be [senders, heads] of the accumulation type");
  args.sender_scores = from.sender_scores.untyped_data();
  args.negative_slope = from.negative_slope;
  return args;
}

template <class Launch>
Error sparse_attention(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                       AnyBuffer row_order, AnyBuffer values, AnyBuffer indices,
                       AnyBuffer sender_scores, AnyBuffer receiver_scores, AnyBuffer edge_bias,
                       AnyBuffer loop_bias, AnyBuffer streams, Result out, Result log_sum,
                       Result partials, Float<attr::negative_slope> negative_slope,
                       Int<attr::drop_below> drop_below, Int<attr::self_loops> self_loops,
                       Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_sparse_attention");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const SparseOperands from{values, indices, sender_scores, *negative_slope};
  SparseForwardArgs args{};
  maxk::check_type<Launch>(check, from.type());
  args.forward.attention = take_sparse(check, rows, edges, from, *out, args.cbsr);
  const AttentionArgs& common = args.forward.attention;
  check.matrix(receiver_scores, accumulator(from.type()), dim(*out, 0), common.heads,
               "receiver_scores must be [receivers, heads] of the accumulation type");
  take_results(check, from.type(), dim(*out, 0), common, *out, *log_sum, *partials, args.forward);
  maxk::check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.forward.receiver_scores = receiver_scores.untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_sparse_attention(args, launch));
}

template <class Launch>
Error sparse_attention_gradients(
    Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks, AnyBuffer row_order,
    AnyBuffer transpose_row_offsets, AnyBuffer transpose_columns, AnyBuffer transpose_chunks,
    AnyBuffer transpose_row_order, AnyBuffer permutation, AnyBuffer values, AnyBuffer indices,
    AnyBuffer sender_scores, AnyBuffer cotangent, AnyBuffer receivers, AnyBuffer edge_bias,
    AnyBuffer loop_bias, AnyBuffer streams, Result values_gradient, Result sender_gradient,
    Result receiver_gradient, Result edge_gradient, Result loop_gradient, Result receiver_partials,
    Result sender_partials, Result scratch, Float<attr::negative_slope> negative_slope,
    Int<attr::drop_below> drop_below, Int<attr::self_loops> self_loops,
    Int<attr::chunk_length> chunk_length,
    Int<attr::transpose_chunk_length> transpose_chunk_length) {
  Check check("jaxgnn_sparse_attention_gradients");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const EdgeOperands edges{edge_bias, loop_bias, streams, *drop_below, *self_loops};
  const SparseOperands from{values, indices, sender_scores, *negative_slope};
  SparseGradientArgs args{};
  maxk::check_type<Launch>(check, from.type());
  args.attention = take_sparse(check, rows, edges, from, cotangent, args.cbsr);
  const AttentionArgs& common = args.attention;
  const DataType sums = accumulator(from.type());
  const int64_t senders = from.num_senders(), heads = common.heads;
  const int64_t num_receivers = common.rows.num_rows, k = args.cbsr.k;
  args.transpose = check.rows({transpose_row_offsets, transpose_columns, &transpose_chunks,
                               *transpose_chunk_length, &transpose_row_order});
  check.that(
      args.transpose.num_rows == senders && args.transpose.num_edges == common.rows.num_edges,
      "the transpose must be one of the same graph");
  check.permutation(permutation, common.rows.num_edges);
  check.matrix(cotangent, from.type(), num_receivers, common.width,
               "the cotangent must have the values' type and a row for each receiver");
  check.matrix(receivers, sums, num_receivers, 4 * heads,
               "receivers must be [receivers, 4 heads] of the accumulation type");
  check.matrix(*values_gradient, from.type(), senders * heads, k,
               "the values' gradient must be like them");
  check.matrix(*sender_gradient, sums, senders, heads,
               "the senders' gradient must be [senders, heads]");
  check.matrix(*receiver_gradient, sums, num_receivers, heads,
               "the receivers' gradient must be [receivers, heads]");
  take_bias_gradients(check, from.type(), num_receivers, common, *edge_gradient, *loop_gradient,
                      args);
  check.matrix(*receiver_partials, sums, common.rows.num_chunks, heads,
               "the receivers' partials must be [parts, heads]");
  check.matrix(*sender_partials, sums, args.transpose.num_chunks, heads * (k + 1),
               "the senders' partials must be [parts of the transpose, heads (k + 1)]");
  check.vector(*scratch, sums, senders * heads * (k + 3),
               "scratch must have senders heads (k + 3) entries of the accumulation type");
  maxk::check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.permutation = permutation.untyped_data();
  args.wide_permutation = is_wide(permutation);
  args.cotangent = cotangent.untyped_data();
  args.receivers = receivers.untyped_data();
  args.values_gradient = values_gradient->untyped_data();
  args.sender_gradient = sender_gradient->untyped_data();
  args.receiver_gradient = receiver_gradient->untyped_data();
  args.receiver_partials = receiver_partials->untyped_data();
  args.sender_partials = sender_partials->untyped_data();
  args.scratch = scratch->untyped_data();
  return finish(check, launch_sparse_attention_gradients(args, launch));
}

template <class Launch>
void add_sparse_targets(Targets<Launch>& targets) {
  targets.template add<sparse_attention<Launch>>("jaxgnn_sparse_attention");
  targets.template add<sparse_attention_gradients<Launch>>("jaxgnn_sparse_attention_gradients");
}

}  // namespace jaxgnn::attention
