// Grids whose blocks take slices of the features.
#pragma once

#include "cuda/core/arithmetic.cuh"

namespace jaxgnn {

// Slices are the grid's y axis, and where there are too many of them (65,536) z as well: whole
// slices of that, so that the last blocks may have slices beyond the last.
inline dim3 slice_grid(unsigned blocks, int64_t slices) {
  constexpr int64_t kMost = 32768;
  return dim3(blocks, static_cast<unsigned>(slices < kMost ? slices : kMost),
              blocks_of(slices, kMost));
}

// Which slice a block takes.
__device__ inline int slice_number() { return blockIdx.z * gridDim.y + blockIdx.y; }

}  // namespace jaxgnn
