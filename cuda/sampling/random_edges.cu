// Random edges without replacement, by Floyd's algorithm: a thread a row, or a lane an edge, or,
// beyond 32, a warp a row and a table in shared memory.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/floyd.cuh"
#include "cuda/sampling/places.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kVeryFewEdges = 16;   // of a row, within a thread
constexpr int64_t kFewEdges = 32;       // within a warp
constexpr int64_t kManyRows = 1 << 16;  // a thread a row for fewer leaves most of the GPU idle

// Floyd's algorithm by a thread a row, of at most kMost edges. The rows of a block adjoin in the
// output: it lists their edges in shared memory and writes them side by side.
template <int kMost>
__global__ void __launch_bounds__(kThreads) very_few_random_edges(const SampleArgs args) {
  __shared__ int64_t listed[kThreads * kMost];
  fill_tail(args);
  const int64_t first = int64_t(blockIdx.x) * kThreads, own = first + threadIdx.x;
  const int64_t begin = args.offsets[first];
  const int64_t end = args.offsets[min(first + kThreads, args.num_places)];
  const Place place = find_place(args, own);
  const uint32_t d = place.degree, k = place.taken;
  const uint32_t room = static_cast<uint32_t>(place.last - place.first);
  uint32_t edges[kMost];
  floyd(edges, k, d, own < args.num_places ? id_of(args, own) : 0, args.sample.key);
  // Where places have more room than edges, a thread writes its own.
  if (begin < 0 || begin > end || end > args.capacity || end - begin > kThreads * kMost) {
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      if (i >= room) break;
      write_entry(args, place.first + int64_t{i}, read_entry(args, place.begin + edges[i], i < k));
    }
    for (uint32_t i = kMost; i < room; ++i) {
      write_entry(args, place.first + int64_t{i}, read_entry(args, 0, false));
    }
    return;
  }
  if (place.first >= begin && place.last <= end) {
    int64_t* list = listed + (place.first - begin);
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      if (i < room) list[i] = i < k ? place.begin + edges[i] : args.rows.num_edges;
    }
    for (uint32_t i = kMost; i < room; ++i) list[i] = args.rows.num_edges;
  }
  __syncthreads();
  const int total = static_cast<int>(end - begin);
#pragma unroll 4
  for (int at = threadIdx.x; at < total; at += kThreads) {
    const int64_t edge = listed[at];
    const bool valid = edge >= 0 && edge < args.rows.num_edges;
    write_entry(args, begin + at, read_entry(args, edge, valid));
  }
}

// The same for rows of at most kLanes edges, a lane a number: what a number takes is final once the
// earlier ones have sent theirs. Rows of a warp differ in d and k: all send `size` numbers, and
// those from k on change nothing before them.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) few_random_edges(const SampleArgs args) {
  static_assert(kLanes <= 32 && kThreads % 32 == 0, "a row is within a warp");
  fill_tail(args);
  const int64_t own = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const uint32_t i = threadIdx.x % kLanes;
  const Place place = find_place(args, own);
  const uint32_t d = place.degree, k = place.taken, base = d - k;
  const uint32_t room = static_cast<uint32_t>(place.last - place.first);
  const uint32_t size = static_cast<uint32_t>(args.sample.size);
  uint32_t edge = i;
  if (i < k && k < d) edge = below(draw_word(id_of(args, own), i, args.sample.key), base + i + 1);
#pragma unroll 4
  for (uint32_t earlier = 0; earlier + 1 < size; ++earlier) {
    const uint32_t taken = __shfl_sync(kFullWarp, edge, earlier, kLanes);
    if (earlier < i && taken == edge) edge = base + i;
  }
  for (uint32_t at = i; at < room; at += kLanes) {
    write_entry(args, place.first + int64_t(at), read_entry(args, place.begin + edge, at < k));
  }
}

