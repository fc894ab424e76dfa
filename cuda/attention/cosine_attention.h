// Attention whose scores are cosines of the rows that it averages, and its gradients: see
// jaxgnn/ops/_attention/cosine_attention.py for the equations.
#pragma once

#include "cuda/attention/attention.h"

namespace jaxgnn::attention {

// Widest heads, in vectors of 16 bytes; jaxgnn/ops/_attention/cosine_rule.py has the same.
constexpr int64_t kMaxCosineVectors = 64;

// Rows are the receivers', columns of 32 bits, and heads whole vectors of 16 bytes, at most
// kMaxCosineVectors.
struct CosineForwardArgs {
  AttentionArgs attention;   // of the rows; without scores, biases and dropout
  const void* row_scale;     // [nodes, heads]: beta over the row's norm,
  const void* column_scale;  // [nodes, heads]: 1 over it
  void* out;                 // [nodes, width]
  void* log_sum;             // [nodes, heads, 2]
  void* partials;            // [num_chunks, width + 2 heads]
};

// What the walks on tensor cores take: values of 16 bits, and heads of at most so many features.
constexpr int64_t kMaxTensorCoreFeatures = 64;
constexpr int64_t kMaxTensorCoreHeads = 65535;  // of a grid's second axis

struct CosineGradientArgs {
  AttentionArgs attention;  // as above
  bool tensor_cores;        // make the dot products there
  bool symmetric;           // edges go both ways: `attention.rows` is its own transpose
  Rows transpose;           // not read if symmetric
  const void* cotangent;    // [nodes, width]
  const void* beta;         // [heads]
  const void* node_terms;   // [nodes, heads, 4]: log_sum, delta, 1 / norm, and 1 / norm^3, or 0
                            // where the norm is taken for a constant
  void* out;                // [nodes, width]
  void* dots;               // [nodes, heads]: each row's share in twice beta's gradient
  void* carried;            // [nodes, width], scratch; null if symmetric
  void* partials;           // [num_chunks of all that is read, 2 width]
};

cudaError_t launch_cosine_attention(const CosineForwardArgs& args, const Launch& launch);
cudaError_t launch_cosine_attention_gradients(const CosineGradientArgs& args, const Launch& launch);

}  // namespace jaxgnn::attention
