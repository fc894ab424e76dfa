// The XLA FFI handlers: checked buffers in, raw pointers to the kernels of isa.h out.
#include "bindings.h"
#include "ffi/maxk.h"
#include "ffi/spmm.h"
#include "ffi_common.h"
#include "huge_pages.h"
#include "isa.h"
#include "parallel.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// What the products with and without ties have in common; `ties` may be null.
ffi::Error run_spmm(const char* target, ffi::ThreadPool pool, const AnyBuffer& row_offsets,
                    const AnyBuffer& indices, const AnyBuffer& splits, const AnyBuffer& row_order,
                    const AnyBuffer& x, const AnyBuffer& weights, Result& out, Result* ties,
                    Result& partials, int64_t reduce, int64_t split_length) {
  Check check(target);
  const std::optional<ValueType> type = value_type(x.element_type());
  const int64_t edges = count(indices) > 0 ? count(indices) : dim(x, 0);
  SpmmArgs args{};
  check.row_structure(row_offsets, indices, splits, split_length);
  check.row_order(row_order, row_offsets);  // for GPUs: the threads here take rows by number
  args.csr = make_csr(row_offsets, indices, splits, edges, split_length);
  args.width = dim(*out, 1);
  args.heads = count(weights) > 0 ? dim(weights, 1) : 1;
  const ffi::DataType sums = accumulator(x.element_type());
  check.that(type.has_value(), "x must be float32, bfloat16, float16 or float64");
  check.that(out->element_type() == x.element_type() && dim(*out, 0) == args.csr.num_rows,
             "the result must have x's type and a row for each row of the graph");
  check.that(dim(x, 1) == args.width, "x and the result must have as many features");
  check.optional_matrix(weights, sums, edges, args.heads, "weights must be [edges, heads]");
  check.that(args.width % args.heads == 0, "the heads must divide the features");
  check.that((ties == nullptr ? 1 : 2) * args.csr.num_splits * args.width <= count(*partials) &&
                 partials->element_type() == sums,
             "partials must be [parts, features], and as many more with ties");
  check.that(reduce >= (ties == nullptr ? 0 : 2) && reduce <= 3,
             "reduce must be 0, 1, 2 or 3; with ties, 2 or 3");
  if (ties != nullptr) {
    check.matrix(**ties, x.element_type(), args.csr.num_rows, args.width,
                 "ties must be shaped like the result");
  }
  if (check.failed()) return check.error();
  args.type = *type;
  args.reduce = static_cast<Reduce>(reduce);
  args.x = x.untyped_data();
  args.weights = data_or_null(weights);
  args.out = out->untyped_data();
  args.ties = ties == nullptr ? nullptr : (*ties)->untyped_data();
  args.partials = partials->untyped_data();
  prefer_huge_pages(args.out, out->size_bytes());
  if (ties != nullptr) prefer_huge_pages(args.ties, (*ties)->size_bytes());
  kernels().spmm(args, make_executor(pool));
  return ffi::Error::Success();
}

ffi::Error spmm(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer indices, AnyBuffer splits,
                AnyBuffer row_order, AnyBuffer x, AnyBuffer weights, Result out, Result partials,
                int64_t reduce, int64_t split_length) {
  return run_spmm("jaxgnn_spmm", pool, row_offsets, indices, splits, row_order, x, weights, out,
                  nullptr, partials, reduce, split_length);
}

ffi::Error spmm_ties(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer indices,
                     AnyBuffer splits, AnyBuffer row_order, AnyBuffer x, AnyBuffer weights,
                     Result out, Result ties, Result partials, int64_t reduce,
                     int64_t split_length) {
  return run_spmm("jaxgnn_spmm_ties", pool, row_offsets, indices, splits, row_order, x, weights,
                  out, &ties, partials, reduce, split_length);
}

