// Sums of rows weighted by Gaussians of the edges' coordinates, and their gradients.
#pragma once

#include "common/gaussian.h"
#include "cpu/core/executor.h"
#include "cpu/core/isa_names.h"

namespace jaxgnn::gaussian {

#define JAXGNN_DECLARE(isa)                                                     \
  namespace isa {                                                               \
  void gaussian_spmm(const GaussianSumArgs& args, const Executor&);             \
  void gaussian_coordinates(const GaussianGradientArgs& args, const Executor&); \
  }
JAXGNN_EACH_ISA(JAXGNN_DECLARE)
#undef JAXGNN_DECLARE

}  // namespace jaxgnn::gaussian
