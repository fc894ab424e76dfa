// Which edges each row takes.
//
// A thread finds the steps of a row, then the warp writes the edges of its 32 rows, a lane an edge:
// finding steps is a chain of divisions that takes as long for a warp as for a lane. Random edges
// without replacement take a thread a row, or a lane an edge, or, beyond 32, a warp a row and a
// table in shared memory. The edges with the smallest words take a warp a row, or a block, which
// finds the largest word that is taken, digit by digit.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kVeryFewEdges = 16;   // of a row, within a thread
constexpr int64_t kFewEdges = 32;       // within a warp
constexpr int64_t kManyRows = 1 << 16;  // a thread a row for fewer leaves most of the GPU idle

// A place's row, and where its edges go.
struct Place {
  int64_t begin;  // the row's first edge
  uint32_t degree;
  uint32_t taken;
  int32_t first, last;  // the range of the output
};

__device__ inline Place find_place(const SampleArgs& args, int64_t place) {
  Place found{0, 0, 0, 0, 0};
  if (place >= args.num_places) return found;
  const int32_t first = args.offsets[place], last = args.offsets[place + 1];
  if (first < 0 || first > last || last > args.capacity) return found;
  const int64_t row = args.places == nullptr ? place : args.places[place];
  found.first = first;
  found.last = last;
  if (row < 0 || row >= args.rows.num_rows) return found;
  const int64_t begin = load_offset(args.rows, row), end = load_offset(args.rows, row + 1);
  if (begin < 0 || end > args.rows.num_edges || begin > end) return found;
  found.begin = begin;
  found.degree = static_cast<uint32_t>(end - begin);
  found.taken = min(edges_taken(args.sample, found.degree), static_cast<uint32_t>(last - first));
  return found;
}

// An entry's edge, and its column.
struct Entry {
  int64_t edge;
  int32_t column;
};

__device__ inline Entry read_entry(const SampleArgs& args, int64_t edge, bool valid) {
  if (!valid) return {args.rows.num_edges, 0};
  const bool wanted = args.columns != nullptr;
  return {edge, wanted ? static_cast<int32_t>(load_column(args.rows, edge)) : 0};
}

__device__ inline void write_entry(const SampleArgs& args, int64_t at, const Entry& entry) {
  if (args.columns != nullptr) args.columns[at] = entry.column;
  if (args.edges == nullptr) return;
  if (args.wide_edges) {
    static_cast<int64_t*>(args.edges)[at] = entry.edge;
  } else {
    static_cast<int32_t*>(args.edges)[at] = static_cast<int32_t>(entry.edge);
  }
}

// What is left of the capacity beyond the last place, by all threads of a kernel.
__device__ inline void fill_tail(const SampleArgs& args) {
  const int64_t used = args.num_places > 0 ? args.offsets[args.num_places] : 0;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  int64_t place = (used > 0 ? used : 0) + int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; place < args.capacity; place += stride) {
    write_entry(args, place, {args.rows.num_edges, 0});
  }
}

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

// Floyd's algorithm by a thread a row, of at most kMost edges: number i draws t below j + 1,
// j = d - k + i, and takes t, or j if t is taken. Four numbers share a block of random words. The
// rows of a block adjoin in the output: it lists their edges in shared memory and writes them side
// by side.
template <int kMost>
__global__ void __launch_bounds__(kThreads) very_few_random_edges(const SampleArgs args) {
  __shared__ int64_t listed[kThreads * kMost];
  fill_tail(args);
  const int64_t first = int64_t(blockIdx.x) * kThreads, own = first + threadIdx.x;
  const int64_t begin = args.offsets[first];
  const int64_t end = args.offsets[min(first + kThreads, args.num_places)];
  const Place place = find_place(args, own);
  const uint32_t d = place.degree, k = place.taken, base = d - k;
  const uint32_t room = static_cast<uint32_t>(place.last - place.first);
  uint32_t edges[kMost];
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) edges[i] = i;
  if (k < d) {
    const uint32_t id = id_of(args, own);
#pragma unroll
    for (uint32_t i = 0; i < kMost; i += 4) {
      if (i >= k) break;
      const PhiloxWords block =
          philox4x32({{id, i / 4, 0, 1}}, args.sample.key[0], args.sample.key[1]);
      // The order of draw_word.
      const uint32_t words[4] = {block.words[0], block.words[1], block.words[2], block.words[3]};
#pragma unroll
      for (uint32_t n = i; n < i + 4; ++n) {
        const uint32_t t = below(words[n - i], base + n + 1);
        bool taken = false;
#pragma unroll
        for (uint32_t earlier = 0; earlier < n; ++earlier) taken |= edges[earlier] == t;
        edges[n] = taken ? base + n : t;
      }
    }
  }
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

