// Sums, means and extrema of rows narrower than a vector, and the derivative of extrema.
#pragma once

#include "common/aggregation.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::aggregation {

// `takes_...`: whether it is one of these; no edge has several weights.
#define JAXGNN_DECLARE(isa)                                                      \
  namespace isa {                                                                \
  bool takes_narrow_rows(const SpmmArgs& args);                                  \
  void reduce_narrow_rows(const SpmmArgs& args, const Executor& executor);       \
  bool takes_narrow_extremum(const ExtremumArgs& args);                          \
  void narrow_spmm_extremum(const ExtremumArgs& args, const Executor& executor); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::aggregation
