// Attention with additive scores over compressed balanced sparse rows, and its gradients.
#pragma once

#include "common/sparse_attention.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::attention {

#define JAXGNN_DECLARE(isa)                                                         \
  namespace isa {                                                                   \
  void sparse_attention(const SparseForwardArgs& args, const Executor&);            \
  void sparse_attention_gradients(const SparseGradientArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::attention
