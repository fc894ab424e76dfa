// The scratch memory of attention with additive scores, which a GPU needs.
#pragma once

#include "common/attention.h"

namespace jaxgnn::attention {

// Sizes of scratch, in entries of the accumulation type; the same as in
// jaxgnn/ops/_attention/gat_kernels.py. Forward: one term for each column and head. Gradients: four
// such terms, then for each row or chunk and head one dot product a slice of at least 16 features,
// then the side chosen for the row.
inline int64_t forward_scratch(const AttentionArgs& args) { return args.num_columns * args.heads; }
inline int64_t sides_offset(const AttentionArgs& args) {
  const int64_t slices = args.heads == 0 ? 0 : (args.width / args.heads + 15) / 16;
  return args.heads * (4 * args.num_columns + (args.rows.num_rows + args.rows.num_chunks) * slices);
}
inline int64_t gradient_scratch(const AttentionArgs& args) {
  return sides_offset(args) + args.rows.num_rows * args.heads;
}

}  // namespace jaxgnn::attention
