// Attention whose scores need both feature rows of an edge, and its gradients by the rows of either
// end: see jaxgnn/ops/dot_attention.py and gatv2_attention.py for the equations.
#pragma once

#include "cuda/attention/gat_attention.h"

namespace jaxgnn::attention {

struct PairArgs {
  AttentionArgs attention;  // of the values, which may be the keys; without sender_scores
  int64_t head_width;       // of queries and keys
  double number;            // the scale, or the LeakyReLU's slope
  const void* queries;      // [receivers, heads head_width]
  const void* keys;         // [senders, heads head_width]
  const void* vector;       // [heads, head_width] of the accumulation type, or null
  const void* key_scale;    // [senders, heads] of the accumulation type, or null
};

struct PairForwardArgs {
  PairArgs pair;
  void* out;       // [receivers, width]
  void* log_sum;   // [receivers, heads]
  void* partials;  // [num_splits, width + 2 heads]
};

// The gradients of the rows at one end. `second` is [senders, width], the values' gradient, by
// senders and where the values are not the keys; by receivers [receivers, heads head_width] of the
// accumulation type, each row's share in the gradient of the vector, where there is one.
struct PairGradientArgs {
  PairArgs pair;
  bool by_senders;
  const void* cotangent;  // [receivers, width]
  const void* records;    // [receivers, 2 heads]: log_sum, delta
  void* first;            // [rows, heads head_width], the gradient of scaled keys or of queries
  void* second;
  void* edge_gradient;  // by receivers: [edges, heads], or null
  void* loop_gradient;  // by receivers: [receivers, heads], or null
  void* partials;       // [num_splits, heads head_width], then [num_splits, width of `second`]
};

cudaError_t launch_dot_attention(const PairForwardArgs& args, cudaStream_t stream);
cudaError_t launch_dot_attention_gradients(const PairGradientArgs& args, cudaStream_t stream);
cudaError_t load_dot_attention();
cudaError_t launch_gatv2_attention(const PairForwardArgs& args, cudaStream_t stream);
cudaError_t launch_gatv2_attention_gradients(const PairGradientArgs& args, cudaStream_t stream);
cudaError_t load_gatv2_attention();

}  // namespace jaxgnn::attention
