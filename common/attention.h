// The arguments of attention. H contiguous heads of F features; jaxgnn/ops has the equations.
#pragma once

#include "common/rows.h"

namespace jaxgnn::attention {

// Attention over the edges e of a row, with scores
//   LeakyReLU(sender_scores[j] + receiver's score[i] + edge_bias[e]).
// Scores, sums, biases and their gradients are in the accumulation type.
struct AttentionArgs {
  Rows rows;
  Type type;
  int64_t heads;
  int64_t width;              // of a row of values: heads times their features
  int64_t num_columns;        // nodes at the edges' other end
  const void* values;         // T[senders, width]
  const void* sender_scores;  // A[senders, H]
  const void* edge_bias;      // A[E, H] in the graph's order, or null
  const void* loop_bias;      // A[receivers, H], or null
  const uint32_t* streams;    // [3, H]: keys and numbers of the heads; null without dropout
  uint32_t drop_below;
  double negative_slope;
  bool self_loops;          // skip the graph's, add one to each row that is a column too
  const void* permutation;  // [E], the graph's edge at each place; null where that is the place
  bool wide_permutation;
};

// out[i] = sum_e softmax(scores)[e] values[j], with dropout; log_sum[i] = log sum_e exp score[e],
// and what its rounding lost.
struct AttentionForwardArgs {
  AttentionArgs attention;
  const void* receiver_scores;  // A[receivers, H]
  void* out;                    // T[receivers, width]
  void* log_sum;                // A[receivers, H, 2]
  void* partials;               // A[num_chunks, width + 2 H], scratch
  void* scratch;                // of a GPU: see cuda/attention/attention.h
};

// The gradients, given that of out. delta is the dot product of the latter with out.
struct AttentionGradientArgs {
  AttentionArgs attention;
  const void* cotangent;  // T[receivers, width]
  const void* receivers;  // A[receivers, 3 H]: score, log_sum, delta
  void* values_gradient;  // by senders: T[senders, width]
  void* scores_gradient;  // A[rows, H]
  void* edge_gradient;    // by receivers: A[E, H], or null
  void* loop_gradient;    // by receivers: A[receivers, H], or null
  void* partials;         // A[num_chunks, width + H] by senders, A[num_chunks, H] by receivers
  void* scratch;          // of a GPU
};

// Attention whose scores need both feature rows of an edge:
//   scale <q[i], k[j]>  or  <vector, LeakyReLU(q[i] + k[j])>,  and edge_bias[e].
struct PairArgs {
  AttentionArgs attention;  // of the values, which may be the keys; without sender_scores
  int64_t head_width;       // of queries and keys
  double score_parameter;   // the scale, or the LeakyReLU's slope
  const void* queries;      // T[receivers, H head_width]
  const void* keys;         // T[senders, H head_width]
  const void* vector;       // A[H, head_width], or null
  const void* key_scale;    // A[senders, H], or null
};

struct PairForwardArgs {
  PairArgs pair;
  void* out;       // T[receivers, width]
  void* log_sum;   // A[receivers, H, 2]
  void* partials;  // A[num_chunks, width + 2 H], scratch
};

// The gradients of the rows at one end. `second` is T[senders, width], the values' gradient, by
// senders and where the values are not the keys; by receivers A[receivers, H head_width], where
// there is a vector: rows whose sum is its gradient.
struct PairGradientArgs {
  PairArgs pair;
  bool by_senders;
  const void* cotangent;   // T[receivers, width]
  const void* node_terms;  // A[receivers, 2 H]: log_sum, delta
  void* first;             // T[rows, H head_width], the gradient of scaled keys or of queries
  void* second;
  void* edge_gradient;  // by receivers: A[E, H], or null
  void* loop_gradient;  // by receivers: A[receivers, H], or null
  void* partials;       // A[num_chunks, H head_width], then A[num_chunks, width of `second`]
};

}  // namespace jaxgnn::attention