// Floyd's algorithm for a whole row at once, with a warp: number i draws t below j + 1, j = d - k +
// i, and takes t, or j if t is taken. After number i, t is taken either way, and j where that
// collided. So t is taken already if an earlier number drew it (the table has the first that drew
// each value), or if it is the j of an earlier number that collided.
__global__ void random_edges(const SampleArgs args, uint32_t slots) {
  extern __shared__ uint32_t shared[];
  const uint32_t size = static_cast<uint32_t>(args.sample.size);
  const int lane = threadIdx.x % 32;
  const int64_t own = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  uint32_t* table = shared + (threadIdx.x / 32) * (slots + 2 * size);
  uint32_t* drawn = table + slots;
  uint32_t* collided = drawn + size;
  constexpr uint32_t kFree = 0xffffffffu;
  fill_tail(args);
  const Place place = find_place(args, own);
  const uint32_t id = own < args.num_places ? id_of(args, own) : 0;
  const uint32_t d = place.degree, k = place.taken, base = d - k;
  const uint32_t room = static_cast<uint32_t>(place.last - place.first);
  if (k < d) {
    for (uint32_t slot = lane; slot < slots; slot += 32) table[slot] = kFree;
    for (uint32_t i = lane; i < k; i += 32) {
      drawn[i] = below(draw_word(id, i, args.sample.key), base + i + 1);
    }
    __syncwarp();
    const auto slot_of = [&](uint32_t value) { return (value * 0x9E3779B1u) >> 16 & (slots - 1); };
    for (uint32_t i = lane; i < k; i += 32) {
      const uint32_t t = drawn[i];
      for (uint32_t slot = slot_of(t);; slot = (slot + 1) & (slots - 1)) {
        const uint32_t old = atomicCAS(table + slot, kFree, i);
        if (old == kFree) break;
        if (drawn[old] == t) {
          atomicMin(table + slot, i);
          break;
        }
      }
    }
    __syncwarp();
    for (uint32_t i = lane; i < k; i += 32) {
      const uint32_t t = drawn[i];
      uint32_t slot = slot_of(t);
      while (drawn[table[slot]] != t) slot = (slot + 1) & (slots - 1);
      collided[i] = table[slot] < i;
    }
    __syncwarp();
    // Those before a chunk of 32 are final: chains within it are followed.
    for (uint32_t chunk = 0; chunk < k; chunk += 32) {
      const uint32_t i = chunk + lane;
      const bool linked = i < k && drawn[i] >= base && drawn[i] - base < i;
      bool changed = true;
      while (changed) {
        const bool follows = linked && collided[i] == 0 && collided[drawn[i] - base] != 0;
        __syncwarp();
        if (follows) collided[i] = 1;
        changed = __any_sync(kFullWarp, follows);
        __syncwarp();
      }
    }
  }
  for (uint32_t i = lane; i < room; i += 32) {
    uint32_t edge = i;
    if (i < k && k < d) edge = collided[i] != 0 ? base + i : drawn[i];
    write_entry(args, place.first + int64_t(i), read_entry(args, place.begin + edge, i < k));
  }
}

// At most kFewEdges of a row; to load, with every kernel.
cudaError_t launch_few_random_edges(const SampleArgs& args, const Launch& launch) {
  const auto start = [&](auto kernel, int threads_of_row) {
    const int rows = kThreads / threads_of_row;
    return launch_kernel(launch, kernel, blocks_of(args.num_places, rows), kThreads, 0, args);
  };
  const int64_t size = args.sample.size;
  const bool up_to_4 = size <= 4, up_to_8 = !up_to_4 && size <= 8;
  const bool up_to_16 = size > 8 && size <= kVeryFewEdges, up_to_32 = size > kVeryFewEdges;
  const bool many = args.num_places >= kManyRows, few = !many;
  if (launch.load || (up_to_4 && many)) JAXGNN_TRY(start(very_few_random_edges<4>, 1));
  if (launch.load || (up_to_8 && many)) JAXGNN_TRY(start(very_few_random_edges<8>, 1));
  if (launch.load || (up_to_16 && many)) JAXGNN_TRY(start(very_few_random_edges<16>, 1));
  if (launch.load || (up_to_4 && few)) JAXGNN_TRY(start(few_random_edges<4>, 4));
  if (launch.load || (up_to_8 && few)) JAXGNN_TRY(start(few_random_edges<8>, 8));
  if (launch.load || (up_to_16 && few)) JAXGNN_TRY(start(few_random_edges<16>, 16));
  if (launch.load || up_to_32) JAXGNN_TRY(start(few_random_edges<32>, 32));
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_random_edges(const SampleArgs& args, const Launch& launch) {
  const bool few = args.sample.size <= kFewEdges;
  if (launch.load || few) JAXGNN_TRY(launch_few_random_edges(args, launch));
  if (!launch.load && few) return cudaSuccess;
  uint32_t slots = 64;
  while (slots < 2 * args.sample.size) slots *= 2;
  const size_t bytes = (slots + 2 * args.sample.size) * sizeof(uint32_t);
  const unsigned warps = bytes > 8192 ? 1 : 4;
  return launch_large_kernel(launch, random_edges, blocks_of(args.num_places, warps), 32 * warps,
                             warps * bytes, args, slots);
}

}  // namespace jaxgnn::sampling
