// Attention with additive scores, and its gradients by the rows of either end.
#pragma once

#include "common/attention.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::attention {

#define JAXGNN_DECLARE(isa)                                                     \
  namespace isa {                                                               \
  void attention(const AttentionForwardArgs& args, const Executor&);            \
  void attention_senders(const AttentionGradientArgs& args, const Executor&);   \
  void attention_receivers(const AttentionGradientArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::attention
