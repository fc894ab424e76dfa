// The handlers of the products and of what else works by rows, for either platform.
#pragma once

#include "common/aggregation.h"
#include "ffi/binding.h"

namespace jaxgnn::aggregation {

// What the products with and without ties have in common; `ties` may be null.
template <class Launch>
Error reduce_rows(Check& check, Launch& launch, const RowOperands& from, const AnyBuffer& x,
                  const AnyBuffer& weights, AnyBuffer& out, AnyBuffer* ties, AnyBuffer& partials,
                  int64_t reduce, bool narrow_slices = false, int64_t row_limit = 0,
                  int64_t longest_row = 0) {
  const DataType type = x.element_type(), sums = accumulator(type);
  const int64_t edges = from.num_edges() > 0 ? from.num_edges() : dim(x, 0);
  SpmmArgs args{};
  args.rows = check.rows(from, edges);
  args.type = value_type(type);
  args.reduce = static_cast<Reduce>(reduce);
  args.width = dim(x, 1);
  args.heads = count(weights) > 0 ? dim(weights, 1) : 1;
  args.num_columns = dim(x, 0);
  args.narrow_slices = narrow_slices;
  args.row_limit = row_limit > 0 ? row_limit : kNoLimit;
  args.longest_row = longest_row;
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  check.matrix(x, type, dim(x, 0), args.width, "x must be [nodes, features]");
  check.gathered(dim(x, 0), edges);
  check.matrix(out, type, args.rows.num_rows, args.width,
               "the result must be [rows, features] of x's type");
  check.optional_matrix(weights, sums, edges, args.heads,
                        "weights must be [edges, heads] of the accumulation type");
  check.heads(args.heads, args.width);
  check.matrix(partials, sums, (ties == nullptr ? 1 : 2) * from.num_chunks(), args.width,
               "partials must be [parts, features], and as many more with ties");
  check.that(reduce >= (ties == nullptr ? 0 : 2) && reduce <= 3,
             "reduce must be 0, 1, 2 or 3; with ties, 2 or 3");
  check.that(row_limit >= 0 && row_limit <= from.chunk_length,
             "row_limit must be from 0 to the chunk length");
  check.that(longest_row >= 0, "longest_row must be 0 or more");
  check.that(row_limit == 0 || (from.num_chunks() == 0 && reduce <= 1),
             "a row_limit is of sums and means, and of rows without chunks");
  if (ties != nullptr) {
    const DataType counts = sums == xla::ffi::F32 && type != sums ? xla::ffi::F16 : type;
    check.matrix(*ties, counts, args.rows.num_rows, args.width,
                 "ties must be like the result, float16 where x has 16 bits");
  }
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.weights = data_or_null(weights);
  args.out = out.untyped_data();
  args.ties = ties == nullptr ? nullptr : ties->untyped_data();
  args.partials = partials.untyped_data();
  expect_writes(launch, out);
  if (ties != nullptr) expect_writes(launch, *ties);
  return finish(check, launch_spmm(args, launch));
}

template <class Launch>
Error spmm(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
           AnyBuffer row_order, AnyBuffer x, AnyBuffer weights, Result out, Result partials,
           Int<attr::narrow_slices> narrow_slices, Int<attr::row_limit> row_limit,
           Int<attr::longest_row> longest_row, Int<attr::reduce> reduce,
           Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_spmm");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length, &row_order};
  return reduce_rows(check, launch, from, x, weights, *out, nullptr, *partials, *reduce,
                     *narrow_slices != 0, *row_limit, *longest_row);
}

template <class Launch>
Error spmm_ties(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                AnyBuffer row_order, AnyBuffer x, AnyBuffer weights, Result out, Result ties,
                Result partials, Int<attr::reduce> reduce, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_spmm_ties");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length, &row_order};
  return reduce_rows(check, launch, from, x, weights, *out, &*ties, *partials, *reduce);
}

template <class Launch>
Error spmm_extremum(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                    AnyBuffer x, AnyBuffer y, AnyBuffer weights, AnyBuffer values, AnyBuffer scale,
                    Result out, Result partials, Int<attr::transpose> transpose,
                    Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_spmm_extremum");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  const DataType type = x.element_type(), sums = accumulator(type);
  const int64_t edges = from.num_edges();
  ExtremumArgs args{};
  args.rows = check.rows(from);
  args.type = value_type(type);
  args.transpose = *transpose != 0;
  args.width = dim(x, 1);
  args.heads = count(weights) > 0 ? dim(weights, 1) : 1;
  const AnyBuffer& at_row = args.transpose ? x : y;
  const AnyBuffer& at_column = args.transpose ? y : x;
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  check.matrix(*out, type, args.rows.num_rows, args.width,
               "the result must be [rows, features] of x's type");
  check.matrix(at_row, type, args.rows.num_rows, args.width,
               "the rows' operand must be [rows, features]");
  check.matrix(at_column, type, dim(at_column, 0), args.width,
               "the gathered operand must have the features and the type of the result");
  check.gathered(dim(at_column, 0), edges);
  check.matrix(values, type, dim(at_column, 0), args.width,
               "values must be like the gathered operand");
  check.optional_matrix(weights, sums, edges, args.heads,
                        "weights must be [edges, heads] of the accumulation type");
  check.optional_matrix(scale, sums, edges, args.heads, "scale must be like weights");
  check.that(count(scale) == count(weights), "there must be a scale if there are weights");
  check.heads(args.heads, args.width);
  check.matrix(*partials, sums, from.num_chunks(), args.width,
               "partials must be [parts, features]");
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  args.values = values.untyped_data();
  args.scale = data_or_null(scale);
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_extremum(args, launch));
}

