// Sums, means and extrema of rows narrower than a vector.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

// `takes_narrow_rows`: whether it is one of these; no edge has several weights.
#define JAXGNN_DECLARE(isa)                                                \
  namespace isa {                                                          \
  bool takes_narrow_rows(const SpmmArgs& args);                            \
  void reduce_narrow_rows(const SpmmArgs& args, const Executor& executor); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
