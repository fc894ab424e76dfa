// The XLA FFI handlers of attention: the scratch of additive scores, and cosine attention, which
// has its own kernels only on a GPU.
#include "cuda/core/ffi.h"

#include "cuda/attention/attention.h"
#include "cuda/attention/cosine_attention.h"
#include "cuda/attention/sparse_attention.h"
#include "cuda/attention/sparse_windows.h"
#include "cuda/maxk/maxk.h"
#include "cuda/registrations.h"
#include "ffi/attention.h"
#include "ffi/sparse_attention.h"

namespace jaxgnn::attention {

namespace {

// What both handlers take: a square structure, and rows of heads that are whole vectors of 16
// bytes.
AttentionArgs take_attention(Check& check, const Rows& rows, const AnyBuffer& x, int64_t heads,
                             int64_t self_loops) {
  AttentionArgs args{};
  const DataType type = x.element_type();
  const int64_t bytes = type == xla::ffi::F32 ? 4 : 2, width = dim(x, 1);
  check.that(is_value_type(type) && type != xla::ffi::F64,
             "x must be float32, bfloat16 or float16");
  check.matrix(x, type, rows.num_rows, width, "x must have a row for each row of the graph");
  check.that(!rows.wide_columns, "the columns must be int32");
  check.features(heads, width);
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

Error cosine_attention(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                       AnyBuffer chunks, AnyBuffer row_order, AnyBuffer x, AnyBuffer row_scale,
                       AnyBuffer column_scale, Result out, Result log_sum, Result partials,
                       Int<attr::heads> heads, Int<attr::self_loops> self_loops,
                       Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_cosine_attention");
  const Rows rows = check.rows({row_offsets, columns, &chunks, *chunk_length, &row_order});
  CosineForwardArgs args{};
  args.attention = take_attention(check, rows, x, *heads, *self_loops);
  check.matrix(row_scale, xla::ffi::F32, rows.num_rows, *heads,
               "row_scale must be float32 [nodes, heads]");
  check.matrix(column_scale, xla::ffi::F32, rows.num_rows, *heads,
               "column_scale must be float32 [nodes, heads]");
  take_results(check, x.element_type(), rows.num_rows, args.attention, *out, *log_sum, *partials,
               args);
  if (check.failed()) return check.error();
  args.row_scale = row_scale.untyped_data();
  args.column_scale = column_scale.untyped_data();
  return finish(check, launch_cosine_attention(args, launch));
}

Error cosine_attention_gradients(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                                 AnyBuffer chunks, AnyBuffer row_order,
                                 AnyBuffer transpose_row_offsets, AnyBuffer transpose_columns,
                                 AnyBuffer transpose_chunks, AnyBuffer transpose_row_order,
                                 AnyBuffer x, AnyBuffer beta, AnyBuffer node_terms,
                                 AnyBuffer cotangent, Result out, Result dots, Result carried,
                                 Result partials, Int<attr::heads> heads,
                                 Int<attr::self_loops> self_loops, Int<attr::symmetric> symmetric,
                                 Int<attr::tensor_cores> tensor_cores,
                                 Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_cosine_attention_gradients");
  const Rows rows = check.rows({row_offsets, columns, &chunks, *chunk_length, &row_order});
  CosineGradientArgs args{};
  args.attention = take_attention(check, rows, x, *heads, *self_loops);
  args.transpose = check.rows({transpose_row_offsets, transpose_columns, &transpose_chunks,
                               *chunk_length, &transpose_row_order});
  args.tensor_cores = *tensor_cores != 0;
  check.that(
      !args.tensor_cores || (x.element_type() != xla::ffi::F32 && *heads <= kMaxTensorCoreHeads &&
                             dim(x, 1) <= kMaxTensorCoreFeatures * *heads),
      "tensor cores take 16-bit values and heads of at most 64 features");
  check.that(args.transpose.num_rows == rows.num_rows &&
                 args.transpose.num_edges == rows.num_edges && !args.transpose.wide_columns,
             "the transpose must be one of the same graph");
  const int64_t width = dim(x, 1);
  const DataType type = x.element_type();
  check.vector(beta, xla::ffi::F32, *heads, "beta must be float32 [heads]");
  check.matrix(node_terms, xla::ffi::F32, rows.num_rows, 4 * *heads,
               "node_terms must be float32 [nodes, 4 heads]");
  check.matrix(cotangent, type, rows.num_rows, width, "the cotangent must be like x");
  check.matrix(*out, type, rows.num_rows, width, "the gradient must be like x");
  check.matrix(*dots, xla::ffi::F32, rows.num_rows, *heads, "dots must be float32 [nodes, heads]");
  args.symmetric = *symmetric != 0;
  if (!args.symmetric) {
    check.matrix(*carried, xla::ffi::F32, rows.num_rows, width,
                 "carried must be float32 [nodes, features]");
  }
  const int64_t parts = rows.num_chunks + int64_t{args.symmetric ? 0 : args.transpose.num_chunks};
  check.matrix(*partials, xla::ffi::F32, parts, 2 * width,
               "partials must be float32 [parts, twice the features]");
  if (check.failed()) return check.error();
  args.cotangent = cotangent.untyped_data();
  args.beta = beta.untyped_data();
  args.node_terms = node_terms.untyped_data();
  args.out = out->untyped_data();
  args.dots = dots->untyped_data();
  args.carried = data_or_null(*carried);
  args.partials = partials->untyped_data();
  return finish(check, launch_cosine_attention_gradients(args, launch));
}

}  // namespace

void add_cuda_targets(CudaTargets& targets) {
  add_targets(targets);
  add_sparse_targets(targets);
  add_window_targets(targets);
  targets.add<cosine_attention>("jaxgnn_cosine_attention");
  targets.add<cosine_attention_gradients>("jaxgnn_cosine_attention_gradients");
}

cudaError_t load_kernels(const Launch& load) {
  JAXGNN_TRY(launch_attention({}, load));
  JAXGNN_TRY(launch_attention_senders({}, load));
  JAXGNN_TRY(launch_attention_receivers({}, load));
  JAXGNN_TRY(launch_sparse_attention({}, load));
  JAXGNN_TRY(launch_sparse_attention_gradients({}, load));
  JAXGNN_TRY(launch_sparse_window_attention({}, load));
  JAXGNN_TRY(launch_sparse_window_gradients({}, load));
  JAXGNN_TRY(launch_dot_attention({}, load));
  JAXGNN_TRY(launch_dot_attention_gradients({}, load));
  JAXGNN_TRY(launch_gatv2_attention({}, load));
  JAXGNN_TRY(launch_gatv2_attention_gradients({}, load));
  JAXGNN_TRY(launch_cosine_attention({}, load));
  return launch_cosine_attention_gradients({}, load);
}

}  // namespace jaxgnn::attention
