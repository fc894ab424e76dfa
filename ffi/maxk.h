// The handlers of MaxK and its products, for either platform. Besides what binding.h says, a Launch
// has kFloat64Everywhere, whether its kernels all take float64.
#pragma once

#include "common/maxk.h"
#include "ffi/binding.h"

namespace jaxgnn::maxk {

template <class Launch>
void check_type(Check& check, DataType type) {
  if constexpr (Launch::kFloat64Everywhere) {
    check.that(is_value_type(type), "features must be float32, bfloat16, float16 or float64");
  } else {
    check.that(is_value_type(type) && type != xla::ffi::F64,
               "features must be float32, bfloat16 or float16");
  }
}

// CBSR rows of a width, whose values may be absent. Wide columns have 16 bits at any width.
inline Cbsr take_cbsr(Check& check, const AnyBuffer* values, const AnyBuffer& indices,
                      DataType type, int64_t width, bool wide_columns = false) {
  const Cbsr cbsr{dim(indices, 0), dim(indices, 1), width,
                  values == nullptr ? nullptr : values->untyped_data(), indices.untyped_data()};
  check.that(width >= 1 && width <= kMaxWidth, "the width must be from 1 to 4096");
  check.that(cbsr.k >= 1 && cbsr.k <= width, "k must be from 1 to the width");
  const bool bytes = width <= 256 && !wide_columns;
  check.matrix(indices, bytes ? xla::ffi::U8 : xla::ffi::U16, cbsr.num_rows, cbsr.k,
               "the indices must be [rows, k], uint8 for widths to 256, else uint16");
  if (values != nullptr) {
    check.matrix(*values, type, cbsr.num_rows, cbsr.k, "values must be shaped like the indices");
  }
  return cbsr;
}

// What both selections have in common.
template <class Launch>
MaxkArgs take_selection(Check& check, const AnyBuffer& x, AnyBuffer& values, AnyBuffer& indices) {
  check_type<Launch>(check, x.element_type());
  const Cbsr cbsr = take_cbsr(check, &values, indices, x.element_type(), dim(x, 1));
  check.matrix(x, x.element_type(), cbsr.num_rows, cbsr.width,
               "x must be [rows, width], with as many rows as the results");
  MaxkArgs args{};
  args.type = value_type(x.element_type());
  args.num_rows = cbsr.num_rows;
  args.width = cbsr.width;
  args.k = cbsr.k;
  args.x = x.untyped_data();
  args.values = values.untyped_data();
  args.indices = indices.untyped_data();
  return args;
}

template <class Launch>
Error select(Check& check, Launch& launch, const MaxkArgs& args, AnyBuffer& values,
             AnyBuffer& indices) {
  if (check.failed()) return check.error();
  expect_writes(launch, values);
  expect_writes(launch, indices);
  return finish(check, launch_maxk(args, launch));
}

template <class Launch>
Error maxk(Launch launch, AnyBuffer x, Result values, Result indices) {
  Check check("jaxgnn_maxk");
  const MaxkArgs args = take_selection<Launch>(check, x, *values, *indices);
  return select(check, launch, args, *values, *indices);
}

// That the columns lie within the width, where the platform can tell.
template <class Launch>
void check_columns(Check& check, Launch& launch, const Cbsr& cbsr) {
  if (check.passed()) {
    check.that(columns_in_range(cbsr, launch), "an index lies beyond the width");
  }
}

inline int64_t count_examples(const MaxkArgs& args, int64_t rows_per_example) {
  return rows_per_example < 1 ? 0 : args.num_rows / rows_per_example;
}

// What a selection may do to its rows before: each absent, or one for all examples, or one for
// each.
template <class Launch>
MaxkArgs take_transformed(Check& check, const AnyBuffer& x, const AnyBuffer& bias,
                          const AnyBuffer& keys, AnyBuffer& values, AnyBuffer& indices,
                          int64_t drop_below, int64_t rows_per_example) {
  MaxkArgs args = take_selection<Launch>(check, x, values, indices);
  const int64_t examples = count_examples(args, rows_per_example);
  check.that(rows_per_example >= 1 && args.num_rows == examples * rows_per_example,
             "rows_per_example must divide the rows");
  check.drop_below(drop_below);
  check.optional_matrix(bias, accumulator(x.element_type()), dim(bias, 0) == 1 ? 1 : examples,
                        args.width,
                        "the bias must be [1 or examples, width] of the accumulation type");
  check.optional_matrix(keys, xla::ffi::U32, dim(keys, 0) == 1 ? 1 : examples, 2,
                        "the keys must be uint32 [1 or examples, 2]");
  args.bias = data_or_null(bias);
  args.keys = static_cast<const uint32_t*>(data_or_null(keys));
  args.bias_of_each = dim(bias, 0) > 1;
  args.key_of_each = dim(keys, 0) > 1;
  args.rows_per_example = rows_per_example;
  args.drop_below = static_cast<uint32_t>(drop_below);
  return args;
}

// A selection of what has had a bias added and dropout applied.
template <class Launch>
Error maxk_transformed(Launch launch, AnyBuffer x, AnyBuffer bias, AnyBuffer keys, Result values,
                       Result indices, Int<attr::drop_below> drop_below,
                       Int<attr::rows_per_example> rows_per_example) {
  Check check("jaxgnn_maxk_transformed");
  const MaxkArgs args = take_transformed<Launch>(check, x, bias, keys, *values, *indices,
                                                 *drop_below, *rows_per_example);
  return select(check, launch, args, *values, *indices);
}

// The same of rows that are normalized and scaled before.
template <class Launch>
Error maxk_normalized(Launch launch, AnyBuffer x, AnyBuffer scale, AnyBuffer bias, AnyBuffer keys,
                      Result values, Result indices, Int<attr::drop_below> drop_below,
                      Float<attr::epsilon> epsilon, Int<attr::rows_per_example> rows_per_example) {
  Check check("jaxgnn_maxk_normalized");
  MaxkArgs args = take_transformed<Launch>(check, x, bias, keys, *values, *indices, *drop_below,
                                           *rows_per_example);
  const int64_t examples = count_examples(args, *rows_per_example);
  check.matrix(scale, accumulator(x.element_type()), dim(scale, 0) == 1 ? 1 : examples, args.width,
               "the scale must be [1 or examples, width] of the accumulation type");
  args.scale = scale.untyped_data();
  args.scale_of_each = dim(scale, 0) > 1;
  args.epsilon = *epsilon;
  return select(check, launch, args, *values, *indices);
}

template <class Launch>
Error maxk_normalized_gradient(Launch launch, AnyBuffer x, AnyBuffer scale, AnyBuffer key,
                               AnyBuffer gradient, AnyBuffer indices, Result dx, Result sums,
                               Result partials, Int<attr::drop_below> drop_below,
                               Float<attr::epsilon> epsilon) {
  Check check("jaxgnn_maxk_normalized_gradient");
  const DataType type = x.element_type();
  MaxkNormalizedGradientArgs args{};
  check_type<Launch>(check, type);
  args.cbsr = take_cbsr(check, &gradient, indices, type, dim(x, 1));
  const int64_t rows = args.cbsr.num_rows, width = args.cbsr.width;
  check.matrix(x, type, rows, width, "x must be [rows, width], of the gradients' rows and type");
  check.matrix(*dx, type, rows, width, "the gradient of x must be shaped like x");
  check.matrix(scale, accumulator(type), 1, width,
               "the scale must be [1, width] of the accumulation type");
  check.optional_matrix(key, xla::ffi::U32, 1, 2, "the key must be uint32 [1, 2]");
  check.two_sums(*sums, *partials, type, width);
  check.drop_below(*drop_below);
  check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.scale = scale.untyped_data();
  args.key = static_cast<const uint32_t*>(data_or_null(key));
  args.drop_below = static_cast<uint32_t>(*drop_below);
  args.epsilon = *epsilon;
  args.num_blocks = dim(*partials, 0);
  args.dx = dx->untyped_data();
  args.sums = sums->untyped_data();
  args.partials = partials->untyped_data();
  expect_writes(launch, *dx);
  return finish(check, launch_maxk_normalized_gradient(args, launch));
}

template <class Launch>
Error cbsr_scatter(Launch launch, AnyBuffer values, AnyBuffer indices, Result out) {
  Check check("jaxgnn_cbsr_scatter");
  const DataType type = values.element_type();
  CbsrScatterArgs args{};
  check_type<Launch>(check, type);
  args.cbsr = take_cbsr(check, &values, indices, type, dim(*out, 1));
  check.matrix(*out, type, args.cbsr.num_rows, args.cbsr.width,
               "the result must be [rows, width] of the values' type");
  check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.out = out->untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_cbsr_scatter(args, launch));
}

