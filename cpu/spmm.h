// Sparse times dense: out[r] = reduce over the edges of row r of weight * x[index].
#pragma once

#include "csr.h"
#include "isa_names.h"

namespace jaxgnn {

#define JAXGNN_DECLARE(isa)                         \
  namespace isa {                                   \
  void spmm(const SpmmArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn
