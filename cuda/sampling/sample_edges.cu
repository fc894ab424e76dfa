// Which edges each row takes: those of steps through a row, and draws with replacement, here; those
// without replacement in random_edges.cu, those with the smallest words in smallest_edges.cu.
//
// A thread finds the steps of a row, then the warp writes the edges of its 32 rows, a lane an edge:
// finding steps is a chain of divisions that takes as long for a warp as for a lane. Rows that fill
// a warp are written one after another, for which a lane adds the same step from edge to edge;
// entries of shorter rows, and draws, each find their row.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/places.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) no_edges(const SampleArgs args) { fill_tail(args); }

constexpr int kInFlight = 4;  // entries a lane

// The edges of a lane's place, and how it steps through the row.
struct SteppedPlace {
  Place place;
  Steps steps;
  uint32_t id;  // of draws with replacement
};

__device__ inline Place shuffle(const Place& place, int from) {
  return {__shfl_sync(kFullWarp, place.begin, from), __shfl_sync(kFullWarp, place.degree, from),
          __shfl_sync(kFullWarp, place.taken, from), __shfl_sync(kFullWarp, place.first, from),
          __shfl_sync(kFullWarp, place.last, from)};
}

__device__ inline Steps shuffle(const Steps& steps, int from) {
  return {__shfl_sync(kFullWarp, steps.first, from), __shfl_sync(kFullWarp, steps.step, from)};
}

// The entries [begin, end) of a warp's places: a lane finds the place of an entry among the ends of
// the ranges.
__device__ inline void write_entries(const SampleArgs& args, const SteppedPlace& mine,
                                     int64_t begin, int64_t end, bool replace) {
  const int lane = threadIdx.x % 32;
  for (int64_t base = begin; base < end; base += 32 * kInFlight) {
    Entry entries[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t at = base + 32 * u + lane;
      int i = 0;  // the first place whose range ends beyond the entry
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (__shfl_sync(kFullWarp, mine.place.last, i + step - 1) <= at) i += step;
      }
      const Place now = shuffle(mine.place, i);
      const Steps steps = shuffle(mine.steps, i);
      const uint32_t id = replace ? __shfl_sync(kFullWarp, mine.id, i) : 0;
      const uint32_t j = static_cast<uint32_t>(at - now.first);
      const bool valid = at < end && j < now.taken;
      uint32_t edge = 0;
      if (valid && replace) {
        edge = replaced_edge(args, id, j, now.begin, now.degree);
      } else if (valid) {
        edge = step_to(steps, j, now.degree);
      }
      entries[u] = read_entry(args, now.begin + edge, valid);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t at = base + 32 * u + lane;
      if (at < end) write_entry(args, at, entries[u]);
    }
  }
}

// What a lane reads and writes of a row's entries.
struct AnyEntries {
  using Value = Entry;
  const SampleArgs& args;
  Place row;

  __device__ AnyEntries(const SampleArgs& args, const Place& row) : args(args), row(row) {}
  __device__ Value read(uint32_t edge, uint32_t j) const {
    return read_entry(args, row.begin + edge, j < row.taken);
  }
  __device__ void write(uint32_t j, const Value& value) const {
    if (row.first + int64_t{j} < row.last) write_entry(args, row.first + int64_t{j}, value);
  }
};

// Of int32 columns alone: a fifth of the instructions.
struct ColumnEntries {
  using Value = int32_t;
  const int32_t* from;
  int32_t* to;
  uint32_t taken, count;

  __device__ ColumnEntries(const SampleArgs& args, const Place& row)
      : from(static_cast<const int32_t*>(args.rows.columns) + row.begin),
        to(args.columns + row.first),
        taken(row.taken),
        count(row.last - row.first) {}
  __device__ Value read(uint32_t edge, uint32_t j) const { return j < taken ? from[edge] : 0; }
  __device__ void write(uint32_t j, Value value) const {
    if (j < count) to[j] = value;
  }
};

// The entries of a warp's places, row by row: from one of its entries to the next a lane adds 32
// steps.
template <typename Entries>
__device__ inline void write_rows(const SampleArgs& args, const SteppedPlace& mine) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t own_ahead = step_to({0, mine.steps.step}, 32, max(mine.place.degree, 1u));
#pragma unroll 1
  for (int i = 0; i < 32; ++i) {
    const Place now = shuffle(mine.place, i);
    const Steps steps = shuffle(mine.steps, i);
    const uint32_t ahead = __shfl_sync(kFullWarp, own_ahead, i);
    const uint32_t degree = max(now.degree, 1u);
    const uint32_t behind = degree - ahead;  // what `ahead` is, modulo the degree
    const Entries entries(args, now);
    uint32_t edge = step_to(steps, lane, degree);
    const uint32_t count = now.last - now.first;
    for (uint32_t j = lane; j < count + lane; j += 32 * kInFlight) {
      typename Entries::Value values[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        values[u] = entries.read(edge, j + 32 * u);
        edge = edge >= behind ? edge - behind : edge + ahead;
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) entries.write(j + 32 * u, values[u]);
    }
  }
}

// The edges of 32 places a warp, whose ranges of the output adjoin.
__global__ void __launch_bounds__(kThreads) stepped_edges(const SampleArgs args) {
  fill_tail(args);
  const int lane = threadIdx.x % 32;
  const int64_t own = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (own - lane >= args.num_places) return;
  SteppedPlace mine{find_place(args, own), {0, 1}, 0};
  const bool replace = with_replacement(args.sample);
  if (mine.place.taken < mine.place.degree && !replace) {
    mine.steps = steps_of(args.sample, id_of(args, own), mine.place.degree);
  }
  const bool full = mine.place.last - mine.place.first >= 32;
  if (!replace && __popc(__ballot_sync(kFullWarp, full)) >= 16) {
    const bool columns_alone =
        args.edges == nullptr && args.rows.columns != nullptr && !args.rows.wide_columns;
    return columns_alone ? write_rows<ColumnEntries>(args, mine)
                         : write_rows<AnyEntries>(args, mine);
  }
  if (replace && own < args.num_places) mine.id = id_of(args, own);
  if (own >= args.num_places) mine.place.last = args.offsets[args.num_places];
  const int32_t begin = __shfl_sync(kFullWarp, mine.place.first, 0);
  const int64_t end = min(int64_t(__shfl_sync(kFullWarp, mine.place.last, 31)), args.capacity);
  write_entries(args, mine, begin, end, replace);
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
