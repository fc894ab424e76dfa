// Attention over compressed balanced sparse rows by windows of receivers (cpu/host/windows.h):
// without biases and dropout.
#pragma once

#include "common/sparse_attention.h"
#include "cuda/core/launch.h"
#include "cuda/maxk/windows.h"

namespace jaxgnn::attention {

// The widest head, and at most the entries of a CBSR row and the heads: slices are the grid's y
// axis.
constexpr int64_t kWindowHeadWidth = 256, kWindowEntries = 32, kMostWindowHeads = 32768;
constexpr int kLeastWindowThreads = 384;

// `forward.forward` has int32 [num_partials, 64, width] partials, and window_forward_scratch floats
// of scratch. The heads' width and k are multiples of 4. Windows have 64 receivers.
struct SparseWindowArgs {
  SparseForwardArgs forward;
  maxk::Windows windows;
  int64_t num_partials;
  int64_t threads;  // of a block: 384 or 512
};

inline int64_t window_forward_scratch(int64_t senders, const AttentionArgs& args) {
  return args.heads * (2 * senders + args.rows.num_rows + 3 * int64_t{args.rows.num_chunks}) +
         (args.self_loops ? senders : 0);
}

cudaError_t launch_sparse_window_attention(const SparseWindowArgs& args, const Launch& launch);

// `gradients` has no permutation, biases and partials of the receivers; else the same. Its
// `receivers` are [receivers, H, 4].
struct SparseWindowGradientArgs {
  SparseGradientArgs gradients;
  maxk::Windows windows;
  const float* norms;  // [H]: the largest sum of magnitudes of a CBSR row, if that is finite
  int64_t threads;
};

// Floats of scratch: scales, sums, and flags of the receivers.
int64_t window_scratch(int64_t senders, int64_t receivers, int64_t heads, int64_t k, bool loops);

cudaError_t launch_sparse_window_gradients(const SparseWindowGradientArgs& args,
                                           const Launch& launch);

}  // namespace jaxgnn::attention
