// The arguments of attention with additive scores over compressed balanced sparse rows (CBSR): of
// each sender and head, k kept values and their columns in the head's F features.
#pragma once

#include "common/attention.h"
#include "common/maxk.h"

namespace jaxgnn::attention {

// `forward.attention` has no values, and heads times F for its width. CBSR row j H + h is of sender
// j and head h. The partials are those of the dense operation.
struct SparseForwardArgs {
  AttentionForwardArgs forward;
  maxk::Cbsr cbsr;
};

// The gradients, given that of the dense operation's result. `attention` has the rows by receivers.
struct SparseGradientArgs {
  AttentionArgs attention;
  maxk::Cbsr cbsr;
  Rows transpose;           // the same edges by senders
  const void* permutation;  // [E], the graph's edge at each place of the transpose
  bool wide_permutation;
  const void* cotangent;    // T[receivers, heads F]
  const void* receivers;    // A[receivers, H, 4]: score, log_sum, delta, largest |cotangent|
  void* values_gradient;    // T[senders H, k]
  void* sender_gradient;    // A[senders, H]
  void* receiver_gradient;  // A[receivers, H]
  void* edge_gradient;      // A[E, H], or null
  void* loop_gradient;      // A[receivers, H], or null
  void* receiver_partials;  // A[num_chunks, H]
  void* sender_partials;    // A[transpose's num_chunks, H (k + 1)]
  void* scratch;            // of a GPU: A[senders H (k + 3)]
};

}  // namespace jaxgnn::attention
