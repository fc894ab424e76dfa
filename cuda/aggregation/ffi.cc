// The XLA FFI handlers of the products and of what else works by rows.
#include "cuda/core/ffi.h"

#include "cuda/aggregation/csr_row_ids.h"
#include "cuda/aggregation/extremum.h"
#include "cuda/aggregation/sddmm.h"
#include "cuda/aggregation/spmm.h"
#include "ffi/spmm.h"

namespace jaxgnn::aggregation {
namespace {

namespace ffi = xla::ffi;

// What the products with and without ties have in common; `ties` may be null.
ffi::Error run_spmm(const char* target, cudaStream_t stream, const AnyBuffer& row_offsets,
                    const AnyBuffer& columns, const AnyBuffer& splits, const AnyBuffer& row_order,
                    const AnyBuffer& x, const AnyBuffer& weights, Result& out, Result* ties,
                    Result& partials, int64_t reduce, int64_t split_length) {
  Check check(target);
  const int64_t edges = count(columns) > 0 ? count(columns) : dim(x, 0);
  const ffi::DataType type = x.element_type();
  check.row_structure(row_offsets, columns, splits, split_length);
  check.row_order(row_order, row_offsets);
  SpmmArgs args{};
  args.rows = make_rows(row_offsets, columns, &splits, edges, split_length, &row_order);
  args.width = dim(*out, 1);
  args.heads = count(weights) > 0 ? dim(weights, 1) : 1;
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  check.that(dim(x, 1) == args.width, "x and the result must have as many features");
  check.matrix(*out, type, args.rows.num_rows, args.width, "the result must be [rows, features]");
  check.optional_matrix(weights, accumulator(type), edges, args.heads,
                        "weights must be [edges, heads]");
  check.that(args.width % args.heads == 0, "the heads must divide the features");
  check.matrix(*partials, accumulator(type), (ties == nullptr ? 1 : 2) * dim(splits, 0), args.width,
               "partials must be [parts, features], and as many more with ties");
  check.that(reduce >= (ties == nullptr ? 0 : 2) && reduce <= 3,
             "reduce must be 0, 1, 2 or 3; with ties, 2 or 3");
  if (ties != nullptr) {
    check.matrix(**ties, type, args.rows.num_rows, args.width,
                 "ties must be shaped like the result");
  }
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.reduce = static_cast<Reduce>(reduce);
  args.x = x.untyped_data();
  args.weights = data_or_null(weights);
  args.out = out->untyped_data();
  args.ties = ties == nullptr ? nullptr : (*ties)->untyped_data();
  args.partials = partials->untyped_data();
  return status(target, launch_spmm(args, stream));
}

ffi::Error spmm(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer splits,
                AnyBuffer row_order, AnyBuffer x, AnyBuffer weights, Result out, Result partials,
                int64_t reduce, int64_t split_length) {
  return run_spmm("jaxgnn_spmm", stream, row_offsets, columns, splits, row_order, x, weights, out,
                  nullptr, partials, reduce, split_length);
}

ffi::Error spmm_ties(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer row_order, AnyBuffer x, AnyBuffer weights,
                     Result out, Result ties, Result partials, int64_t reduce,
                     int64_t split_length) {
  return run_spmm("jaxgnn_spmm_ties", stream, row_offsets, columns, splits, row_order, x, weights,
                  out, &ties, partials, reduce, split_length);
}

ffi::Error spmm_extremum(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                         AnyBuffer splits, AnyBuffer x, AnyBuffer y, AnyBuffer weights,
                         AnyBuffer values, AnyBuffer scale, Result out, Result partials,
                         int64_t transpose, int64_t split_length) {
  Check check("jaxgnn_spmm_extremum");
  const int64_t edges = count(columns);
  const ffi::DataType type = x.element_type();
  check.row_structure(row_offsets, columns, splits, split_length);
  ExtremumArgs args{};
  args.rows = make_rows(row_offsets, columns, &splits, edges, split_length);
  args.transpose = transpose != 0;
  args.width = dim(*out, 1);
  args.heads = count(weights) > 0 ? dim(weights, 1) : 1;
  const AnyBuffer& at_row = args.transpose ? x : y;
  const AnyBuffer& at_column = args.transpose ? y : x;
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  check.matrix(*out, type, args.rows.num_rows, args.width, "the result must be [rows, features]");
  check.matrix(at_row, type, args.rows.num_rows, args.width,
               "the rows' operand must be [rows, features]");
  check.matrix(at_column, type, dim(at_column, 0), args.width,
               "the gathered operand must have as many features as the result");
  check.matrix(values, type, dim(at_column, 0), args.width,
               "values must be shaped like the gathered operand");
  check.optional_matrix(weights, accumulator(type), edges, args.heads,
                        "weights must be [edges, heads]");
  check.optional_matrix(scale, accumulator(type), edges, args.heads,
                        "scale must be [edges, heads]");
  check.that(count(scale) == count(weights), "there must be a scale if there are weights");
  check.that(args.width % args.heads == 0, "the heads must divide the features");
  check.matrix(*partials, accumulator(type), dim(splits, 0), args.width,
               "partials must be [parts, features]");
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  args.values = values.untyped_data();
  args.scale = data_or_null(scale);
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  return status("jaxgnn_spmm_extremum", launch_extremum(args, stream));
}

// What sddmm and sddmm_extremum have in common.
SddmmArgs make_sddmm(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
                     const AnyBuffer& splits, const AnyBuffer& a, const AnyBuffer& b,
                     const AnyBuffer& out, int64_t heads, int64_t split_length) {
  const ffi::DataType type = a.element_type();
  check.row_structure(row_offsets, columns, splits, split_length);
  SddmmArgs args{};
  args.rows = make_rows(row_offsets, columns, &splits, count(columns), split_length);
  check.that(is_value_type(type), "a must be float32, bfloat16, float16 or float64");
  check.that(heads > 0 && dim(a, 1) % heads == 0, "the heads must divide the features");
  check.matrix(a, type, args.rows.num_rows, dim(a, 1), "a must be [rows, features]");
  check.matrix(b, type, dim(b, 0), dim(a, 1), "a and b must have the same type and width");
  check.matrix(out, accumulator(type), count(columns), heads, "the result must be [edges, heads]");
  args.type = value_type(type);
  args.a = a.untyped_data();
  args.b = b.untyped_data();
  args.out = const_cast<AnyBuffer&>(out).untyped_data();
  args.heads = heads;
  args.width = heads > 0 ? dim(a, 1) / heads : 0;
  args.num_columns = dim(b, 0);
  return args;
}

ffi::Error sddmm(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer splits,
                 AnyBuffer a, AnyBuffer b, Result out, int64_t heads, int64_t split_length) {
  Check check("jaxgnn_sddmm");
  const SddmmArgs args =
      make_sddmm(check, row_offsets, columns, splits, a, b, *out, heads, split_length);
  if (check.failed()) return check.error();
  return status("jaxgnn_sddmm", launch_sddmm(args, stream));
}

ffi::Error sddmm_extremum(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                          AnyBuffer splits, AnyBuffer a, AnyBuffer b, AnyBuffer x, AnyBuffer y,
                          AnyBuffer weights, Result out, int64_t heads, int64_t split_length) {
  Check check("jaxgnn_sddmm_extremum");
  SddmmArgs args = make_sddmm(check, row_offsets, columns, splits, a, b, *out, heads, split_length);
  check.matrix(x, a.element_type(), dim(b, 0), dim(b, 1), "x must be shaped like b");
  check.matrix(y, a.element_type(), dim(a, 0), dim(a, 1), "y must be shaped like a");
  check.optional_matrix(weights, accumulator(a.element_type()), count(columns), heads,
                        "weights must be [edges, heads]");
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.y = y.untyped_data();
  args.weights = data_or_null(weights);
  return status("jaxgnn_sddmm_extremum", launch_sddmm(args, stream));
}

ffi::Error csr_row_ids(cudaStream_t stream, AnyBuffer row_offsets, Result out) {
  Check check("jaxgnn_csr_row_ids");
  check.integers(row_offsets, "row_offsets must be int32 or int64");
  check.that(count(row_offsets) >= 1, "row_offsets must have an element more than there are rows");
  check.that(out->element_type() == ffi::S32, "the result must be int32");
  if (check.failed()) return check.error();
  const Rows rows = make_rows(row_offsets, row_offsets, nullptr, count(*out), 0);
  return status("jaxgnn_csr_row_ids",
                launch_csr_row_ids(rows, static_cast<int32_t*>(out->untyped_data()), stream));
}

XLA_FFI_DEFINE_HANDLER(spmm_handler, spmm,
                       spmm_operands(ffi::Ffi::Bind().Ctx<Stream>())
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(spmm_ties_handler, spmm_ties,
                       spmm_operands(ffi::Ffi::Bind().Ctx<Stream>())
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // ties
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(spmm_extremum_handler, spmm_extremum,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // y
                           .Arg<AnyBuffer>()  // weights
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // scale
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("transpose")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(sddmm_handler, sddmm,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // a
                           .Arg<AnyBuffer>()  // b
                           .Ret<AnyBuffer>()  // out
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(sddmm_extremum_handler, sddmm_extremum,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // a
                           .Arg<AnyBuffer>()  // b
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // y
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(csr_row_ids_handler, csr_row_ids,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Ret<AnyBuffer>(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_spmm", spmm_handler);
  add_target(targets, "jaxgnn_spmm_ties", spmm_ties_handler);
  add_target(targets, "jaxgnn_spmm_extremum", spmm_extremum_handler);
  add_target(targets, "jaxgnn_sddmm", sddmm_handler);
  add_target(targets, "jaxgnn_sddmm_extremum", sddmm_extremum_handler);
  add_target(targets, "jaxgnn_csr_row_ids", csr_row_ids_handler);
}

cudaError_t load_kernels() {
  for (cudaError_t (*load)() : {load_spmm, load_sddmm, load_extremum, load_csr_row_ids}) {
    const cudaError_t error = load();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxgnn::aggregation
