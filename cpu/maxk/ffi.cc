// The XLA FFI handlers of MaxK and its products.
#include "cpu/core/ffi.h"

#include "cpu/core/huge_pages.h"
#include "cpu/core/isa.h"
#include "cpu/core/parallel.h"
#include "ffi/maxk.h"

namespace jaxgnn::maxk {
namespace {

namespace ffi = xla::ffi;

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

void add_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_maxk", maxk_handler);
  add_target(targets, "jaxgnn_maxk_transformed", maxk_transformed_handler);
  add_target(targets, "jaxgnn_cbsr_scatter", cbsr_scatter_handler);
  add_target(targets, "jaxgnn_maxk_spmm", maxk_spmm_handler);
  add_target(targets, "jaxgnn_maxk_sspmm", maxk_sspmm_handler);
  add_target(targets, "jaxgnn_maxk_sddmm", maxk_sddmm_handler);
}

}  // namespace jaxgnn::maxk
