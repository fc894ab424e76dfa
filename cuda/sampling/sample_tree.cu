// A tree of sampled neighbors, a kernel a hop: what a hop draws goes at once where the blocks of
// all hops have it.
//
// The edges of a hop follow one another without gaps, so a block of threads has to know how many
// edges the blocks before it draw. Each publishes its own number, draws meanwhile, and sums those
// before it up to one that has its sum already: decoupled look-back (Merrill and Garland, "Single-
// pass parallel prefix scan with decoupled look-back", 2016). As there, blocks start in the order
// of their numbers. In a first hop of few places a block counts the edges before it itself. The gap
// between what a block's places could draw and what they drew is filled with padding from the
// hop's end backwards, so that nobody has to wait for the total.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/block_sum.cuh"
#include "cuda/sampling/floyd.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int64_t kFewPlaces = 4096;  // of a first hop whose blocks count by themselves

// A hop: `places` of its level may be nodes, and `padding` that never are follow them.
struct TreeHop {
  Rows rows;
  const uint64_t* alias_table;  // of kAlias
  const int32_t* positive;      // of kAlias
  const uint32_t* key;
  const int32_t* nodes;  // [places]
  int64_t places, padding;
  uint32_t size;         // the most edges of a place
  int32_t first, begin;  // the numbers of the level's first place and of the hop's first edge
  int32_t* copy;         // [places + padding], a copy of the nodes, or null
  int32_t* offsets;      // [places + padding], and after the last hop one more
  bool is_last;
  void* edges;         // int32 or int64 [places * size]
  int32_t* receivers;  // [places * size], or null
  int32_t* next;       // [places * size + next_padding], the nodes of the level that is added
  int64_t next_padding;
  int places_per_block;  // at most kThreads
  uint64_t* states;      // zeros, one a block, or null: blocks count by themselves
  uint64_t* cleared;     // what later hops need zeros in
  int64_t num_cleared;
};

struct Row {
  int64_t begin;
  uint32_t degree, taken;
};

template <Strategy kStrategy>
__device__ inline Row find_row(const TreeHop& hop, int64_t node) {
  if (node < 0 || node >= hop.rows.num_rows) return {0, 0, 0};
  const int64_t begin = load_offset(hop.rows, node), end = load_offset(hop.rows, node + 1);
  if (begin < 0 || begin >= end || end > hop.rows.num_edges) return {0, 0, 0};
  const uint32_t degree = static_cast<uint32_t>(end - begin);
  if (kStrategy == Strategy::kRandom) return {begin, degree, min(degree, hop.size)};
  const bool none = kStrategy == Strategy::kAlias && hop.positive[node] <= 0;
  return {begin, degree, none ? 0 : hop.size};
}

// The edges of four draws that follow one another, the first a multiple of four.
template <Strategy kStrategy>
__device__ inline void four_draws(const TreeHop& hop, const Row& row, uint32_t id, uint32_t first,
                                  uint32_t* drawn) {
  if constexpr (kStrategy == Strategy::kReplace) {
    const PhiloxWords block = philox4x32({{id, first / 4, 0, 1}}, hop.key[0], hop.key[1]);
#pragma unroll
    for (int n = 0; n < 4; ++n) drawn[n] = below(block.words[n], row.degree);
  } else {
    WordPair pairs[4];
    uint64_t entries[4];
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const uint32_t number = (first + n) / 2;
      const PhiloxWords block = philox4x32({{id, number, 0, 1}}, hop.key[0], hop.key[1]);
      pairs[n] = {block.words[0], block.words[1]};
      pairs[n + 1] = {block.words[2], block.words[3]};
    }
    // Also of draws beyond the row's last: a cell is the row's, whatever the words are.
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      entries[n] = __ldg(hop.alias_table + row.begin + below(pairs[n].first, row.degree));
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) drawn[n] = edge_of_entry(entries[n], pairs[n], row.degree);
  }
}

// A block's state: nothing yet, its own number of edges, or the number up to its end.
constexpr uint64_t kOwn = uint64_t{1} << 32, kSum = uint64_t{2} << 32;

__device__ inline void publish(uint64_t* state, uint64_t kind, int32_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(state),
               "l"(kind | static_cast<uint32_t>(value))
               : "memory");
}

__device__ inline uint64_t read_state(const uint64_t* state) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(state) : "memory");
  return value;
}

