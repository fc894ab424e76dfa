// The gradient of a projection's weights: a product that is summed over the rows.
#pragma once

#include "common/projection.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::projection {

#define JAXGNN_DECLARE(isa)                                              \
  namespace isa {                                                        \
  void weight_gradient(const WeightGradientArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::projection
