// The launches of attention.
#pragma once

#include "common/attention_scratch.h"
#include "cuda/core/launch.h"

namespace jaxgnn::attention {

inline bool is_empty(const AttentionArgs& args) {
  return args.rows.num_rows == 0 || args.width == 0;
}

// Additive scores.
cudaError_t launch_attention(const AttentionForwardArgs& args, const Launch& launch);
cudaError_t launch_attention_senders(const AttentionGradientArgs& args, const Launch& launch);
cudaError_t launch_attention_receivers(const AttentionGradientArgs& args, const Launch& launch);
// By receivers where edge_gradient is wanted: that, loop_gradient and scores_gradient.
cudaError_t launch_attention_edges(const AttentionGradientArgs& args, const Launch& launch);
// loop_gradient alone.
cudaError_t launch_attention_loops(const AttentionGradientArgs& args, const Launch& launch);

// Scores of pairs of rows.
cudaError_t launch_dot_attention(const PairForwardArgs& args, const Launch& launch);
cudaError_t launch_dot_attention_gradients(const PairGradientArgs& args, const Launch& launch);
cudaError_t launch_gatv2_attention(const PairForwardArgs& args, const Launch& launch);
cudaError_t launch_gatv2_attention_gradients(const PairGradientArgs& args, const Launch& launch);

}  // namespace jaxgnn::attention
