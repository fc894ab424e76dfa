// The XLA FFI handlers of the products and of what else works by rows.
#include "cpu/core/ffi.h"

#include "cpu/core/huge_pages.h"
#include "cpu/core/isa.h"
#include "cpu/core/parallel.h"
#include "ffi/spmm.h"

namespace jaxgnn::aggregation {
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

ffi::Error csr_row_ids(ffi::ThreadPool pool, AnyBuffer row_offsets, Result out) {
  Check check("jaxgnn_csr_row_ids");
  CsrRowIdsArgs args{};
  check.integers(row_offsets, "row_offsets must be int32 or int64");
  check.that(count(row_offsets) >= 1, "row_offsets must have an element more than there are rows");
  args.csr.row_offsets = row_offsets.untyped_data();
  args.csr.wide_offsets = row_offsets.element_type() == ffi::S64;
  args.csr.num_rows = count(row_offsets) - 1;
  args.csr.num_edges = count(*out);
  check.that(out->element_type() == ffi::S32, "the result must be int32");
  if (check.failed()) return check.error();
  args.out = static_cast<int32_t*>(out->untyped_data());
  kernels().csr_row_ids(args, make_executor(pool));
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

XLA_FFI_DEFINE_HANDLER(csr_row_ids_handler, csr_row_ids,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()    // row_offsets
                           .Ret<AnyBuffer>());  // out

}  // namespace

void add_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_spmm", spmm_handler);
  add_target(targets, "jaxgnn_spmm_ties", spmm_ties_handler);
  add_target(targets, "jaxgnn_spmm_extremum", spmm_extremum_handler);
  add_target(targets, "jaxgnn_sddmm", sddmm_handler);
  add_target(targets, "jaxgnn_sddmm_extremum", sddmm_extremum_handler);
  add_target(targets, "jaxgnn_csr_row_ids", csr_row_ids_handler);
}

}  // namespace jaxgnn::aggregation
