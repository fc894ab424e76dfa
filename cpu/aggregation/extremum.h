// The derivatives of max and min: sums over the edges whose product equals the row's extremum.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

#define JAXGNN_DECLARE(isa)                                      \
  namespace isa {                                                \
  void spmm_extremum(const ExtremumArgs& args, const Executor&); \
  void sddmm_extremum(const SddmmArgs& args, const Executor&);   \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
