// Rows of a matrix in pinned host memory, read over the bus in whole lines.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;           // loads of a lane
constexpr uintptr_t kLineBytes = 128;  // what a warp's loads are merged into on the bus

// Lanes begin at the line in which the row begins, not at the row: a request on the bus is then a
// whole line, but for the row's ends. Null is a row of zeros.
template <typename V>
__device__ inline void copy_row(const char* row, char* to, int64_t bytes, int lane, int lanes) {
  const V* from = reinterpret_cast<const V*>(row);
  V* out = reinterpret_cast<V*>(to);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(V));
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(row) % kLineBytes / sizeof(V));
  for (int64_t first = lane - before; first < count; first += kInFlight * lanes) {
    V values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t i = first + k * lanes;
      values[k] = V{};
      if (i >= 0 && i < count && from != nullptr) values[k] = __ldg(from + i);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t i = first + k * lanes;
      if (i >= 0 && i < count) out[i] = values[k];
    }
  }
}

// 2^log_lanes lanes a place.
__global__ void __launch_bounds__(kThreads) gather(const HostRowsArgs args, int log_lanes) {
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t place = thread >> log_lanes;
  if (place >= args.num_places) return;
  const int lanes = 1 << log_lanes, lane = threadIdx.x & (lanes - 1);
  const int64_t bytes = args.row_bytes;
  const char* row = row_of_place(args, matrix_of(args), place);
  char* to = args.out + place * bytes;
  const uintptr_t alignment =
      reinterpret_cast<uintptr_t>(row) | reinterpret_cast<uintptr_t>(to) | uintptr_t(bytes);
  if (alignment % 16 == 0) {
    copy_row<uint4>(row, to, bytes, lane, lanes);
  } else if (alignment % 8 == 0) {
    copy_row<uint2>(row, to, bytes, lane, lanes);
  } else if (alignment % 4 == 0) {
    copy_row<uint32_t>(row, to, bytes, lane, lanes);
  } else {
    copy_row<uint16_t>(row, to, bytes, lane, lanes);
  }
}

}  // namespace

cudaError_t launch_gather_host_rows(const HostRowsArgs& args, const Launch& launch) {
  if (!launch.load && (args.num_places == 0 || args.row_bytes == 0)) return cudaSuccess;
  int log_lanes = 0;
  while (log_lanes < 5 && (int64_t{16} << log_lanes) < args.row_bytes) ++log_lanes;
  const unsigned blocks = blocks_of(args.num_places << log_lanes, kThreads);
  return launch_kernel(launch, gather, blocks, kThreads, 0, args, log_lanes);
}

}  // namespace jaxgnn::sampling