// The k edges of a row whose words are the smallest, of equal ones the first: a radix select from
// the highest digit of eight bits to the lowest finds the k-th smallest word, and one more pass
// takes the edges below it and the first ones that equal it, in the order of the row. The words are
// kept in shared memory, or where the row is longer than that drawn anew in each pass. A team is a
// warp or, for long rows, a block.
constexpr int kWordThreads = 256, kWordWarps = kWordThreads / 32;
constexpr uint32_t kWarpWords = 512;  // that a warp keeps: longer rows are a block's
constexpr int kDigits = 256, kDigitsPerLane = kDigits / 32;

struct SmallestShared {
  uint32_t words[kWordWarps][kWarpWords];
  uint32_t histograms[kWordWarps][kDigits];
  uint32_t counts[2][kWordWarps];  // of a chunk of edges, by warp: those that equal, those taken
  Place places[kWordWarps];
  uint32_t ids[kWordWarps];
};

template <int kTeam>
class Smallest {
 public:
  // `warp`: the first of the team's.
  __device__ Smallest(const SampleArgs& args, SmallestShared& shared, int warp, const Place& place,
                      uint32_t id)
      : args_(args),
        shared_(shared),
        words_(shared.words[warp]),
        histogram_(shared.histograms[warp]),
        place_(place),
        id_(id),
        labor_(args.sample.strategy == Strategy::kLabor),
        kept_(place.degree <= kTeam / 32 * kWarpWords) {}

