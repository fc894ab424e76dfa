// Layer normalization: the rows, and their gradients.
#pragma once

#include "common/normalization.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::normalization {

#define JAXGNN_DECLARE(isa)                                                     \
  namespace isa {                                                               \
  void layer_norm(const LayerNormArgs& args, const Executor&);                  \
  void layer_norm_gradient(const LayerNormGradientArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::normalization