// What sddmm and sddmm_extremum have in common.
inline SddmmArgs make_sddmm(Check& check, const RowOperands& from, const AnyBuffer& a,
                            const AnyBuffer& b, AnyBuffer& out, int64_t heads) {
  const DataType type = a.element_type();
  SddmmArgs args{};
  args.rows = check.rows(from);
  args.type = value_type(type);
  args.width = dim(a, 1);
  args.heads = heads;
  args.num_columns = dim(b, 0);
  check.that(is_value_type(type), "a must be float32, bfloat16, float16 or float64");
  check.heads(heads, args.width);
  check.has_rows(args.rows);
  check.matrix(a, type, args.rows.num_rows, args.width, "a must be [rows, features]");
  check.matrix(b, type, args.num_columns, args.width, "b must have the type and the features of a");
  check.gathered(args.num_columns, args.rows.num_edges);
  check.matrix(out, accumulator(type), args.rows.num_edges, heads,
               "the result must be [edges, heads] of the accumulation type");
  args.a = a.untyped_data();
  args.b = b.untyped_data();
  args.out = out.untyped_data();
  return args;
}

template <class Launch>
Error sddmm(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks, AnyBuffer a,
            AnyBuffer b, Result out, Int<attr::heads> heads, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_sddmm");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  const SddmmArgs args = make_sddmm(check, from, a, b, *out, *heads);
  if (check.failed()) return check.error();
  return finish(check, launch_sddmm(args, launch));
}

template <class Launch>
Error sddmm_extremum(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                     AnyBuffer a, AnyBuffer b, AnyBuffer x, AnyBuffer y, AnyBuffer weights,
                     Result out, Int<attr::heads> heads, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_sddmm_extremum");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  SddmmArgs args = make_sddmm(check, from, a, b, *out, *heads);
  check.matrix(x, a.element_type(), args.num_columns, args.width, "x must be like b");
  check.matrix(y, a.element_type(), args.rows.num_rows, args.width, "y must be like a");
  check.optional_matrix(weights, out->element_type(), args.rows.num_edges, *heads,
                        "weights must be [edges, heads] of the accumulation type");
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  return finish(check, launch_sddmm(args, launch));
}

template <class Launch>
Error edge_softmax(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                   AnyBuffer scores, Result out, Result partials,
                   Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_edge_softmax");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  const DataType type = scores.element_type();
  EdgeSoftmaxArgs args{};
  args.rows = check.rows(from, dim(scores, 0));
  args.type = value_type(type);
  args.heads = dim(scores, 1);
  check.that(type == xla::ffi::F32 || type == xla::ffi::F64, "scores must be float32 or float64");
  check.has_rows(args.rows);
  check.matrix(scores, type, args.rows.num_edges, args.heads, "scores must be [edges, heads]");
  check.matrix(*out, type, args.rows.num_edges, args.heads, "the result must be like scores");
  check.matrix(*partials, type, from.num_chunks(), 2 * args.heads,
               "partials must be [parts, 2 heads]");
  if (check.failed()) return check.error();
  args.scores = scores.untyped_data();
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  return finish(check, launch_edge_softmax(args, launch));
}

template <class Launch>
Error csr_row_ids(Launch launch, AnyBuffer row_offsets, Result out) {
  Check check("jaxgnn_csr_row_ids");
  check.integers(row_offsets, "row_offsets must be int32 or int64 [rows + 1]");
  check.that(count(row_offsets) >= 1, "row_offsets must have an element more than there are rows");
  check.vector(*out, xla::ffi::S32, dim(*out, 0), "the result must be int32 [edges]");
  CsrRowIdsArgs args{};
  args.rows.offsets = row_offsets.untyped_data();
  args.rows.wide_offsets = is_wide(row_offsets);
  args.rows.num_rows = count(row_offsets) - 1;
  args.rows.num_edges = count(*out);
  args.out = static_cast<int32_t*>(out->untyped_data());
  check.has_rows(args.rows);
  if (check.failed()) return check.error();
  return finish(check, launch_csr_row_ids(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<spmm<Launch>>("jaxgnn_spmm");
  targets.template add<spmm_ties<Launch>>("jaxgnn_spmm_ties");
  targets.template add<spmm_extremum<Launch>>("jaxgnn_spmm_extremum");
  targets.template add<sddmm<Launch>>("jaxgnn_sddmm");
  targets.template add<sddmm_extremum<Launch>>("jaxgnn_sddmm_extremum");
  targets.template add<csr_row_ids<Launch>>("jaxgnn_csr_row_ids");
}

// What only a CPU has.
template <class Launch>
void add_cpu_targets(Targets<Launch>& targets) {
  targets.template add<edge_softmax<Launch>>("jaxgnn_edge_softmax");
}

}  // namespace jaxgnn::aggregation
