// The handlers of Gaussian weights, but for what each platform has of its own: a `Platform` names
// its Context and its Sum and Gradient arguments, takes the rows and the type into them, and runs.
#pragma once

#include <cstdint>
#include <utility>

#include "common/gaussian_limits.h"
#include "ffi/check.h"

namespace jaxgnn {

// What every one of them takes. `far` has a row for each column, and there are `num_columns`.
struct GaussianOperands {
  const AnyBuffer& row_offsets;
  const AnyBuffer& columns;
  const AnyBuffer& splits;
  const AnyBuffer& row_order;
  const AnyBuffer& near;
  const AnyBuffer& far;
  const AnyBuffer& edges;
  const AnyBuffer& mu;
  const AnyBuffer& inv_sigma;
  int64_t num_columns;
  int64_t activation;
  int64_t split_length;
};

// `stacked` are rows of the kernels' features side by side, and `single` of those of one, or of all
// alike.
template <class Platform, class Gaussian>
void take_gaussian(Check& check, const GaussianOperands& from, const AnyBuffer& stacked,
                   const AnyBuffer& single, Gaussian& args) {
  const xla::ffi::DataType type = stacked.element_type(), sums = accumulator(type);
  const int64_t rows = count(from.row_offsets) - 1;
  check.row_structure(from.row_offsets, from.columns, from.splits, from.split_length);
  check.row_order(from.row_order, from.row_offsets);
  check.that(is_value_type(type), "the rows must be float32, bfloat16, float16 or float64");
  check.that(single.element_type() == type, "the rows of either kind must have the same type");
  args.kernels = dim(from.mu, 0);
  args.dims = dim(from.mu, 1);
  args.width = dim(single, 1);
  check.that(args.kernels >= 1, "there must be a kernel");
  check.that(args.dims >= 1 && args.dims <= kMaxDims, "there must be 1 to 16 coordinates");
  check.matrix(from.mu, sums, args.kernels, args.dims,
               "mu must be [kernels, coordinates] of the accumulation type");
  check.matrix(from.inv_sigma, sums, args.kernels, args.dims, "inv_sigma must be like mu");
  check.that(dim(stacked, 1) == args.kernels * args.width,
             "the stacked rows must have the single ones' features for each kernel");
  check.optional_matrix(from.edges, sums, count(from.columns), args.dims,
                        "edges must be [edges, coordinates] of the accumulation type");
  if (count(from.edges) == 0) {
    check.matrix(from.near, sums, rows, args.dims,
                 "near must be [rows, coordinates] of the accumulation type");
    check.matrix(from.far, sums, from.num_columns, args.dims,
                 "far must be [columns, coordinates] of the accumulation type");
  }
  check.that(from.activation == 0 || from.activation == 1, "activation must be 0 or 1");
  args.near = data_or_null(from.near);
  args.far = data_or_null(from.far);
  args.edges = data_or_null(from.edges);
  args.mu = from.mu.untyped_data();
  args.inv_sigma = from.inv_sigma.untyped_data();
  args.tanh = from.activation != 0;
  Platform::take_rows(from, type, args);
}

// The sums, and where those of a row's parts wait to be joined.
inline void check_sums(Check& check, const GaussianOperands& from, const AnyBuffer& out,
                       const AnyBuffer& partials) {
  check.that(dim(out, 0) == count(from.row_offsets) - 1, "the result must have a row for each row");
  check.matrix(partials, accumulator(out.element_type()), dim(from.splits, 0), dim(out, 1),
               "partials must be [parts, features]");
}

// The number of each edge in the graph's order, absent where that is its place.
template <class Gaussian>
void take_permutation(Check& check, const AnyBuffer& permutation, const AnyBuffer& columns,
                      Gaussian& args) {
  check.integers(permutation, "the permutation must be int32 or int64");
  check.that(count(permutation) == 0 || count(permutation) == count(columns),
             "the permutation must have a number for each edge");
  args.permutation = data_or_null(permutation);
  args.wide_permutation = permutation.element_type() == xla::ffi::S64;
}

// The results of the pass over the coordinates, each of which may be absent. `args.gaussian` has
// been taken.
template <class Gradient>
void take_gradients(Check& check, const GaussianOperands& from, const AnyBuffer& single,
                    const AnyBuffer& stacked, bool rows_stacked, AnyBuffer& near_gradient,
                    AnyBuffer& edge_gradient, AnyBuffer& mu_gradient, AnyBuffer& inv_sigma_gradient,
                    AnyBuffer& partials, AnyBuffer& records, Gradient& args) {
  const auto& gaussian = args.gaussian;
  const xla::ffi::DataType sums = accumulator(stacked.element_type());
  const int64_t rows = count(from.row_offsets) - 1, dims = gaussian.dims;
  const int64_t parts = dim(from.splits, 0);
  check.that(dim(rows_stacked ? stacked : single, 0) == rows,
             "the rows must be the nodes of their end");
  check.optional_matrix(near_gradient, sums, rows, dims, "near's gradient must be like it");
  check.optional_matrix(edge_gradient, sums, count(from.columns), dims,
                        "the edges' gradient must be [edges, coordinates]");
  check.optional_matrix(mu_gradient, sums, gaussian.kernels, dims, "mu's gradient must be like it");
  check.optional_matrix(inv_sigma_gradient, sums, gaussian.kernels, dims,
                        "inv_sigma's gradient must be like it");
  check.that(count(mu_gradient) == count(inv_sigma_gradient),
             "mu and inv_sigma must both have a gradient, or neither");
  check.matrix(partials, sums, parts, dims, "partials must be [parts, coordinates]");
  if (count(mu_gradient) > 0) {
    check.matrix(records, sums, parts + rows, 2 * gaussian.kernels * dims,
                 "records must be [parts and rows, two numbers a kernel and coordinate]");
  }
  const auto data = [](AnyBuffer& result) {
    return count(result) == 0 ? nullptr : result.untyped_data();
  };
  args.rows_stacked = rows_stacked;
  args.single = single.untyped_data();
  args.stacked = stacked.untyped_data();
  args.near_gradient = data(near_gradient);
  args.edge_gradient = data(edge_gradient);
  args.mu_gradient = data(mu_gradient);
  args.inv_sigma_gradient = data(inv_sigma_gradient);
  args.partials = partials.untyped_data();
  args.records = data(records);
}

// The handlers, and what they bind behind the context.

template <class Platform>
xla::ffi::Error gaussian_spmm(typename Platform::Context context, AnyBuffer row_offsets,
                              AnyBuffer columns, AnyBuffer splits, AnyBuffer row_order,
                              AnyBuffer permutation, AnyBuffer x, AnyBuffer near, AnyBuffer far,
                              AnyBuffer edges, AnyBuffer mu, AnyBuffer inv_sigma, Result out,
                              Result partials, int64_t reduce, int64_t each, int64_t activation,
                              int64_t split_length) {
  Check check("jaxgnn_gaussian_spmm");
  const GaussianOperands from{row_offsets, columns, splits,    row_order, near,       far,
                              edges,       mu,      inv_sigma, dim(x, 0), activation, split_length};
  typename Platform::Sum args{};
  take_gaussian<Platform>(check, from, each != 0 ? *out : x, each != 0 ? x : *out, args.gaussian);
  take_permutation(check, permutation, columns, args.gaussian);
  check_sums(check, from, *out, *partials);
  check.that(reduce == 0 || reduce == 1, "reduce must be 0 or 1");
  if (check.failed()) return check.error();
  args.mean = reduce == 1;
  args.each = each != 0;
  args.x = x.untyped_data();
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  return Platform::run(context, args, out->size_bytes());
}

template <class Binding>
auto gaussian_spmm_signature(Binding&& context) {
  return std::forward<Binding>(context)
      .template Arg<AnyBuffer>()  // row_offsets
      .template Arg<AnyBuffer>()  // columns
      .template Arg<AnyBuffer>()  // splits
      .template Arg<AnyBuffer>()  // row_order
      .template Arg<AnyBuffer>()  // permutation
      .template Arg<AnyBuffer>()  // x
      .template Arg<AnyBuffer>()  // near
      .template Arg<AnyBuffer>()  // far
      .template Arg<AnyBuffer>()  // edges
      .template Arg<AnyBuffer>()  // mu
      .template Arg<AnyBuffer>()  // inv_sigma
      .template Ret<AnyBuffer>()  // out
      .template Ret<AnyBuffer>()  // partials
      .template Attr<int64_t>("reduce")
      .template Attr<int64_t>("each")
      .template Attr<int64_t>("activation")
      .template Attr<int64_t>("split_length");
}

template <class Platform>
xla::ffi::Error gaussian_coordinates(
    typename Platform::Context context, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer splits,
    AnyBuffer row_order, AnyBuffer permutation, AnyBuffer single, AnyBuffer stacked, AnyBuffer near,
    AnyBuffer far, AnyBuffer edges, AnyBuffer mu, AnyBuffer inv_sigma, Result near_gradient,
    Result edge_gradient, Result mu_gradient, Result inv_sigma_gradient, Result partials,
    Result records, int64_t rows_stacked, int64_t activation, int64_t split_length) {
  Check check("jaxgnn_gaussian_spmm_coordinates");
  const AnyBuffer& gathered = rows_stacked != 0 ? single : stacked;
  const GaussianOperands from{row_offsets, columns,     splits, row_order, near,
                              far,         edges,       mu,     inv_sigma, dim(gathered, 0),
                              activation,  split_length};
  typename Platform::Gradient args{};
  take_gaussian<Platform>(check, from, stacked, single, args.gaussian);
  take_permutation(check, permutation, columns, args.gaussian);
  take_gradients(check, from, single, stacked, rows_stacked != 0, *near_gradient, *edge_gradient,
                 *mu_gradient, *inv_sigma_gradient, *partials, *records, args);
  if (check.failed()) return check.error();
  return Platform::run(context, args);
}

template <class Binding>
auto gaussian_coordinates_signature(Binding&& context) {
  return std::forward<Binding>(context)
      .template Arg<AnyBuffer>()  // row_offsets
      .template Arg<AnyBuffer>()  // columns
      .template Arg<AnyBuffer>()  // splits
      .template Arg<AnyBuffer>()  // row_order
      .template Arg<AnyBuffer>()  // permutation
      .template Arg<AnyBuffer>()  // single
      .template Arg<AnyBuffer>()  // stacked
      .template Arg<AnyBuffer>()  // near
      .template Arg<AnyBuffer>()  // far
      .template Arg<AnyBuffer>()  // edges
      .template Arg<AnyBuffer>()  // mu
      .template Arg<AnyBuffer>()  // inv_sigma
      .template Ret<AnyBuffer>()  // near_gradient
      .template Ret<AnyBuffer>()  // edge_gradient
      .template Ret<AnyBuffer>()  // mu_gradient
      .template Ret<AnyBuffer>()  // inv_sigma_gradient
      .template Ret<AnyBuffer>()  // partials
      .template Ret<AnyBuffer>()  // records
      .template Attr<int64_t>("rows_stacked")
      .template Attr<int64_t>("activation")
      .template Attr<int64_t>("split_length");
}

}  // namespace jaxgnn
