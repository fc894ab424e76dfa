// The softmax of edge scores over each row.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

#define JAXGNN_DECLARE(isa)                                        \
  namespace isa {                                                  \
  void edge_softmax(const EdgeSoftmaxArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