// What the products have in common, of features of a type.
template <class Launch>
MaxkProductArgs take_product(Check& check, const RowOperands& from, DataType type) {
  check_type<Launch>(check, type);
  MaxkProductArgs args{};
  args.rows = check.rows(from);
  args.type = value_type(type);
  return args;
}

inline const void* take_weights(Check& check, const AnyBuffer& weights, DataType type,
                                int64_t edges) {
  check.optional_matrix(weights, accumulator(type), edges, 1,
                        "weights must be [edges, 1] of the accumulation type");
  return data_or_null(weights);
}

// The forward product's operands and its result.
template <class Launch>
MaxkProductArgs take_spmm(Check& check, const RowOperands& from, const AnyBuffer& values,
                          const AnyBuffer& indices, AnyBuffer& out, int64_t reduce,
                          bool wide_columns = false) {
  const DataType type = values.element_type();
  MaxkProductArgs args = take_product<Launch>(check, from, type);
  args.cbsr = take_cbsr(check, &values, indices, type, dim(out, 1), wide_columns);
  args.reduce = static_cast<Reduce>(reduce);
  args.out = out.untyped_data();
  check.that(reduce == 0 || reduce == 1, "reduce must be 0 or 1");
  check.gathered(args.cbsr.num_rows, args.rows.num_edges);
  check.matrix(out, type, args.rows.num_rows, args.cbsr.width,
               "the result must be [rows, width] of the values' type");
  return args;
}

