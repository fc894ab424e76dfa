// Dot products of edges' rows with other rows on tensor cores, for rows of up to 64 values of 16
// bits, of which each lane of a group of eight has 16 bytes.
//
// What a lane has of two edges' rows is its share of an A operand, whose rows g and g + 8 are
// halves of the two rows. What it has of another row is its share of B, whose columns 2 t and
// 2 t + 1 are the halves of that of group t. Of each product of halves the diagonal is wanted: two
// instructions, without unpacking, and one exchange between lanes.
#pragma once

#include "cuda/core/mma.cuh"
#include "cuda/core/rows.cuh"

namespace jaxgnn {

// In lane 8 q + 4 `side` + t the dot product of group q's first edge (side 0) or second one (side
// 1) with the row `other` of group t. Values past a row's end must be 0 in `other`.
template <typename T>
__device__ inline float edge_dots(const Vector<T, 8>& first, const Vector<T, 8>& second,
                                  const Vector<T, 8>& other, int side) {
  float products[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t halves[4] = {first.bits[i], second.bits[i], first.bits[i + 1],
                                second.bits[i + 1]};
    multiply(products, halves, other.bits[i], other.bits[i + 1], Tag<T>{});
  }
  // The lanes of the first half take the first edge's sum, the others the second's.
  const float keep = side != 0 ? products[3] : products[0];
  const float give = side != 0 ? products[1] : products[2];
  return keep + __shfl_xor_sync(kFullWarp, give, 4);
}

}  // namespace jaxgnn
