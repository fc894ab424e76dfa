// The row of every edge, from the row offsets.
#pragma once

#include "csr.h"
#include "isa_names.h"

namespace jaxgnn {

#define JAXGNN_DECLARE(isa)                                      \
  namespace isa {                                                \
  void expand_rows(const ExpandRowsArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn
