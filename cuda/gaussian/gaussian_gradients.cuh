// What the kernels of the coordinates' gradients share, by long rows and by short ones.
#pragma once

#include "cuda/gaussian/gaussian.cuh"

namespace jaxgnn::gaussian {

template <typename T>
struct CoordinateParams {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Gaussians<A> gaussians;
  const T* single;   // a row for all kernels
  const T* stacked;  // rows for each of them, side by side
  A* row_terms_gradient;
  A* edge_gradient;
  A* partials;
  A* block_sums;  // [teams or warps, 2 * kernels * dims], or null
  int64_t width;
  unsigned single_bytes, stacked_bytes;  // of a row
  int64_t staged;                        // numbers in shared memory before the lanes' own
  int first;                             // kernel; those before have been added to the gradients
};

template <typename T, int V, typename A>
__device__ inline void add_product(const Vector<T, V>& a, const Vector<T, V>& b, A& sum) {
#pragma unroll
  for (int i = 0; i < V; ++i) sum += unpack(a, i) * unpack(b, i);
}

// Blocks a multiprocessor: registers for eight rows in flight pay more than additional warps.
constexpr int kLeastBlocks = 8;

}  // namespace jaxgnn::gaussian
