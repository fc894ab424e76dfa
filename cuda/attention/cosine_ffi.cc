// The XLA FFI handlers of attention by cosines.
#include "cuda/attention/cosine_attention.h"
#include "cuda/core/ffi.h"

namespace jaxgnn::attention {
namespace {

namespace ffi = xla::ffi;

// What both handlers take: a square structure, and rows of heads that are whole vectors of 16
// bytes.
AttentionArgs take_attention(Check& check, const Rows& rows, const AnyBuffer& x, int64_t heads,
                             int64_t self_loops) {
  AttentionArgs args{};
  const ffi::DataType type = x.element_type();
  const int64_t bytes = type == ffi::F32 ? 4 : 2, width = dim(x, 1);
  check.that(is_value_type(type) && type != ffi::F64, "x must be float32, bfloat16 or float16");
  check.that(dim(x, 0) == rows.num_rows, "x must have a row for each row of the graph");
  check.that(!rows.wide_columns, "the columns must be int32");
  check.that(heads > 0 && width % heads == 0, "the heads must divide the features");
  if (check.failed()) return args;
  const int64_t head_bytes = width / heads * bytes;
  check.that(head_bytes % 16 == 0 && head_bytes <= 16 * kMaxCosineVectors,
             "a head must have a multiple of 16 bytes, at most 1,024");
  args.rows = rows;
  args.type = value_type(type);
  args.heads = heads;
  args.width = width;
  args.num_columns = rows.num_rows;
  args.values = x.untyped_data();
  args.negative_slope = 1;
  args.self_loops = self_loops != 0;
  return args;
}

Rows take_rows(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
               const AnyBuffer& splits, const AnyBuffer& row_order, int64_t split_length) {
  check.row_structure(row_offsets, columns, splits, split_length);
  check.row_order(row_order, row_offsets);
  return make_rows(row_offsets, columns, &splits, count(columns), split_length, &row_order);
}

ffi::Error forward(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer splits,
                   AnyBuffer row_order, AnyBuffer x, AnyBuffer near_scale, AnyBuffer far_scale,
                   Result out, Result log_sum, Result partials, int64_t heads, int64_t self_loops,
                   int64_t split_length) {
  Check check("jaxgnn_cosine_attention");
  CosineForwardArgs args{};
  const Rows rows = take_rows(check, row_offsets, columns, splits, row_order, split_length);
  args.attention = take_attention(check, rows, x, heads, self_loops);
  const int64_t width = dim(x, 1);
  check.matrix(near_scale, ffi::F32, rows.num_rows, heads, "near_scale must be [nodes, heads]");
  check.matrix(far_scale, ffi::F32, rows.num_rows, heads, "far_scale must be [nodes, heads]");
  check.matrix(*out, x.element_type(), rows.num_rows, width, "the result must be like x");
  check.matrix(*log_sum, ffi::F32, rows.num_rows, heads, "log_sum must be [nodes, heads]");
  check.matrix(*partials, ffi::F32, dim(splits, 0), width + 2 * heads,
               "partials must be [parts, features and two numbers a head]");
  if (check.failed()) return check.error();
  args.near_scale = near_scale.untyped_data();
  args.far_scale = far_scale.untyped_data();
  args.out = out->untyped_data();
  args.log_sum = log_sum->untyped_data();
  args.partials = partials->untyped_data();
  return status("jaxgnn_cosine_attention", launch_cosine_attention(args, stream));
}

ffi::Error gradients(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer row_order, AnyBuffer transpose_row_offsets,
                     AnyBuffer transpose_columns, AnyBuffer transpose_splits,
                     AnyBuffer transpose_row_order, AnyBuffer x, AnyBuffer beta, AnyBuffer records,
                     AnyBuffer cotangent, Result out, Result dots, Result carried, Result partials,
                     int64_t heads, int64_t self_loops, int64_t split_length) {
  Check check("jaxgnn_cosine_attention_gradients");
  CosineGradientArgs args{};
  const Rows rows = take_rows(check, row_offsets, columns, splits, row_order, split_length);
  args.attention = take_attention(check, rows, x, heads, self_loops);
  args.transpose = take_rows(check, transpose_row_offsets, transpose_columns, transpose_splits,
                             transpose_row_order, split_length);
  check.that(args.transpose.num_rows == rows.num_rows &&
                 args.transpose.num_edges == rows.num_edges && !args.transpose.wide_columns,
             "the transpose must be one of the same graph");
  const int64_t width = dim(x, 1), splits_of_either = dim(splits, 0) + dim(transpose_splits, 0);
  const ffi::DataType type = x.element_type();
  check.that(beta.element_type() == ffi::F32 && count(beta) == heads, "beta must be [heads]");
  check.matrix(records, ffi::F32, rows.num_rows, 4 * heads, "records must be [nodes, 4 heads]");
  check.matrix(cotangent, type, rows.num_rows, width, "the cotangent must be like x");
  check.matrix(*out, type, rows.num_rows, width, "the gradient must be like x");
  check.matrix(*dots, ffi::F32, rows.num_rows, heads, "dots must be [nodes, heads]");
  check.matrix(*carried, ffi::F32, rows.num_rows, width, "carried must be [nodes, features]");
  check.matrix(*partials, ffi::F32, splits_of_either, 2 * width,
               "partials must be [parts, twice the features]");
  if (check.failed()) return check.error();
  args.cotangent = cotangent.untyped_data();
  args.beta = beta.untyped_data();
  args.records = records.untyped_data();
  args.out = out->untyped_data();
  args.dots = dots->untyped_data();
  args.carried = carried->untyped_data();
  args.partials = partials->untyped_data();
  return status("jaxgnn_cosine_attention_gradients",
                launch_cosine_attention_gradients(args, stream));
}

XLA_FFI_DEFINE_HANDLER(forward_handler, forward,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // near_scale
                           .Arg<AnyBuffer>()  // far_scale
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // log_sum
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(gradients_handler, gradients,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // row_order
                           .Arg<AnyBuffer>()  // transpose_row_offsets
                           .Arg<AnyBuffer>()  // transpose_columns
                           .Arg<AnyBuffer>()  // transpose_splits
                           .Arg<AnyBuffer>()  // transpose_row_order
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // beta
                           .Arg<AnyBuffer>()  // records
                           .Arg<AnyBuffer>()  // cotangent
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // dots
                           .Ret<AnyBuffer>()  // carried
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("heads")
                           .Attr<int64_t>("self_loops")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_cosine_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_cosine_attention", forward_handler);
  add_target(targets, "jaxgnn_cosine_attention_gradients", gradients_handler);
}

cudaError_t load_cosine() {
  const cudaError_t error = load_cosine_attention();
  return error == cudaSuccess ? load_cosine_attention_gradients() : error;
}

}  // namespace jaxgnn::attention
