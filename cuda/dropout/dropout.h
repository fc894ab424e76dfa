// The launch of dropout's mask.
#pragma once

#include "common/dropout.h"
#include "cuda/core/launch.h"

namespace jaxgnn::dropout {

cudaError_t launch_mask(const MaskArgs& args, const Launch& launch);

}  // namespace jaxgnn::dropout
