// Compressed balanced sparse rows: the selection of the k largest, and the way back.
#pragma once

#include "common/maxk.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::maxk {

#define JAXGNN_DECLARE(isa)                                                               \
  namespace isa {                                                                         \
  void maxk(const MaxkArgs& args, const Executor&);                                       \
  void maxk_normalized_gradient(const MaxkNormalizedGradientArgs& args, const Executor&); \
  void cbsr_scatter(const CbsrScatterArgs& args, const Executor&);                        \
  bool cbsr_in_range(const Cbsr& cbsr, const Executor&);                                  \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::maxk