ffi::Error spmm_extremum(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer indices,
                         AnyBuffer splits, AnyBuffer x, AnyBuffer y, AnyBuffer weights,
                         AnyBuffer values, AnyBuffer scale, Result out, Result partials,
                         int64_t transpose, int64_t split_length) {
  Check check("jaxgnn_spmm_extremum");
  const std::optional<ValueType> type = value_type(x.element_type());
  const int64_t edges = count(indices);
  SpmmExtremumArgs args{};
  check.row_structure(row_offsets, indices, splits, split_length);
  args.csr = make_csr(row_offsets, indices, splits, edges, split_length);
  args.transpose = transpose != 0;
  args.width = dim(*out, 1);
  args.heads = count(weights) > 0 ? dim(weights, 1) : 1;
  const ffi::DataType sums = accumulator(x.element_type());
  const AnyBuffer& own = args.transpose ? x : y;
  const AnyBuffer& other = args.transpose ? y : x;
  check.that(type.has_value(), "x must be float32, bfloat16, float16 or float64");
  check.that(y.element_type() == x.element_type() && out->element_type() == x.element_type(),
             "x, y and the result must have the same type");
  check.that(dim(*out, 0) == args.csr.num_rows && dim(own, 0) == args.csr.num_rows,
             "the result must have a row for each row of the graph");
  check.that(dim(x, 1) == args.width && dim(y, 1) == args.width,
             "x, y and the result must have as many features");
  check.optional_matrix(weights, sums, edges, args.heads, "weights must be [edges, heads]");
  check.optional_matrix(scale, sums, edges, args.heads, "scale must be [edges, heads]");
  check.that(count(scale) == count(weights), "there must be a scale if there are weights");
  check.matrix(values, x.element_type(), dim(other, 0), args.width,
               "values must be shaped like the gathered operand");
  check.that(args.width % args.heads == 0, "the heads must divide the features");
  check.that(
      args.csr.num_splits * args.width <= count(*partials) && partials->element_type() == sums,
      "partials must be [parts, features]");
  if (check.failed()) return check.error();
  args.type = *type;
  args.x = x.untyped_data();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  args.values = values.untyped_data();
  args.scale = data_or_null(scale);
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  prefer_huge_pages(args.out, out->size_bytes());
  kernels().spmm_extremum(args, make_executor(pool));
  return ffi::Error::Success();
}

// What sddmm and sddmm_extremum have in common.
SddmmArgs make_sddmm(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& indices,
                     const AnyBuffer& splits, const AnyBuffer& a, const AnyBuffer& b,
                     const AnyBuffer& out, int64_t heads, int64_t split_length) {
  const std::optional<ValueType> type = value_type(a.element_type());
  SddmmArgs args{};
  check.row_structure(row_offsets, indices, splits, split_length);
  args.csr = make_csr(row_offsets, indices, splits, count(indices), split_length);
  args.type = type.value_or(ValueType::f32);
  args.width = dim(a, 1);
  args.heads = heads;
  args.a = a.untyped_data();
  args.b = b.untyped_data();
  args.out = out.untyped_data();
  check.that(type.has_value(), "a must be float32, bfloat16, float16 or float64");
  check.that(b.element_type() == a.element_type(), "a and b must have the same type");
  check.that(dim(a, 0) == args.csr.num_rows, "a must have a row for each row of the graph");
  check.that(dim(b, 1) == args.width, "a and b must have as many features");
  check.that(heads >= 0 && (heads == 0 ? args.width == 0 : args.width % heads == 0),
             "the heads must divide the features");
  check.that(out.element_type() == accumulator(a.element_type()) &&
                 dim(out, 0) == args.csr.num_edges && dim(out, 1) == heads,
             "the result must be [edges, heads] of the accumulation type");
  check.that(args.csr.num_rows > 0 || args.csr.num_edges == 0, "edges without rows");
  return args;
}

ffi::Error sddmm(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer indices, AnyBuffer splits,
                 AnyBuffer a, AnyBuffer b, Result out, int64_t heads, int64_t split_length) {
  Check check("jaxgnn_sddmm");
  const SddmmArgs args =
      make_sddmm(check, row_offsets, indices, splits, a, b, *out, heads, split_length);
  if (check.failed()) return check.error();
  kernels().sddmm(args, make_executor(pool));
  return ffi::Error::Success();
}

ffi::Error sddmm_extremum(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer indices,
                          AnyBuffer splits, AnyBuffer a, AnyBuffer b, AnyBuffer x, AnyBuffer y,
                          AnyBuffer weights, Result out, int64_t heads, int64_t split_length) {
  Check check("jaxgnn_sddmm_extremum");
  SddmmArgs args = make_sddmm(check, row_offsets, indices, splits, a, b, *out, heads, split_length);
  check.that(x.element_type() == a.element_type() && y.element_type() == a.element_type(),
             "a, b, x and y must have the same type");
  check.that(dim(x, 0) == dim(b, 0) && dim(x, 1) == args.width, "x must be shaped like b");
  check.that(dim(y, 0) == dim(a, 0) && dim(y, 1) == args.width, "y must be shaped like a");
  check.optional_matrix(weights, out->element_type(), args.csr.num_edges, heads,
                        "weights must be [edges, heads]");
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  kernels().sddmm_extremum(args, make_executor(pool));
  return ffi::Error::Success();
}

