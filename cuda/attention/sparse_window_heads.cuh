// How the kernels over windows deal their lanes out: a group of lanes takes an entry, kParts of
// them a head, each with four entries of the CBSR row.
#pragma once

#include "cuda/attention/sparse_windows.h"
#include "cuda/core/shared.cuh"
#include "cuda/maxk/windows.cuh"

namespace jaxgnn::attention {

// The threads and heads of a block: of the heads, rounded up to a power of two, as many as a warp's
// lanes and the device's shared memory hold. bytes(block) is what a block needs of the latter.
// Fewer threads where a multiprocessor then has room for a second block.
struct WindowBlock {
  int threads, heads;
};

template <typename Bytes>
cudaError_t fit_block(int64_t heads, int64_t head_width, int parts, int64_t threads,
                      const Bytes& bytes, WindowBlock& block) {
  constexpr size_t kReserved = 1024;  // of each block, by the driver
  DeviceLimits limits;
  JAXGNN_TRY(find_limits(limits));
  int device = 0, all = 0;
  JAXGNN_TRY(cudaGetDevice(&device));
  JAXGNN_TRY(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  block = {static_cast<int>(threads), 1};
  while (block.heads < heads && 2 * block.heads * parts <= 32 &&
         2 * block.heads * head_width <= kWindowHeadWidth) {
    block.heads *= 2;
  }
  while (bytes(block) > static_cast<size_t>(limits.shared_bytes)) {
    if (block.heads > 1) {
      block.heads /= 2;
    } else if (block.threads > kLeastWindowThreads) {
      block.threads = kLeastWindowThreads;
    } else {
      return cudaErrorInvalidConfiguration;
    }
  }
  if (2 * (bytes(block) + kReserved) > static_cast<size_t>(all))
    block.threads = kLeastWindowThreads;
  return cudaSuccess;
}

// launch_kernel for one that may take all shared memory that a block can have.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_window_kernel(const Launch& launch, void (*kernel)(Parameters...), dim3 grid,
                                 int threads, size_t bytes, const Arguments&... arguments) {
  JAXGNN_TRY(launch_kernel(launch, kernel, grid, threads, bytes, arguments...));
  if (!launch.load) return cudaSuccess;
  DeviceLimits limits;
  JAXGNN_TRY(find_limits(limits));
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes);
}

// Calls f(std::integral_constant<int, threads>{}, std::bool_constant<with self-loops>{}) for the
// threads of a block, or to load for all. Self-loops, which take registers and shared memory, have
// the least.
template <typename F>
cudaError_t with_threads(const Launch& launch, int threads, bool loops, F f) {
  constexpr std::integral_constant<int, kLeastWindowThreads> least;
  constexpr std::integral_constant<int, 512> most;
  if (launch.load || loops) JAXGNN_TRY(f(least, std::true_type{}));
  if (launch.load || (!loops && threads == least)) JAXGNN_TRY(f(least, std::false_type{}));
  if (launch.load || (!loops && threads == most)) JAXGNN_TRY(f(most, std::false_type{}));
  return cudaSuccess;
}

// Where each receiver lies: 64 times its window, plus its place there. Of senders that are no
// receivers nothing is written.
static __global__ void __launch_bounds__(256)
    find_places(const int* window_rows, int64_t size, int* places, int64_t num_senders) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int row = window_rows[i];
  if (row >= 0 && row < num_senders) places[row] = static_cast<int>(i);
}
inline cudaError_t launch_places(const maxk::Windows& windows, int* places, int64_t num_senders,
                                 const Launch& launch) {
  if (!launch.load) {
    JAXGNN_TRY(cudaMemsetAsync(places, 0xff, sizeof(int) * num_senders, launch.stream));
  }
  const int64_t size = int64_t{windows.num_windows} * maxk::kWindowRows;
  return launch_kernel(launch, find_places, blocks_of(size, 256), 256, 0, windows.rows, size,
                       places, num_senders);
}

// f(std::integral_constant<int, lanes of a head>{}) for CBSR rows of k entries, or to load for all.
template <typename F>
cudaError_t with_parts(const Launch& launch, int64_t k, F f) {
  if (launch.load || k <= 4) JAXGNN_TRY(f(std::integral_constant<int, 1>{}));
  if (launch.load || (k > 4 && k <= 8)) JAXGNN_TRY(f(std::integral_constant<int, 2>{}));
  if (launch.load || (k > 8 && k <= 16)) JAXGNN_TRY(f(std::integral_constant<int, 4>{}));
  if (launch.load || k > 16) JAXGNN_TRY(f(std::integral_constant<int, 8>{}));
  return cudaSuccess;
}

// The place of a lane in its group.
struct WindowLane {
  int group, part, own, head, entry;
  bool active;

  __device__ WindowLane(int block_heads, int parts, int heads, int k) {
    const int lanes = block_heads * parts, lane = threadIdx.x & (lanes - 1);
    group = threadIdx.x / lanes;
    part = lane % parts;
    own = lane / parts;
    head = blockIdx.y * block_heads + own;
    entry = 4 * part;
    active = head < heads && entry < k;
  }
};

// x rounded to a whole number, for |x| up to 2^22: as its bits above those of kMagic, or with
// kMagic taken off.
constexpr float kMagic = 0x1.8p23f;
__device__ inline int whole_bits(float rounded) {
  return __float_as_int(rounded) - __float_as_int(kMagic);
}

// A row of four features at a time into shared memory, by a warp.
template <typename T>
__device__ inline void stage_row(const T* from, T* to, int width) {
  for (int f = threadIdx.x % 32 * 4; f < width; f += 128) {
    const Vector<T, 4> vector = load_vector<T, 4>(from + f);
    *reinterpret_cast<decltype(Vector<T, 4>::word)*>(to + f) = vector.word;
  }
}

}  // namespace jaxgnn::attention
