// Sampled dense times dense: the dot product of two feature rows for every edge.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

#define JAXGNN_DECLARE(isa)                           \
  namespace isa {                                     \
  void sddmm(const SddmmArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