ffi::Error expand_rows(ffi::ThreadPool pool, AnyBuffer row_offsets, Result out) {
  Check check("jaxgnn_expand_rows");
  ExpandRowsArgs args{};
  check.integers(row_offsets, "row_offsets must be int32 or int64");
  check.that(count(row_offsets) >= 1, "row_offsets must have an element more than there are rows");
  args.csr.row_offsets = row_offsets.untyped_data();
  args.csr.wide_offsets = row_offsets.element_type() == ffi::S64;
  args.csr.num_rows = count(row_offsets) - 1;
  args.csr.num_edges = count(*out);
  check.that(out->element_type() == ffi::S32, "the result must be int32");
  if (check.failed()) return check.error();
  args.out = static_cast<int32_t*>(out->untyped_data());
  kernels().expand_rows(args, make_executor(pool));
  return ffi::Error::Success();
}

// Records of k values and columns; `values` may be absent.
Cbsr make_cbsr(Check& check, const AnyBuffer* values, const AnyBuffer& indices, int64_t width,
               ffi::DataType type) {
  Cbsr cbsr{};
  cbsr.num_rows = dim(indices, 0);
  cbsr.k = dim(indices, 1);
  cbsr.width = width;
  cbsr.values = values == nullptr ? nullptr : values->untyped_data();
  cbsr.indices = indices.untyped_data();
  cbsr.wide_indices = indices.element_type() == ffi::U16;
  check.that(indices.element_type() == (width <= 256 ? ffi::U8 : ffi::U16),
             "indices must be uint8 for up to 256 columns, else uint16");
  check.that(cbsr.k >= 1 && cbsr.k <= width && width <= 4096,
             "k must be from 1 to the width, and the width at most 4096");
  if (values != nullptr) {
    check.matrix(*values, type, cbsr.num_rows, cbsr.k, "values must be shaped like the indices");
  }
  return cbsr;
}

void check_columns(Check& check, const Cbsr& cbsr, const Executor& executor) {
  if (check.failed()) return;
  check.that(kernels().cbsr_in_range(cbsr, executor), "an index lies beyond the width");
}

// What both selections have in common.
MaxkArgs make_maxk(Check& check, const AnyBuffer& x, Result& values, Result& indices) {
  const std::optional<ValueType> type = value_type(x.element_type());
  check.that(type.has_value(), "x must be float32, bfloat16, float16 or float64");
  const Cbsr cbsr = make_cbsr(check, &*values, *indices, dim(x, 1), x.element_type());
  check.that(dim(x, 0) == cbsr.num_rows, "x must have as many rows as the results");
  MaxkArgs args{};
  args.type = type.value_or(ValueType::f32);
  args.num_rows = cbsr.num_rows;
  args.width = cbsr.width;
  args.k = cbsr.k;
  args.x = x.untyped_data();
  args.values = values->untyped_data();
  args.indices = indices->untyped_data();
  return args;
}

ffi::Error run_maxk(const Check& check, const MaxkArgs& args, Result& values, Result& indices,
                    ffi::ThreadPool& pool) {
  if (check.failed()) return check.error();
  prefer_huge_pages(args.values, values->size_bytes());
  prefer_huge_pages(args.indices, indices->size_bytes());
  kernels().maxk(args, make_executor(pool));
  return ffi::Error::Success();
}

ffi::Error maxk(ffi::ThreadPool pool, AnyBuffer x, Result values, Result indices) {
  Check check("jaxgnn_maxk");
  const MaxkArgs args = make_maxk(check, x, values, indices);
  return run_maxk(check, args, values, indices, pool);
}

ffi::Error maxk_transformed(ffi::ThreadPool pool, AnyBuffer x, AnyBuffer bias, AnyBuffer keys,
                            Result values, Result indices, int64_t drop_below,
                            int64_t rows_per_example) {
  Check check("jaxgnn_maxk_transformed");
  MaxkArgs args = make_maxk(check, x, values, indices);
  take_transform(check, bias, accumulator(x.element_type()), keys, drop_below, rows_per_example,
                 args);
  return run_maxk(check, args, values, indices, pool);
}

