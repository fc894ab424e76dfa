// The handlers of Gaussian weights, for either platform.
#pragma once

#include "common/gaussian.h"
#include "ffi/binding.h"

namespace jaxgnn::gaussian {

// The Gaussians and the coordinates of the edges: `edges`, or the terms of the rows (`row_terms`)
// and of the columns (`column_terms`).
struct GaussianOperands {
  const AnyBuffer& row_terms;
  const AnyBuffer& column_terms;
  const AnyBuffer& edges;
  const AnyBuffer& mu;
  const AnyBuffer& inv_sigma;
  int64_t activation;
};

// Operands of both handlers. `stacked` has the contiguous features of all kernels in a row,
// `single` one row shared by all kernels. `num_columns` counts the rows at the edges' other end.
inline GaussianArgs take_gaussian(Check& check, const RowOperands& rows,
                                  const GaussianOperands& from, const AnyBuffer& permutation,
                                  const AnyBuffer& stacked, const AnyBuffer& single,
                                  int64_t num_columns) {
  const DataType type = stacked.element_type(), sums = accumulator(type);
  GaussianArgs args{};
  args.rows = check.rows(rows);
  args.num_columns = num_columns;
  args.type = value_type(type);
  args.kernels = dim(from.mu, 0);
  args.dims = dim(from.mu, 1);
  args.width = dim(single, 1);
  check.that(is_value_type(type), "the rows must be float32, bfloat16, float16 or float64");
  check.that(args.kernels >= 1, "there must be a kernel");
  check.that(args.dims >= 1 && args.dims <= kMaxDims, "there must be 1 to 16 coordinates");
  check.matrix(from.mu, sums, args.kernels, args.dims,
               "mu must be [kernels, coordinates] of the accumulation type");
  check.matrix(from.inv_sigma, sums, args.kernels, args.dims, "inv_sigma must be like mu");
  check.matrix(single, type, dim(single, 0), args.width,
               "the rows of either kind must be matrices of the same type");
  check.matrix(stacked, type, dim(stacked, 0), args.kernels * args.width,
               "the stacked rows must have the single ones' features for each kernel");
  check.gathered(num_columns, args.rows.num_edges);
  check.optional_matrix(from.edges, sums, args.rows.num_edges, args.dims,
                        "edges must be [edges, coordinates] of the accumulation type");
  if (count(from.edges) == 0) {
    check.matrix(from.row_terms, sums, args.rows.num_rows, args.dims,
                 "row_terms must be [rows, coordinates] of the accumulation type");
    check.matrix(from.column_terms, sums, num_columns, args.dims,
                 "column_terms must be [columns, coordinates] of the accumulation type");
  }
  if (count(permutation) > 0) check.permutation(permutation, args.rows.num_edges);
  check.that(from.activation == 0 || from.activation == 1, "activation must be 0 or 1");
  args.permutation = data_or_null(permutation);
  args.wide_permutation = is_wide(permutation);
  args.row_terms = data_or_null(from.row_terms);
  args.column_terms = data_or_null(from.column_terms);
  args.edges = data_or_null(from.edges);
  args.mu = from.mu.untyped_data();
  args.inv_sigma = from.inv_sigma.untyped_data();
  args.tanh = from.activation != 0;
  return args;
}

template <class Launch>
Error gaussian_spmm(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer chunks,
                    AnyBuffer row_order, AnyBuffer permutation, AnyBuffer x, AnyBuffer row_terms,
                    AnyBuffer column_terms, AnyBuffer edges, AnyBuffer mu, AnyBuffer inv_sigma,
                    Result out, Result partials, Int<attr::reduce> reduce,
                    Int<attr::shared_input> shared_input, Int<attr::activation> activation,
                    Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_gaussian_spmm");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const GaussianOperands from{row_terms, column_terms, edges, mu, inv_sigma, *activation};
  GaussianSumArgs args{};
  args.mean = *reduce == 1;
  args.shared_input = *shared_input != 0;
  args.gaussian = take_gaussian(check, rows, from, permutation, args.shared_input ? *out : x,
                                args.shared_input ? x : *out, dim(x, 0));
  check.that(*reduce == 0 || *reduce == 1, "reduce must be 0 or 1");
  check.that(dim(*out, 0) == rows.num_rows(), "the result must have a row for each row");
  check.matrix(*partials, accumulator(x.element_type()), rows.num_chunks(), dim(*out, 1),
               "partials must be [parts, features] of the accumulation type");
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_gaussian_spmm(args, launch));
}

