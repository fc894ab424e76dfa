// Sampled dense times dense: the dot product of two feature rows for every edge.
#pragma once

#include "csr.h"
#include "isa_names.h"

namespace jaxgnn {

#define JAXGNN_DECLARE(isa)                           \
  namespace isa {                                     \
  void sddmm(const SddmmArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn
