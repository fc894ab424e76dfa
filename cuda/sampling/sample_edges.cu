// Which edges each row takes: those of steps through a row, and draws with replacement, here; those
// without replacement in random_edges.cu, those with the smallest words in smallest_edges.cu.
//
// A thread finds the steps of a row, then the warp writes the edges of its 32 rows, a lane an edge:
// finding steps is a chain of divisions that takes as long for a warp as for a lane.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/places.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) no_edges(const SampleArgs args) { fill_tail(args); }

// The edges of 32 places, whose ranges of the output adjoin. A lane finds the place of an entry
// among the ends of the ranges; several entries a lane are in flight.
__global__ void __launch_bounds__(kThreads) stepped_edges(const SampleArgs args) {
  fill_tail(args);
  constexpr int kInFlight = 4;
  const int lane = threadIdx.x % 32;
  const int64_t own = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (own - lane >= args.num_places) return;
  Place mine = find_place(args, own);
  if (own >= args.num_places) mine.last = args.offsets[args.num_places];
  const bool replace = with_replacement(args.sample);
  Steps steps{0, 1};
  if (mine.taken < mine.degree && !replace) {
    steps = steps_of(args.sample, id_of(args, own), mine.degree);
  }
  const uint32_t id = replace && own < args.num_places ? id_of(args, own) : 0;
  const int32_t begin = __shfl_sync(kFullWarp, mine.first, 0);
  const int64_t end = min(int64_t(__shfl_sync(kFullWarp, mine.last, 31)), args.capacity);
  for (int64_t base = begin; base < end; base += 32 * kInFlight) {
    Entry entries[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t at = base + 32 * u + lane;
      int i = 0;  // the first place whose range ends beyond the entry
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (__shfl_sync(kFullWarp, mine.last, i + step - 1) <= at) i += step;
      }
      const int64_t row = __shfl_sync(kFullWarp, mine.begin, i);
      const uint32_t degree = __shfl_sync(kFullWarp, mine.degree, i);
      const uint32_t taken = __shfl_sync(kFullWarp, mine.taken, i);
      const uint32_t j = static_cast<uint32_t>(at - __shfl_sync(kFullWarp, mine.first, i));
      const Steps now{__shfl_sync(kFullWarp, steps.first, i),
                      __shfl_sync(kFullWarp, steps.step, i)};
      const uint32_t id_now = replace ? __shfl_sync(kFullWarp, id, i) : 0;
      const bool valid = at < end && j < taken;
      uint32_t edge = 0;
      if (valid && replace) {
        edge = replaced_edge(args, id_now, j, row, degree);
      } else if (valid) {
        edge = step_to(now, j, degree);
      }
      entries[u] = read_entry(args, row + edge, valid);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t at = base + 32 * u + lane;
      if (at < end) write_entry(args, at, entries[u]);
    }
  }
}

}  // namespace

cudaError_t launch_sample_edges(const SampleArgs& args, const Launch& launch) {
  if (!launch.load && args.capacity == 0) return cudaSuccess;
  if (launch.load || args.num_places == 0) {
    JAXGNN_TRY(launch_kernel(launch, no_edges, 264, kThreads, 0, args));
    if (!launch.load) return cudaSuccess;
  }
  const bool random = args.sample.strategy == Strategy::kRandom;
  const bool smallest = takes_smallest(args.sample);
  if (launch.load || smallest) JAXGNN_TRY(launch_smallest_edges(args, launch));
  if (launch.load || random) JAXGNN_TRY(launch_random_edges(args, launch));
  if (!launch.load && (random || smallest)) return cudaSuccess;
  return launch_kernel(launch, stepped_edges, blocks_of(args.num_places, kThreads), kThreads, 0,
                       args);
}

}  // namespace jaxgnn::sampling