// The sum of the blocks before this one, for all of its threads.
__device__ inline int32_t look_back(const uint64_t* states) {
  constexpr int kInFlight = 4;
  constexpr unsigned kWindow = kThreads * kInFlight;
  __shared__ unsigned nearest_of_warps[kWarps];
  __shared__ int32_t sum_of_warps[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int64_t last = int64_t{blockIdx.x} - 1;; last -= kWindow) {
    uint64_t found[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t block = last - u * kThreads - int64_t{threadIdx.x};
      found[u] = block < 0 ? kSum : read_state(states + block);
    }
    unsigned nearest = kWindow;  // the distance of the nearest block that has its sum
#pragma unroll
    for (int u = kInFlight - 1; u >= 0; --u) {
      const unsigned distance = u * kThreads + threadIdx.x;
      while (found[u] == 0) found[u] = read_state(states + last - distance);
      if (found[u] & kSum) nearest = distance;
    }
    nearest = __reduce_min_sync(kFullWarp, nearest);
    if (lane == 0) nearest_of_warps[warp] = nearest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) nearest = min(nearest, nearest_of_warps[i]);
    int32_t sum = 0;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (u * kThreads + threadIdx.x <= nearest) sum += static_cast<int32_t>(found[u]);
    }
    sum = warp_sum(sum);
    if (lane == 0) sum_of_warps[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) before += sum_of_warps[i];
    if (nearest < kWindow) return before;
  }
}

// A thread draws for a place, and lists what it drew in shared memory; all threads read the senders
// and write.
template <typename Edge, int kMost, Strategy kStrategy>
__global__ void __launch_bounds__(kThreads) tree_hop(const TreeHop hop) {
  constexpr int kInFlight = kMost < 8 ? kMost : 8;
  __shared__ Edge listed[kThreads * kMost];
  __shared__ uint8_t places[kThreads * kMost];  // within the block
  static_assert(kThreads <= 256, "a byte has a place's number");
  const int thread = threadIdx.x;
  const int64_t block_first = int64_t{blockIdx.x} * hop.places_per_block;
  const int64_t own = block_first + thread;
  const bool has_place = thread < hop.places_per_block && own < hop.places;
  const int32_t node = has_place ? hop.nodes[own] : -1;
  const Row row = find_row<kStrategy>(hop, node);

  for (int64_t i = int64_t{blockIdx.x} * kThreads + thread; i < hop.num_cleared;
       i += int64_t{gridDim.x} * kThreads) {
    hop.cleared[i] = 0;
  }
  int32_t before = 0;
  if (hop.states == nullptr) {
    int32_t counted = 0, unused;
#pragma unroll 4
    for (int64_t i = thread; i < block_first; i += kThreads) {
      counted += static_cast<int32_t>(find_row<kStrategy>(hop, hop.nodes[i]).taken);
    }
    before = block_sum<kWarps>(counted, unused);
    __syncthreads();
  }
  int32_t first_entry;
  const int32_t total = block_sum<kWarps>(static_cast<int32_t>(row.taken), first_entry);
  if (hop.states != nullptr && thread == 0) {
    publish(hop.states + blockIdx.x, blockIdx.x == 0 ? kSum : kOwn, total);
  }

  if (row.taken > 0) {
    const uint32_t id = static_cast<uint32_t>(own);
    uint32_t drawn[kMost];
    if constexpr (kStrategy != Strategy::kRandom) {
#pragma unroll
      for (uint32_t i = 0; i < kMost; i += 4) {
        if (i >= row.taken) break;
        four_draws<kStrategy>(hop, row, id, i, drawn + i);
      }
    } else {
      floyd(drawn, row.taken, row.degree, id, hop.key);
    }
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      if (i >= row.taken) break;
      listed[first_entry + i] = static_cast<Edge>(row.begin + drawn[i]);
      places[first_entry + i] = static_cast<uint8_t>(thread);
    }
  }
  __syncthreads();

  Edge* const edges = static_cast<Edge*>(hop.edges);
  const int32_t first_receiver = hop.first + static_cast<int32_t>(block_first);
  for (int base = 0; base < total || base == 0; base += kThreads * kInFlight) {
    int32_t senders[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int entry = base + u * kThreads + thread;
      if (entry < total) senders[u] = static_cast<int32_t>(load_column(hop.rows, listed[entry]));
    }
    // The first senders are on their way meanwhile.
    if (base == 0 && hop.states != nullptr && blockIdx.x > 0) {
      before = look_back(hop.states);
      if (thread == 0) publish(hop.states + blockIdx.x, kSum, before + total);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int entry = base + u * kThreads + thread;
      if (entry >= total) break;
      const int64_t at = int64_t{before} + entry;
      hop.next[at] = senders[u];
      edges[at] = listed[entry];
      if (hop.receivers != nullptr) hop.receivers[at] = first_receiver + places[entry];
    }
  }

  if (has_place) {
    hop.offsets[own] = hop.begin + before + first_entry;
    if (hop.copy != nullptr) hop.copy[own] = node;
  }
  const int32_t last_place = hop.first + static_cast<int32_t>(hop.places + hop.padding - 1);
  const int64_t capacity = hop.places * hop.size;
  const int64_t places_here = min(int64_t{hop.places_per_block}, hop.places - block_first);
  const int64_t free_end = capacity - (block_first * hop.size - before);
  const int64_t free_begin = free_end - (places_here * hop.size - total);
  for (int64_t at = free_begin + thread; at < free_end; at += kThreads) {
    hop.next[at] = -1;
    edges[at] = -1;
    if (hop.receivers != nullptr) hop.receivers[at] = last_place;
  }
  if (blockIdx.x + 1 < gridDim.x) return;
  for (int64_t i = thread; i < hop.padding; i += kThreads) {
    hop.offsets[hop.places + i] = hop.begin + before + total;
    if (hop.copy != nullptr) hop.copy[hop.places + i] = -1;
  }
  for (int64_t i = thread; i < hop.next_padding; i += kThreads) hop.next[capacity + i] = -1;
  if (hop.is_last && thread == 0) {
    hop.offsets[hop.places + hop.padding] = hop.begin + static_cast<int32_t>(capacity);
  }
}

