// Dropout's mask: a bit a value.
#pragma once

#include "common/dropout.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::dropout {

#define JAXGNN_DECLARE(isa)                         \
  namespace isa {                                   \
  void mask(const MaskArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::dropout
