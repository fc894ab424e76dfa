// A layer's matrix as tensor cores read it: words of 4 bytes down a column.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace jaxgnn::sampling {

__device__ inline uint32_t tf32(float value) {
  uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
}

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
