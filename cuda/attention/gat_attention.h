// Attention with additive scores, and its gradients by the rows of either end: see
// jaxgnn/ops/gat_attention.py for the equations.
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::attention {

// Scores, sums, biases and their gradients are in the accumulation type.
struct AttentionArgs {
  Rows rows;
  Type type;
  int64_t heads;
  int64_t width;              // of a row of values: heads times their features
  int64_t num_columns;        // rows at the edges' other end
  const void* values;         // [senders, width]
  const void* sender_scores;  // [senders, heads]
  const void* edge_bias;      // [edges, heads] in the graph's order, or null
  const void* loop_bias;      // [receivers, heads], or null
  const uint32_t* streams;    // [3, heads]: keys and numbers of the heads; null without dropout
  uint32_t drop_below;
  double negative_slope;
  bool self_loops;    // pass over the graph's, give one to each row that is also a column
  const void* order;  // [edges], the graph's edge at each place; null where that is the place
  bool wide_order;
};

struct AttentionForwardArgs {
  AttentionArgs attention;
  const void* receiver_scores;  // [receivers, heads]
  void* out;                    // [receivers, width]
  void* log_sum;                // [receivers, heads]
  void* partials;               // [num_splits, width + 2 heads]
  void* scratch;                // forward_scratch() entries
};

struct AttentionGradientArgs {
  AttentionArgs attention;
  const void* cotangent;  // [receivers, width]
  const void* receivers;  // [receivers, 3 heads]: score, log_sum, delta
  void* values_gradient;  // by senders: [senders, width]
  void* scores_gradient;  // [rows, heads]
  void* edge_gradient;    // by receivers: [edges, heads], or null
  void* loop_gradient;    // by receivers: [receivers, heads], or null
  void* partials;         // by senders: [num_splits, width + heads], by receivers: [., heads]
  void* scratch;          // gradient_scratch() entries
};

// Sizes of scratch, in entries of the accumulation type; jaxgnn/ops/_attention_kernels.py has the
// same. Forward: the columns' numbers by heads. Gradients: four of those, then for each row or part
// and head a dot product by slices of at least 16 features, then the row's choice of a side.
inline int64_t forward_scratch(int64_t num_columns, int64_t heads) { return num_columns * heads; }
inline int64_t sides_offset(const AttentionArgs& args) {
  const int64_t slices = args.heads == 0 ? 0 : (args.width / args.heads + 15) / 16;
  return args.heads * (4 * args.num_columns + (args.rows.num_rows + args.rows.num_splits) * slices);
}
inline int64_t gradient_scratch(const AttentionArgs& args) {
  return sides_offset(args) + args.rows.num_rows * args.heads;
}

cudaError_t launch_attention(const AttentionForwardArgs& args, cudaStream_t stream);
cudaError_t launch_attention_senders(const AttentionGradientArgs& args, cudaStream_t stream);
cudaError_t launch_attention_receivers(const AttentionGradientArgs& args, cudaStream_t stream);
cudaError_t load_attention();
cudaError_t load_attention_gradients();
cudaError_t load_attention_edges();

// By receivers where edge_gradient is wanted: that, loop_gradient and scores_gradient.
cudaError_t launch_attention_edges(const AttentionGradientArgs& args, cudaStream_t stream);
// loop_gradient alone.
cudaError_t launch_attention_loops(const AttentionGradientArgs& args, cudaStream_t stream);

}  // namespace jaxgnn::attention
