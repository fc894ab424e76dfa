// Attention whose scores need both feature rows of an edge, and its gradients by the rows of either
// end: scaled dot products, and GATv2's vector after the LeakyReLU.
#pragma once

#include "common/attention.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::attention {

#define JAXGNN_DECLARE(isa)                                                      \
  namespace isa {                                                                \
  void dot_attention(const PairForwardArgs& args, const Executor&);              \
  void dot_attention_gradients(const PairGradientArgs& args, const Executor&);   \
  void gatv2_attention(const PairForwardArgs& args, const Executor&);            \
  void gatv2_attention_gradients(const PairGradientArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::attention
