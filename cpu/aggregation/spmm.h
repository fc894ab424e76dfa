// Sparse times dense: out[r] = reduce over the edges of row r of weight * x[index].
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

#define JAXGNN_DECLARE(isa)                         \
  namespace isa {                                   \
  void spmm(const SpmmArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
