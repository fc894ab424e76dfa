// The row of every edge, from the row offsets.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

#define JAXGNN_DECLARE(isa)                                     \
  namespace isa {                                               \
  void csr_row_ids(const CsrRowIdsArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