// The backward product's, but for the number of rows of the result, which are those of `indices`.
template <class Launch>
MaxkProductArgs take_sspmm(Check& check, const RowOperands& from, const AnyBuffer& dense,
                           const AnyBuffer& indices, AnyBuffer& out, bool wide_columns = false) {
  const DataType type = dense.element_type();
  MaxkProductArgs args = take_product<Launch>(check, from, type);
  args.cbsr = take_cbsr(check, nullptr, indices, type, dim(dense, 1), wide_columns);
  args.dense = dense.untyped_data();
  args.out = out.untyped_data();
  check.matrix(dense, type, dim(dense, 0), args.cbsr.width, "the dense operand must be a matrix");
  check.matrix(out, type, args.cbsr.num_rows, args.cbsr.k,
               "the result must have the dense operand's type and be shaped like the indices");
  return args;
}

template <class Launch>
Error maxk_spmm(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                AnyBuffer values, AnyBuffer indices, AnyBuffer weights, Result out, Result partials,
                Result scratch, Int<attr::reduce> reduce, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_maxk_spmm");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  MaxkProductArgs args = take_spmm<Launch>(check, from, values, indices, *out, *reduce);
  args.weights = take_weights(check, weights, values.element_type(), args.rows.num_edges);
  check.matrix(*partials, accumulator(values.element_type()), from.num_chunks(), args.cbsr.width,
               "partials must be [parts, width] of the accumulation type");
  check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.partials = partials->untyped_data();
  expect_writes(launch, *out);
  return run_maxk_spmm(check, args, *scratch, launch);
}

template <class Launch>
Error maxk_sspmm(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                 AnyBuffer dense, AnyBuffer indices, AnyBuffer weights, Result out, Result partials,
                 Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_maxk_sspmm");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  MaxkProductArgs args = take_sspmm<Launch>(check, from, dense, indices, *out);
  check.that(args.rows.num_rows == args.cbsr.num_rows, "the indices must have a row for each row");
  check.gathered(dim(dense, 0), args.rows.num_edges);
  args.weights = take_weights(check, weights, dense.element_type(), args.rows.num_edges);
  check.matrix(*partials, accumulator(dense.element_type()), from.num_chunks(), args.cbsr.k,
               "partials must be [parts, k] of the accumulation type");
  check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.partials = partials->untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_maxk_sspmm(args, launch));
}

template <class Launch>
Error maxk_sddmm(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                 AnyBuffer values, AnyBuffer indices, AnyBuffer dense, Result out,
                 Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_maxk_sddmm");
  const DataType type = values.element_type();
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  MaxkProductArgs args = take_product<Launch>(check, from, type);
  args.cbsr = take_cbsr(check, &values, indices, type, dim(dense, 1));
  check.has_rows(args.rows);
  check.gathered(args.cbsr.num_rows, args.rows.num_edges);
  check.matrix(dense, type, args.rows.num_rows, args.cbsr.width,
               "the dense operand must be [rows, width] of the values' type");
  check.matrix(*out, accumulator(type), args.rows.num_edges, 1,
               "the result must be [edges, 1] of the accumulation type");
  check_columns(check, launch, args.cbsr);
  if (check.failed()) return check.error();
  args.dense = dense.untyped_data();
  args.out = out->untyped_data();
  return finish(check, launch_maxk_sddmm(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<maxk<Launch>>("jaxgnn_maxk");
  targets.template add<maxk_transformed<Launch>>("jaxgnn_maxk_transformed");
  targets.template add<maxk_normalized<Launch>>("jaxgnn_maxk_normalized");
  targets.template add<maxk_normalized_gradient<Launch>>("jaxgnn_maxk_normalized_gradient");
  targets.template add<cbsr_scatter<Launch>>("jaxgnn_cbsr_scatter");
  targets.template add<maxk_spmm<Launch>>("jaxgnn_maxk_spmm");
  targets.template add<maxk_sspmm<Launch>>("jaxgnn_maxk_sspmm");
  targets.template add<maxk_sddmm<Launch>>("jaxgnn_maxk_sddmm");
}

}  // namespace jaxgnn::maxk
