// The products of a graph with compressed balanced sparse rows, one trilinear form's three maps.
#pragma once

#include "common/maxk.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::maxk {

#define JAXGNN_DECLARE(isa)                                      \
  namespace isa {                                                \
  void maxk_spmm(const MaxkProductArgs& args, const Executor&);  \
  void maxk_sspmm(const MaxkProductArgs& args, const Executor&); \
  void maxk_sddmm(const MaxkProductArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::maxk
