// The launches of attention over compressed balanced sparse rows, of types that add in float32.
#pragma once

#include "common/sparse_attention.h"
#include "cuda/core/launch.h"

namespace jaxgnn::attention {

cudaError_t launch_sparse_attention(const SparseForwardArgs& args, const Launch& launch);
cudaError_t launch_sparse_attention_gradients(const SparseGradientArgs& args, const Launch& launch);

}  // namespace jaxgnn::attention
