// What the kernels of Gaussian weights hold at most, on either platform.
#pragma once

namespace jaxgnn {

// Coordinates of an edge; jaxgnn/ops/_gaussian_kernels.py has the same.
constexpr int kMaxDims = 16;

}  // namespace jaxgnn