ffi::Error cbsr_scatter(ffi::ThreadPool pool, AnyBuffer values, AnyBuffer indices, Result out) {
  Check check("jaxgnn_cbsr_scatter");
  const std::optional<ValueType> type = value_type(values.element_type());
  check.that(type.has_value(), "values must be float32, bfloat16, float16 or float64");
  CbsrScatterArgs args{};
  args.cbsr = make_cbsr(check, &values, indices, dim(*out, 1), values.element_type());
  check.matrix(*out, values.element_type(), args.cbsr.num_rows, args.cbsr.width,
               "the result must have the values' type and rows");
  const Executor executor = make_executor(pool);
  check_columns(check, args.cbsr, executor);
  if (check.failed()) return check.error();
  args.type = *type;
  args.out = out->untyped_data();
  prefer_huge_pages(args.out, out->size_bytes());
  kernels().cbsr_scatter(args, executor);
  return ffi::Error::Success();
}

// What the three products have in common. `features` are of the type that all are of.
MaxkProductArgs make_product(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
                             const AnyBuffer& splits, const AnyBuffer& features,
                             int64_t split_length) {
  const std::optional<ValueType> type = value_type(features.element_type());
  MaxkProductArgs args{};
  check.row_structure(row_offsets, columns, splits, split_length);
  args.csr = make_csr(row_offsets, columns, splits, count(columns), split_length);
  check.that(type.has_value(), "features must be float32, bfloat16, float16 or float64");
  args.type = type.value_or(ValueType::f32);
  return args;
}

ffi::Error maxk_spmm(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer values, AnyBuffer indices, AnyBuffer weights,
                     Result out, Result partials, Result /*scratch*/, int64_t reduce,
                     int64_t split_length) {
  Check check("jaxgnn_maxk_spmm");
  const ffi::DataType type = values.element_type(), sums = accumulator(type);
  MaxkProductArgs args = make_product(check, row_offsets, columns, splits, values, split_length);
  args.cbsr = make_cbsr(check, &values, indices, dim(*out, 1), type);
  check.matrix(*out, type, args.csr.num_rows, args.cbsr.width,
               "the result must have the values' type and a row for each row of the graph");
  check.optional_matrix(weights, sums, args.csr.num_edges, 1, "weights must be [edges, 1]");
  check.matrix(*partials, sums, args.csr.num_splits, args.cbsr.width,
               "partials must be [parts, width]");
  check.that(reduce == 0 || reduce == 1, "reduce must be 0 or 1");
  const Executor executor = make_executor(pool);
  check_columns(check, args.cbsr, executor);
  if (check.failed()) return check.error();
  args.reduce = static_cast<Reduce>(reduce);
  args.weights = data_or_null(weights);
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  prefer_huge_pages(args.out, out->size_bytes());
  kernels().maxk_spmm(args, executor);
  return ffi::Error::Success();
}

ffi::Error maxk_sspmm(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                      AnyBuffer splits, AnyBuffer y, AnyBuffer indices, AnyBuffer weights,
                      Result out, Result partials, int64_t split_length) {
  Check check("jaxgnn_maxk_sspmm");
  const ffi::DataType type = y.element_type(), sums = accumulator(type);
  MaxkProductArgs args = make_product(check, row_offsets, columns, splits, y, split_length);
  args.cbsr = make_cbsr(check, nullptr, indices, dim(y, 1), type);
  check.that(args.cbsr.num_rows == args.csr.num_rows,
             "indices must have a row for each row of the graph");
  check.matrix(*out, type, args.csr.num_rows, args.cbsr.k,
               "the result must have y's type and the shape of the indices");
  check.optional_matrix(weights, sums, args.csr.num_edges, 1, "weights must be [edges, 1]");
  check.matrix(*partials, sums, args.csr.num_splits, args.cbsr.k, "partials must be [parts, k]");
  const Executor executor = make_executor(pool);
  check_columns(check, args.cbsr, executor);
  if (check.failed()) return check.error();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  prefer_huge_pages(args.out, out->size_bytes());
  kernels().maxk_sspmm(args, executor);
  return ffi::Error::Success();
}

