// Batch normalization: the sums over the rows.
#pragma once

#include "common/normalization.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::normalization {

#define JAXGNN_DECLARE(isa)                                          \
  namespace isa {                                                    \
  void centered_sums(const CenteredSumsArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::normalization
