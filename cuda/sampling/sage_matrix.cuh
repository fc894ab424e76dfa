// A layer's matrix as tensor cores read it: words of 4 bytes down a column.
#pragma once

#include "cuda/core/mma.cuh"

namespace jaxgnn::sampling {

// The word `word` of a matrix's column, of one float32 or two 16-bit values; 0 beyond the matrix.
template <typename T>
__device__ inline uint32_t matrix_word(const T* matrix, int64_t rows, int64_t columns, int word,
                                       int column) {
  if constexpr (sizeof(T) == 4) {
    const bool inside = word < rows && column < columns;
    return inside ? tf32(matrix[word * columns + column]) : 0;
  } else {
    uint32_t both = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = 2 * word + k;
      if (row < rows && column < columns) {
        const T value = matrix[row * columns + column];
        both |= uint32_t{*reinterpret_cast<const unsigned short*>(&value)} << 16 * k;
      }
    }
    return both;
  }
}

}  // namespace jaxgnn::sampling
