// The XLA FFI handlers of attention over sparse rows by windows, which only a GPU has.
#include "cuda/attention/sparse_windows.h"
#include "cuda/maxk/windows_ffi.h"
#include "cuda/registrations.h"
#include "ffi/sparse_attention.h"

namespace jaxgnn::attention {
namespace {

// What both passes take: no biases and dropout.
struct WindowInputs {
  maxk::WindowOperands windows;
  const AnyBuffer& values;
  const AnyBuffer& indices;
  const AnyBuffer& sender_scores;
  const AnyBuffer& dense;  // [receivers, heads F]
  double negative_slope;
  int64_t self_loops;
  int64_t threads;
};

// All but the rows.
AttentionArgs take_inputs(Check& check, const WindowInputs& from, maxk::Cbsr& cbsr,
                          maxk::Windows& windows) {
  AttentionArgs args{};
  const DataType type = from.values.element_type();
  maxk::check_type<StreamLaunch>(check, type);
  const int64_t senders = dim(from.sender_scores, 0), receivers = dim(from.dense, 0);
  args.type = value_type(type);
  args.heads = dim(from.sender_scores, 1);
  args.width = dim(from.dense, 1);
  args.num_columns = senders;
  args.sender_scores = from.sender_scores.untyped_data();
  args.negative_slope = from.negative_slope;
  args.self_loops = from.self_loops != 0;
  check.heads(args.heads, args.width);
  if (check.failed()) return args;
  cbsr = maxk::take_cbsr(check, &from.values, from.indices, type, args.width / args.heads);
  windows = maxk::take_window_arrays(check, from.windows, receivers);
  check.that(from.windows.window_rows() == maxk::kWindowRows, "windows must have 64 receivers");
  check.gathered(senders, count(from.windows.senders));
  check.that(cbsr.num_rows == senders * args.heads, "values must be [senders heads, k]");
  check.that(cbsr.width % 4 == 0 && cbsr.width <= kWindowHeadWidth,
             "windows need heads whose width is a multiple of 4, at most 256");
  check.that(cbsr.k % 4 == 0 && cbsr.k <= kWindowEntries,
             "windows need a k that is a multiple of 4, at most 32");
  check.that(senders <= INT32_MAX && receivers <= INT32_MAX && args.heads <= kMostWindowHeads,
             "there must be fewer than 2^31 nodes, and at most 32768 heads");
  check.that(from.threads == 384 || from.threads == 512, "threads must be 384 or 512");
  check.matrix(from.sender_scores, xla::ffi::F32, senders, args.heads,
               "sender_scores must be float32 [senders, heads]");
  check.matrix(from.dense, type, receivers, args.width,
               "the receivers' rows must have the values' type");
  return args;
}

Error sparse_window_attention(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                              AnyBuffer chunks, AnyBuffer row_order, AnyBuffer window_rows,
                              AnyBuffer window_parts, AnyBuffer window_senders,
                              AnyBuffer window_masks, AnyBuffer values, AnyBuffer indices,
                              AnyBuffer sender_scores, AnyBuffer receiver_scores, Result out,
                              Result log_sum, Result partials, Result scratch,
                              Float<attr::negative_slope> negative_slope,
                              Int<attr::self_loops> self_loops,
                              Int<attr::chunk_length> chunk_length, Int<attr::threads> threads) {
  Check check("jaxgnn_sparse_window_attention");
  const WindowInputs from{{window_rows, window_parts, window_senders, window_masks},
                          values,
                          indices,
                          sender_scores,
                          *out,
                          *negative_slope,
                          *self_loops,
                          *threads};
  SparseWindowArgs args{};
  AttentionForwardArgs& forward = args.forward.forward;
  forward.attention = take_inputs(check, from, args.forward.cbsr, args.windows);
  AttentionArgs& common = forward.attention;
  common.rows = check.rows({row_offsets, columns, &chunks, *chunk_length, &row_order});
  const int64_t receivers = dim(*out, 0);
  check.that(common.rows.num_rows == receivers, "the rows must be the receivers");
  check.gathered(common.num_columns, common.rows.num_edges);
  check.matrix(receiver_scores, xla::ffi::F32, receivers, common.heads,
               "receiver_scores must be float32 [receivers, heads]");
  check.matrix(*log_sum, xla::ffi::F32, receivers, 2 * common.heads,
               "log_sum must be float32 [receivers, 2 heads]");
  check.matrix(*partials, xla::ffi::S32, dim(*partials, 0), maxk::kWindowRows * common.width,
               "partials must be int32 [places, 64 features]");
  check.vector(*scratch, xla::ffi::F32, window_forward_scratch(common.num_columns, common),
               "scratch must be float32, of the size in sparse_windows.h");
  if (check.failed()) return check.error();
  args.num_partials = dim(*partials, 0);
  args.threads = *threads;
  forward.receiver_scores = receiver_scores.untyped_data();
  forward.out = out->untyped_data();
  forward.log_sum = log_sum->untyped_data();
  forward.partials = partials->untyped_data();
  forward.scratch = scratch->untyped_data();
  return finish(check, launch_sparse_window_attention(args, launch));
}

Error sparse_window_gradients(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                              AnyBuffer chunks, AnyBuffer row_order, AnyBuffer window_rows,
                              AnyBuffer window_parts, AnyBuffer window_senders,
                              AnyBuffer window_masks, AnyBuffer values, AnyBuffer indices,
                              AnyBuffer sender_scores, AnyBuffer cotangent, AnyBuffer receivers,
                              AnyBuffer norms, Result values_gradient, Result sender_gradient,
                              Result receiver_gradient, Result sender_partials, Result scratch,
                              Float<attr::negative_slope> negative_slope,
                              Int<attr::self_loops> self_loops,
                              Int<attr::chunk_length> chunk_length, Int<attr::threads> threads) {
  Check check("jaxgnn_sparse_window_gradients");
  const WindowInputs from{{window_rows, window_parts, window_senders, window_masks},
                          values,
                          indices,
                          sender_scores,
                          cotangent,
                          *negative_slope,
                          *self_loops,
                          *threads};
  SparseWindowGradientArgs args{};
  SparseGradientArgs& gradients = args.gradients;
  gradients.attention = take_inputs(check, from, gradients.cbsr, args.windows);
  AttentionArgs& common = gradients.attention;
  gradients.transpose = check.rows({row_offsets, columns, &chunks, *chunk_length, &row_order});
  const int64_t senders = common.num_columns, heads = common.heads;
  const int64_t num_receivers = common.rows.num_rows = dim(cotangent, 0);
  common.rows.num_edges = gradients.transpose.num_edges;
  check.that(gradients.transpose.num_rows == senders, "the rows must be the senders");
  check.gathered(num_receivers, common.rows.num_edges);
  check.matrix(receivers, xla::ffi::F32, num_receivers, 4 * heads,
               "receivers must be float32 [receivers, 4 heads]");
  check.vector(norms, xla::ffi::F32, heads, "norms must be float32 [heads]");
  check.matrix(*values_gradient, values.element_type(), senders * heads, gradients.cbsr.k,
               "the values' gradient must be like them");
  check.matrix(*sender_gradient, xla::ffi::F32, senders, heads,
               "the senders' gradient must be float32 [senders, heads]");
  check.matrix(*receiver_gradient, xla::ffi::F32, num_receivers, heads,
               "the receivers' gradient must be float32 [receivers, heads]");
  check.matrix(*sender_partials, xla::ffi::F32, gradients.transpose.num_chunks, 2 * heads,
               "the senders' partials must be float32 [parts, 2 heads]");
  check.vector(*scratch, xla::ffi::F32,
               window_scratch(senders, num_receivers, heads, gradients.cbsr.k, common.self_loops),
               "scratch must be float32, of the size in sparse_windows.h");
  if (check.failed()) return check.error();
  args.norms = static_cast<const float*>(norms.untyped_data());
  args.threads = *threads;
  gradients.cotangent = cotangent.untyped_data();
  gradients.receivers = receivers.untyped_data();
  gradients.values_gradient = values_gradient->untyped_data();
  gradients.sender_gradient = sender_gradient->untyped_data();
  gradients.receiver_gradient = receiver_gradient->untyped_data();
  gradients.sender_partials = sender_partials->untyped_data();
  gradients.scratch = scratch->untyped_data();
  return finish(check, launch_sparse_window_gradients(args, launch));
}

}  // namespace

void add_window_targets(CudaTargets& targets) {
  targets.add<sparse_window_attention>("jaxgnn_sparse_window_attention");
  targets.add<sparse_window_gradients>("jaxgnn_sparse_window_gradients");
}

}  // namespace jaxgnn::attention