ffi::Error maxk_sddmm(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                      AnyBuffer splits, AnyBuffer values, AnyBuffer indices, AnyBuffer y,
                      Result out, int64_t split_length) {
  Check check("jaxgnn_maxk_sddmm");
  const ffi::DataType type = values.element_type();
  MaxkProductArgs args = make_product(check, row_offsets, columns, splits, values, split_length);
  args.cbsr = make_cbsr(check, &values, indices, dim(y, 1), type);
  check.matrix(y, type, args.csr.num_rows, args.cbsr.width,
               "y must have the values' type and a row for each row of the graph");
  check.matrix(*out, accumulator(type), args.csr.num_edges, 1,
               "the result must be [edges, 1] of the accumulation type");
  check.that(args.csr.num_rows > 0 || args.csr.num_edges == 0, "edges without rows");
  const Executor executor = make_executor(pool);
  check_columns(check, args.cbsr, executor);
  if (check.failed()) return check.error();
  args.y = y.untyped_data();
  args.out = out->untyped_data();
  kernels().maxk_sddmm(args, executor);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(spmm_handler, spmm,
                       spmm_operands(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>())
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(spmm_ties_handler, spmm_ties,
                       spmm_operands(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>())
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // ties
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(spmm_extremum_handler, spmm_extremum,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // y
                           .Arg<AnyBuffer>()  // weights
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // scale
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("transpose")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(sddmm_handler, sddmm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // a
                           .Arg<AnyBuffer>()  // b
                           .Ret<AnyBuffer>()  // out
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(sddmm_extremum_handler, sddmm_extremum,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // a
                           .Arg<AnyBuffer>()  // b
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // y
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(expand_rows_handler, expand_rows,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()    // row_offsets
                           .Ret<AnyBuffer>());  // out

XLA_FFI_DEFINE_HANDLER(maxk_handler, maxk,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()    // x
                           .Ret<AnyBuffer>()    // values
                           .Ret<AnyBuffer>());  // indices

XLA_FFI_DEFINE_HANDLER(maxk_transformed_handler, maxk_transformed,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // bias
                           .Arg<AnyBuffer>()  // keys
                           .Ret<AnyBuffer>()  // values
                           .Ret<AnyBuffer>()  // indices
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("rows_per_example"));

XLA_FFI_DEFINE_HANDLER(cbsr_scatter_handler, cbsr_scatter,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()    // values
                           .Arg<AnyBuffer>()    // indices
                           .Ret<AnyBuffer>());  // out

XLA_FFI_DEFINE_HANDLER(maxk_spmm_handler, maxk_spmm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // scratch
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(maxk_sspmm_handler, maxk_sspmm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // y
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(maxk_sddmm_handler, maxk_sddmm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // y
                           .Ret<AnyBuffer>()  // out
                           .Attr<int64_t>("split_length"));

}  // namespace

void add_target(nanobind::dict& targets, const char* name, XLA_FFI_Handler* handler) {
  targets[name] = nanobind::capsule(reinterpret_cast<void*>(handler));
}

void bind_ffi(nanobind::module_& module) {
  namespace nb = nanobind;
  module.def(
      "registrations",
      [] {
        nb::dict targets;
        auto add = [&targets](const char* name, XLA_FFI_Handler* handler) {
          add_target(targets, name, handler);
        };
        add("jaxgnn_spmm", spmm_handler);
        add("jaxgnn_spmm_ties", spmm_ties_handler);
        add("jaxgnn_spmm_extremum", spmm_extremum_handler);
        add("jaxgnn_sddmm", sddmm_handler);
        add("jaxgnn_sddmm_extremum", sddmm_extremum_handler);
        add("jaxgnn_expand_rows", expand_rows_handler);
        add("jaxgnn_maxk", maxk_handler);
        add("jaxgnn_maxk_transformed", maxk_transformed_handler);
        add("jaxgnn_cbsr_scatter", cbsr_scatter_handler);
        add("jaxgnn_maxk_spmm", maxk_spmm_handler);
        add("jaxgnn_maxk_sspmm", maxk_sspmm_handler);
        add("jaxgnn_maxk_sddmm", maxk_sddmm_handler);
        add_attention_targets(targets);
        add_gaussian_targets(targets);
        add_pair_attention_targets(targets);
        return targets;
      },
      "The XLA FFI handlers by target name, as capsules for jax.ffi.register_ffi_target.");
}

}  // namespace jaxgnn
