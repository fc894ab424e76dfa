// The reductions, the store of a finished row or part, and the kernel that joins the parts.
#pragma once

#include "cuda/core/dispatch.cuh"
#include "cuda/core/rows.cuh"

namespace jaxgnn {

struct Sum {
  template <typename A>
  __device__ static A identity(bool) {
    return A(0);
  }
  template <typename A>
  __device__ static A combine(A acc, A v, bool) {
    return acc + v;
  }
};

// max and min in one: NaN wins, as in jnp.maximum.
struct Extremum {
  template <typename A>
  __device__ static A identity(bool minimum) {
    return minimum ? A(INFINITY) : A(-INFINITY);
  }
  template <typename A>
  __device__ static A combine(A acc, A v, bool minimum) {
    const bool better = minimum ? v < acc : v > acc;
    return (better || v != v) && acc == acc ? v : acc;
  }
};

// A part's result goes to its place among the partials; a row's is finished, rounded, stored.
template <typename T, int V, typename A>
__device__ inline void store_row(const Work& work, T* out, A* partials, int64_t width, int64_t f,
                                 bool mean, A (&acc)[V]) {
  if (work.part >= 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) partials[work.part * width + f + i] = acc[i];
    return;
  }
  if (work.degree == 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] = A(0);
  } else if (mean) {
    const A degree = static_cast<A>(work.degree);
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] = acc[i] / degree;
  }
  store_vector<T, V, A>(out + work.row * width + f, acc);
}

// Combines the chunks of each long row in order. One block a chunk; the first block of each row
// does the work.
template <typename T, typename Op, typename A>
__global__ void join_parts(const Rows rows, const A* partials, T* out, int64_t width, bool mean,
                           bool minimum) {
  const int64_t first = blockIdx.x;
  const RowPart chunk = rows.chunks[first];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int64_t degree = load_offset(rows, chunk.row + 1) - load_offset(rows, chunk.row);
  const int64_t parts = (degree + rows.chunk_length - 1) / rows.chunk_length;
  const Work whole{chunk.row, -1, 0, 0, degree};
  for (int64_t f = threadIdx.x; f < width; f += blockDim.x) {
    A acc[1] = {Op::template identity<A>(minimum)};
    const A* partial = partials + first * width + f;
#pragma unroll 8
    for (int64_t k = 0; k < parts; ++k) {
      acc[0] = Op::template combine<A>(acc[0], partial[k * width], minimum);
    }
    store_row<T, 1, A>(whole, out, nullptr, width, f, mean, acc);
  }
}

template <typename T, typename Op, typename A>
cudaError_t launch_join(const Rows& rows, const A* partials, T* out, int64_t width, bool mean,
                        bool minimum, const Launch& launch) {
  if (!launch.load && rows.num_chunks == 0) return cudaSuccess;
  return launch_kernel(launch, join_parts<T, Op, A>, rows.num_chunks, 128, 0, rows, partials, out,
                       width, mean, minimum);
}

}  // namespace jaxgnn