  __device__ void run() {
    const uint32_t d = place_.degree, k = place_.taken;
    const uint32_t room = static_cast<uint32_t>(place_.last - place_.first);
    uint32_t limit = 0;   // the digits of the k-th smallest word that are known
    uint32_t equals = k;  // how many words that begin with these digits are taken
    if (k > 0 && k < d) {
      for (int shift = 24; shift >= 0; shift -= 8) next_digit(shift, limit, equals);
    }
    uint32_t written = 0;
    for (uint32_t base = 0; base < d && k > 0; base += kTeam) {
      const uint32_t j = base + member();
      const bool chosen = j < d && k < d;
      const uint32_t word = chosen ? word_at(j) : 0;
      const bool equal = chosen && word == limit && (labor_ || word != kNever);
      uint32_t all_equal, all_taken;
      const bool first = rank(equal, 0, all_equal) < equals && equal;
      const bool take = j < d && (k == d || word < limit || first);
      const uint32_t at = written + rank(take, 1, all_taken);
      if (take && at < room) {
        write_entry(args_, place_.first + int64_t(at), read_entry(args_, place_.begin + j, true));
      }
      written += all_taken;
      equals -= min(equals, all_equal);
    }
    for (uint32_t at = written + member(); at < room; at += kTeam) {
      write_entry(args_, place_.first + int64_t(at), {args_.rows.num_edges, 0});
    }
    sync();  // the shared memory may serve another row
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static uint32_t member() { return threadIdx.x % kTeam; }
  __device__ static void sync() {
    if constexpr (kTeam == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  __device__ uint32_t draw(uint32_t j) const {
    const uint32_t sender =
        labor_ ? static_cast<uint32_t>(load_column(args_.rows, place_.begin + j)) : 0;
    return order_word(args_, id_, j, place_.begin, sender);
  }
  __device__ uint32_t word_at(uint32_t j) const { return kept_ ? words_[j] : draw(j); }

  __device__ void next_digit(int shift, uint32_t& limit, uint32_t& equals) {
    const uint32_t d = place_.degree;
    for (uint32_t digit = member(); digit < kDigits; digit += kTeam) histogram_[digit] = 0;
    sync();
    for (uint32_t j = member(); j < d; j += kTeam) {
      const uint32_t word = shift == 24 ? draw(j) : word_at(j);
      if (shift == 24 && kept_) words_[j] = word;
      const bool fits = shift == 24 || word >> (shift + 8) == limit >> (shift + 8);
      if (fits) atomicAdd(histogram_ + (word >> shift & (kDigits - 1)), 1);
    }
    sync();
    // Every warp of the team finds the same.
    uint32_t counts[kDigitsPerLane], sum = 0;
    for (int i = 0; i < kDigitsPerLane; ++i) {
      counts[i] = histogram_[lane() * kDigitsPerLane + i];
      sum += counts[i];
    }
    uint32_t up_to = sum;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kFullWarp, up_to, step);
      if (lane() >= step) up_to += other;
    }
    // The first lane in whose digits the count is reached; the others' results are not used.
    const int owner = __ffs(__ballot_sync(kFullWarp, up_to >= equals)) - 1;
    uint32_t left = equals - (up_to - sum);
    int digit = 0;
    while (digit + 1 < kDigitsPerLane && counts[digit] < left) left -= counts[digit++];
    const uint32_t found = lane() * kDigitsPerLane + digit;
    limit |= __shfl_sync(kFullWarp, found, owner) << shift;
    equals = __shfl_sync(kFullWarp, left, owner);
    sync();
  }

  // How many members before this one say yes, and how many in all.
  __device__ uint32_t rank(bool yes, int which, uint32_t& all) {
    const unsigned ballot = __ballot_sync(kFullWarp, yes);
    uint32_t before = __popc(ballot & ((1u << lane()) - 1));
    all = __popc(ballot);
    if constexpr (kTeam > 32) {
      // The two arrays take turns: one is free again after the other's barrier.
      uint32_t* counts = shared_.counts[which];
      const int warp = threadIdx.x / 32;
      if (lane() == 0) counts[warp] = all;
      __syncthreads();
      all = 0;
      for (int i = 0; i < kWordWarps; ++i) {
        if (i < warp) before += counts[i];
        all += counts[i];
      }
    }
    return before;
  }

  const SampleArgs& args_;
  SmallestShared& shared_;
  uint32_t* words_;
  uint32_t* histogram_;
  const Place place_;
  const uint32_t id_;
  const bool labor_;
  const bool kept_;
};

__global__ void __launch_bounds__(kWordThreads) smallest_edges(const SampleArgs args) {
  __shared__ SmallestShared shared;
  fill_tail(args);
  const int warp = threadIdx.x / 32;
  const int64_t own = int64_t(blockIdx.x) * kWordWarps + warp;
  const Place place = find_place(args, own);
  const uint32_t id = own < args.num_places ? id_of(args, own) : 0;
  if (threadIdx.x % 32 == 0) {
    shared.places[warp] = place;
    shared.ids[warp] = id;
  }
  const auto is_short = [](const Place& of) { return of.degree <= kWarpWords; };
  if (is_short(place)) Smallest<32>(args, shared, warp, place, id).run();
  __syncthreads();
  for (int i = 0; i < kWordWarps; ++i) {
    if (is_short(shared.places[i])) continue;
    Smallest<kWordThreads>(args, shared, 0, shared.places[i], shared.ids[i]).run();
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

cudaError_t launch_sample_edges(const SampleArgs& args, const Launch& launch) {
  if (!launch.load && args.capacity == 0) return cudaSuccess;
  if (launch.load || args.num_places == 0) {
    JAXGNN_TRY(launch_kernel(launch, no_edges, 264, kThreads, 0, args));
    if (!launch.load) return cudaSuccess;
  }
  const bool random = args.sample.strategy == Strategy::kRandom;
  const bool few = args.sample.size <= kFewEdges;
  const bool smallest = takes_smallest(args.sample);
  if (launch.load || smallest) {
    JAXGNN_TRY(launch_kernel(launch, smallest_edges, blocks_of(args.num_places, kWordWarps),
                             kWordThreads, 0, args));
  }
  if (launch.load || !(random || smallest)) {
    JAXGNN_TRY(launch_kernel(launch, stepped_edges, blocks_of(args.num_places, kThreads), kThreads,
                             0, args));
  }
  if (launch.load || (random && few)) JAXGNN_TRY(launch_few_random_edges(args, launch));
  if (launch.load || (random && !few)) {
    uint32_t slots = 64;
    while (slots < 2 * args.sample.size) slots *= 2;
    const size_t bytes = (slots + 2 * args.sample.size) * sizeof(uint32_t);
    const unsigned warps = bytes > 8192 ? 1 : 4;
    JAXGNN_TRY(launch_large_kernel(launch, random_edges, blocks_of(args.num_places, warps),
                                   32 * warps, warps * bytes, args, slots));
  }
  return cudaSuccess;
}

}  // namespace jaxgnn::sampling