// Any of the gradients may be absent.
template <class Launch>
Error gaussian_coordinates(Launch launch, AnyBuffer row_offsets, AnyBuffer columns,
                           AnyBuffer chunks, AnyBuffer row_order, AnyBuffer permutation,
                           AnyBuffer single, AnyBuffer stacked, AnyBuffer row_terms,
                           AnyBuffer column_terms, AnyBuffer edges, AnyBuffer mu,
                           AnyBuffer inv_sigma, Result row_terms_gradient, Result edge_gradient,
                           Result mu_gradient, Result inv_sigma_gradient, Result partials,
                           Result block_sums, Int<attr::rows_stacked> rows_stacked,
                           Int<attr::activation> activation, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_gaussian_spmm_coordinates");
  const RowOperands rows{row_offsets, columns, &chunks, *chunk_length, &row_order};
  const GaussianOperands from{row_terms, column_terms, edges, mu, inv_sigma, *activation};
  GaussianGradientArgs args{};
  args.rows_stacked = *rows_stacked != 0;
  const AnyBuffer& at_row = args.rows_stacked ? stacked : single;
  const AnyBuffer& at_column = args.rows_stacked ? single : stacked;
  args.gaussian = take_gaussian(check, rows, from, permutation, stacked, single, dim(at_column, 0));
  const GaussianArgs& gaussian = args.gaussian;
  const DataType sums = accumulator(stacked.element_type());
  const int64_t num_rows = rows.num_rows(), dims = gaussian.dims;
  check.that(dim(at_row, 0) == num_rows, "the rows must be the nodes of their end");
  check.optional_matrix(*row_terms_gradient, sums, num_rows, dims,
                        "row_terms's gradient must be like it");
  check.optional_matrix(*edge_gradient, sums, gaussian.rows.num_edges, dims,
                        "the edges' gradient must be [edges, coordinates]");
  check.optional_matrix(*mu_gradient, sums, gaussian.kernels, dims,
                        "mu's gradient must be like it");
  check.optional_matrix(*inv_sigma_gradient, sums, gaussian.kernels, dims,
                        "inv_sigma's gradient must be like it");
  check.that(count(*mu_gradient) == count(*inv_sigma_gradient),
             "mu and inv_sigma must both have a gradient, or neither");
  check.matrix(*partials, sums, rows.num_chunks(), dims, "partials must be [parts, coordinates]");
  if (count(*edge_gradient) > 0) check.has_rows(gaussian.rows);
  if (count(*mu_gradient) > 0) {
    check.that(num_rows > 0, "there must be rows");
    check.matrix(*block_sums, sums, rows.num_chunks() + num_rows, 2 * gaussian.kernels * dims,
                 "block_sums must be [parts and rows, two numbers a kernel and coordinate]");
  }
  if (check.failed()) return check.error();
  args.single = single.untyped_data();
  args.stacked = stacked.untyped_data();
  args.row_terms_gradient = data_or_null(*row_terms_gradient);
  args.edge_gradient = data_or_null(*edge_gradient);
  args.mu_gradient = data_or_null(*mu_gradient);
  args.inv_sigma_gradient = data_or_null(*inv_sigma_gradient);
  args.partials = partials->untyped_data();
  args.block_sums = data_or_null(*block_sums);
  return finish(check, launch_gaussian_coordinates(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<gaussian_spmm<Launch>>("jaxgnn_gaussian_spmm");
  targets.template add<gaussian_coordinates<Launch>>("jaxgnn_gaussian_spmm_coordinates");
}

}  // namespace jaxgnn::gaussian