// Fewer places a block where there are few: more multiprocessors read at once.
int places_per_block(int64_t places) {
  return places < 1 << 12 ? kLeastTreePlaces : places < 1 << 16 ? 2 * kLeastTreePlaces : kThreads;
}

unsigned blocks_of_hop(const TreeHop& hop) { return blocks_of(hop.places, hop.places_per_block); }

template <typename Edge, Strategy kStrategy>
cudaError_t launch_hop(const TreeHop& hop, const Launch& launch) {
  const auto start = [&](auto kernel) {
    return launch_kernel(launch, kernel, launch.load ? 1 : blocks_of_hop(hop), kThreads, 0, hop);
  };
  const uint32_t size = hop.size;
  if (launch.load || size <= 4) JAXGNN_TRY(start(tree_hop<Edge, 4, kStrategy>));
  if (launch.load || (size > 4 && size <= 8)) JAXGNN_TRY(start(tree_hop<Edge, 8, kStrategy>));
  if (launch.load || (size > 8 && size <= 16)) JAXGNN_TRY(start(tree_hop<Edge, 16, kStrategy>));
  if (launch.load || size > 16) JAXGNN_TRY(start(tree_hop<Edge, kMostTreeEdges, kStrategy>));
  return cudaSuccess;
}

template <Strategy kStrategy>
cudaError_t launch_hop(const TreeHop& hop, Strategy strategy, const Launch& launch) {
  if (!launch.load && strategy != kStrategy) return cudaSuccess;
  const bool wide = hop.rows.wide_offsets;
  if (launch.load || wide) JAXGNN_TRY((launch_hop<int64_t, kStrategy>(hop, launch)));
  if (launch.load || !wide) JAXGNN_TRY((launch_hop<int32_t, kStrategy>(hop, launch)));
  return cudaSuccess;
}

cudaError_t launch_hop(const TreeHop& hop, Strategy strategy, const Launch& launch) {
  JAXGNN_TRY(launch_hop<Strategy::kRandom>(hop, strategy, launch));
  JAXGNN_TRY(launch_hop<Strategy::kReplace>(hop, strategy, launch));
  return launch_hop<Strategy::kAlias>(hop, strategy, launch);
}

}  // namespace

cudaError_t launch_sample_tree(const SampleTreeArgs& args, const Launch& launch) {
  if (launch.load) return launch_hop({}, args.strategy, launch);
  const int64_t edge_bytes = args.rows.wide_offsets ? 8 : 4;
  // The first hop clears the states of the others, or all are cleared before it.
  const bool few = args.num_seeds <= kFewPlaces;
  TreeHop hop{};
  hop.rows = args.rows;
  hop.alias_table = args.alias_table;
  hop.positive = args.positive;
  hop.key = args.keys;
  hop.nodes = args.seeds;
  hop.copy = args.nodes;
  hop.places = args.num_seeds;
  hop.offsets = args.offsets;
  hop.cleared = few ? args.states : nullptr;
  hop.num_cleared = few && args.num_hops > 1 ? args.num_states : 0;
  uint64_t* states = args.states;
  int64_t first = 0, begin = 0;
  if (!few) {
    JAXGNN_TRY(cudaMemsetAsync(args.states, 0, args.num_states * sizeof(uint64_t), launch.stream));
  }
  for (int64_t h = 0; h < args.num_hops; ++h) {
    hop.padding = args.paddings[h];
    hop.next_padding = args.paddings[h + 1];
    hop.size = static_cast<uint32_t>(args.sizes[h]);
    hop.first = static_cast<int32_t>(first);
    hop.begin = static_cast<int32_t>(begin);
    hop.is_last = h + 1 == args.num_hops;
    hop.edges = static_cast<char*>(args.edges) + begin * edge_bytes;
    hop.receivers = hop.is_last ? nullptr : args.receivers + begin;
    first += hop.places + hop.padding;
    hop.next = args.nodes + first;
    hop.places_per_block = places_per_block(hop.places);
    hop.states = h == 0 && few ? nullptr : states;
    JAXGNN_TRY(launch_hop(hop, args.strategy, launch));
    if (hop.states != nullptr) states += blocks_of_hop(hop);
    // The next hop.
    hop.nodes = hop.next;
    hop.copy = nullptr;
    hop.cleared = nullptr;
    hop.num_cleared = 0;
    hop.key += 2;
    hop.offsets += hop.places + hop.padding;
    begin += hop.places * hop.size;
    hop.places *= hop.size;
  }
  return cudaSuccess;
}

}  // namespace jaxgnn::sampling
