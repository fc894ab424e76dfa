// The GPU's kernels: a warp for each row, its lanes take the features.
#include <algorithm>

#include "cuda/core/rows.cuh"
#include "kernels.cuh"

namespace dirichlet {
namespace {

using jaxgnn::load_column;
using jaxgnn::load_offset;

constexpr int kWarps = 8;
constexpr int64_t kMaxBlocks = 1 << 20;

__global__ void energy_kernel(EnergyArgs args) {
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  for (; row < args.rows.num_rows; row += stride) {
    const float* own = args.x + row * args.width;
    const int64_t end = load_offset(args.rows, row + 1);
    float sum = 0;
    for (int64_t e = load_offset(args.rows, row); e < end; ++e) {
      const float* other = args.x + load_column(args.rows, e) * args.width;
      for (int64_t f = threadIdx.x; f < args.width; f += 32) {
        const float difference = other[f] - own[f];
        sum += difference * difference;
      }
    }
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(jaxgnn::kFullWarp, sum, lane);
    if (threadIdx.x == 0) args.energy[row] = sum;
  }
}

// The sum over a row's edges for one feature. The factor is the receiver's cotangent.
template <bool kTranspose>
__device__ float sum_of_row(const GradientArgs& args, int64_t row, int64_t f) {
  const jaxgnn::Rows& rows = kTranspose ? args.transpose : args.rows;
  const float own = args.x[row * args.width + f];
  const int64_t end = load_offset(rows, row + 1);
  float sum = 0;
  for (int64_t e = load_offset(rows, row); e < end; ++e) {
    const int64_t column = load_column(rows, e);
    sum += 2 * args.d[kTranspose ? column : row] * (own - args.x[column * args.width + f]);
  }
  return sum;
}

__global__ void gradient_kernel(GradientArgs args) {
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  for (; row < args.rows.num_rows; row += stride) {
    for (int64_t f = threadIdx.x; f < args.width; f += 32) {
      args.gradient[row * args.width + f] =
          sum_of_row<false>(args, row, f) + sum_of_row<true>(args, row, f);
    }
  }
}

template <class Args>
cudaError_t enqueue_rows(void (*kernel)(Args), const Args& args, cudaStream_t stream) {
  if (args.rows.num_rows == 0) return cudaSuccess;
  const int64_t blocks = (args.rows.num_rows + kWarps - 1) / kWarps;
  kernel<<<static_cast<unsigned>(std::min(blocks, kMaxBlocks)), dim3(32, kWarps), 0, stream>>>(
      args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t enqueue(const EnergyArgs& args, cudaStream_t stream) {
  return enqueue_rows(energy_kernel, args, stream);
}

cudaError_t enqueue(const GradientArgs& args, cudaStream_t stream) {
  return enqueue_rows(gradient_kernel, args, stream);
}

}  // namespace dirichlet
