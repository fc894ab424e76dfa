// The arguments of the sampling kernels, and which edges of a row each strategy takes.
//
// CPU and CUDA kernels include this file, and jaxgnn/ops/_sampling/reference.py takes the same
// edges. The functions are in an anonymous namespace, as those of common/philox.h.
#pragma once

#include "common/philox.h"
#include "common/race.h"
#include "common/rows.h"

namespace jaxgnn::sampling {

// By their FFI attribute. kBucket, kFastRand and kStride take the edges (first + step j) mod d of a
// row of d edges. kLabor and kRace take the k smallest of a row by a word of each edge: kLabor by
// the sender's, kRace by the time of a race. kWeighted and kAlias draw with replacement by weight:
// by prefix sums, or by alias tables.
enum class Strategy : int64_t {
  kBucket,
  kFastRand,
  kStride,
  kRandom,
  kReplace,
  kLabor,
  kRace,
  kWeighted,
  kAlias
};

constexpr int64_t kMostEdges = 4096;             // of a row, from kRandom on
constexpr int64_t kAllEdges = int64_t{1} << 32;  // the rate 1

// Which edges the rows take: at most `size`, and at most the share rate / 2^32 of a row, rounded
// up.
struct Sample {
  Strategy strategy;
  int64_t size;
  int64_t rate;         // at most kAllEdges
  const uint32_t* key;  // two words, or null
};

// The sampled edges of each place. Place i is the row places[i], or the row i; an index out of
// range is a row without edges. Its edges go to [offsets[i], offsets[i + 1]) of `edges` and
// `columns`, which must be what `edges_taken` says or more; the rest of it, and of the capacity, is
// filled with the edge rows.num_edges and the column 0.
struct SampleArgs {
  Rows rows;
  Sample sample;
  const int32_t* places;       // [num_places], or null for all rows
  const uint32_t* ids;         // [num_places], what each place draws by, or null for its own number
  const int32_t* log_weights;  // [num_edges], of kRace: fixed_log2, or kZeroWeight
  const uint64_t* weights_up_to;  // [num_edges], of kWeighted: the sums of all weights so far
  const uint64_t* alias_table;    // [num_edges], of kAlias: a cell's threshold, above it its alias
  int64_t num_places;
  const int32_t* offsets;  // [num_places + 1]
  int64_t capacity;
  void* edges;  // int32 or, with wide_edges, int64 [capacity]; or null
  bool wide_edges;
  int32_t* columns;  // [capacity], or null
};

// A bit for each edge: edge e is bit e % 32 of word e / 32. Bits beyond the edges are 0.
constexpr int64_t kEdgesPerWord = 32;
// Compaction counts the bits of each group.
constexpr int64_t kWordsPerGroup = 32;
constexpr int64_t kEdgesPerGroup = kWordsPerGroup * kEdgesPerWord;

// The bits of the edges of a list, or of permutation[e] for an edge e. Numbers beyond the edges are
// skipped.
struct MarkArgs {
  const void* edges;  // int32 or, with wide_edges, int64 [count]
  bool wide_edges;
  const void* permutation;  // int32 or int64 [num_edges], or null
  bool wide_permutation;
  int64_t count;
  int64_t num_edges;
  uint32_t* bits;  // [words]
};

// The bits of the edges that are kept, each with the probability rate / 2^32.
struct DropArgs {
  Rows rows;
  const uint32_t* key;
  int64_t rate;
  uint32_t* bits;
};

// The bits in another order, out bit t = bit permutation[t], and the number of those in each group.
struct PermuteArgs {
  const uint32_t* bits;
  const void* permutation;  // int32 or int64 [num_edges], or null for the same order
  bool wide_permutation;
  int64_t num_edges;
  uint32_t* out;    // [words]
  int32_t* counts;  // [groups]
};

// The rows that the edges with a bit make.
struct CompactArgs {
  Rows rows;
  const uint32_t* bits;     // by place in the rows
  const int32_t* ranks;     // [groups + 1], how many bits are before each group, and in all
  const void* permutation;  // the graph's edge of each place, or null for the place itself
  bool wide_permutation;
  int64_t capacity;
  int32_t* offsets;  // [num_rows + 1]
  int32_t* columns;  // [capacity]; beyond the last edge 0
  void* edges;       // the graph's edges, [capacity], or null; beyond the last rows.num_edges
  bool wide_edges;
};

// Rows of a matrix in host memory, which a GPU reads by its address, and copies in device memory of
// those that are read most. Bytes are copied, whatever they are. A number out of range is a row of
// zeros.
struct HostRowsArgs {
  const uint32_t* address;  // of the matrix [num_rows, row_bytes]: its low word, its high one
  int64_t num_rows;
  int64_t row_bytes;
  const int32_t* nodes;  // [num_places]
  int64_t num_places;
  const int32_t* slots;  // [num_rows], the row of the cache, or out of range; or null
  const char* cache;     // [num_slots, row_bytes]
  int64_t num_slots;
  char* out;  // [num_places, row_bytes]
};

namespace {

// Where the row of a place is; null for zeros.
JAXGNN_HOST_DEVICE const char* row_of_place(const HostRowsArgs& args, const char* matrix,
                                            int64_t place) {
  const int64_t node = args.nodes[place];
  if (node < 0 || node >= args.num_rows) return nullptr;
  const int64_t slot = args.slots == nullptr ? -1 : args.slots[node];
  if (slot >= 0 && slot < args.num_slots) return args.cache + slot * args.row_bytes;
  return matrix + node * args.row_bytes;
}

// An address is in device memory, so that another matrix is no other program.
JAXGNN_HOST_DEVICE const char* matrix_of(const HostRowsArgs& args) {
  return reinterpret_cast<const char*>(static_cast<uintptr_t>(args.address[0]) |
                                       static_cast<uintptr_t>(args.address[1]) << 32);
}

JAXGNN_HOST_DEVICE int64_t words_of(int64_t edges) {
  return (edges + kEdgesPerWord - 1) / kEdgesPerWord;
}
JAXGNN_HOST_DEVICE int64_t groups_of(int64_t edges) {
  return (edges + kEdgesPerGroup - 1) / kEdgesPerGroup;
}

// What a place draws by: places of the same id draw the same words.
JAXGNN_HOST_DEVICE uint32_t id_of(const SampleArgs& args, int64_t place) {
  return args.ids == nullptr ? static_cast<uint32_t>(place) : args.ids[place];
}

// The word number `draw` of the row (or place) `id`.
JAXGNN_HOST_DEVICE uint32_t draw_word(uint32_t id, uint32_t draw, const uint32_t* key) {
  const PhiloxWords block = philox4x32({{id, draw / 4, 0, 1}}, key[0], key[1]);
  const uint32_t low = draw & 1 ? block.words[1] : block.words[0];
  const uint32_t high = draw & 1 ? block.words[3] : block.words[2];
  return draw & 2 ? high : low;
}

struct WordPair {
  uint32_t first, second;
};

// The words number 2 draw and 2 draw + 1, which one block has.
JAXGNN_HOST_DEVICE WordPair draw_pair(uint32_t id, uint32_t draw, const uint32_t* key) {
  const PhiloxWords block = philox4x32({{id, draw / 2, 0, 1}}, key[0], key[1]);
  return draw & 1 ? WordPair{block.words[2], block.words[3]}
                  : WordPair{block.words[0], block.words[1]};
}

// A word as an integer below `bound`.
JAXGNN_HOST_DEVICE uint32_t below(uint32_t word, uint32_t bound) {
  return static_cast<uint32_t>((uint64_t{word} * bound) >> 32);
}

JAXGNN_HOST_DEVICE bool with_replacement(const Sample& sample) {
  return sample.strategy == Strategy::kReplace || sample.strategy == Strategy::kWeighted ||
         sample.strategy == Strategy::kAlias;
}

JAXGNN_HOST_DEVICE bool takes_smallest(const Sample& sample) {
  return sample.strategy == Strategy::kLabor || sample.strategy == Strategy::kRace;
}

// How many edges a row of d takes. Of those by weight, which skip edges of weight 0: at most.
JAXGNN_HOST_DEVICE uint32_t edges_taken(const Sample& sample, uint32_t d) {
  if (with_replacement(sample)) return d > 0 ? static_cast<uint32_t>(sample.size) : 0;
  const uint64_t share = (static_cast<uint64_t>(sample.rate) * d + (kAllEdges - 1)) >> 32;
  return static_cast<uint32_t>(share < static_cast<uint64_t>(sample.size) ? share : sample.size);
}

// The edge that a word draws of a row of d > 0 edges from `begin` on, by kReplace or kWeighted.
JAXGNN_HOST_DEVICE uint32_t edge_of_word(const SampleArgs& args, uint32_t word, int64_t begin,
                                         uint32_t d) {
  if (args.sample.strategy == Strategy::kReplace) return below(word, d);
  // The first edge whose sum is beyond the word's share of the row's. Sums wrap, differences do
  // not.
  const uint64_t* sums = args.weights_up_to + begin;
  const uint64_t before = begin > 0 ? sums[-1] : 0;
  const uint64_t total = sums[d - 1] - before;
  const uint64_t at = (total >> 32) * word + (((total & 0xffffffffu) * word) >> 32);
  uint32_t low = 0, high = d - 1;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (sums[middle] - before > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The edge that two words draw of such a row, by kAlias: the first word draws one of the row's d
// cells, and the second stays at the cell's own edge below the threshold, or goes to the alias. Two
// words, since the rest of one that has drawn a cell has 2^32 / d values: too few for the shares of
// a long row. `entry` is the cell's.
JAXGNN_HOST_DEVICE uint32_t edge_of_entry(uint64_t entry, WordPair pair, uint32_t d) {
  const uint32_t alias = static_cast<uint32_t>(entry >> 32);
  if (pair.second < static_cast<uint32_t>(entry)) return below(pair.first, d);
  return alias < d ? alias : d - 1;  // whatever the table is, an edge of the row
}

JAXGNN_HOST_DEVICE uint32_t edge_of_pair(const SampleArgs& args, WordPair pair, int64_t begin,
                                         uint32_t d) {
  return edge_of_entry(args.alias_table[begin + below(pair.first, d)], pair, d);
}

// Draw number `draw` of such a row, with replacement.
JAXGNN_HOST_DEVICE uint32_t replaced_edge(const SampleArgs& args, uint32_t id, uint32_t draw,
                                          int64_t begin, uint32_t d) {
  if (args.sample.strategy == Strategy::kAlias) {
    return edge_of_pair(args, draw_pair(id, draw, args.sample.key), begin, d);
  }
  return edge_of_word(args, draw_word(id, draw, args.sample.key), begin, d);
}

// What edge j of a row is ordered by, kNever if it is not to be taken; `sender` is for kLabor.
JAXGNN_HOST_DEVICE uint32_t order_word(const SampleArgs& args, uint32_t id, uint32_t j,
                                       int64_t begin, uint32_t sender) {
  if (args.sample.strategy == Strategy::kLabor) return draw_word(sender, 0, args.sample.key);
  return race_time(draw_word(id, j, args.sample.key), args.log_weights[begin + j]);
}

// The first number from `from` on that has no common divisor with d; at most d + 1.
JAXGNN_HOST_DEVICE uint32_t coprime_from(uint32_t from, uint32_t d) {
  uint32_t a = d, b = from;
  for (;;) {  // one loop, in which no lane of a warp waits for another before its next number
    const uint32_t rest = a % b;
    a = b;
    b = rest;
    if (b != 0) continue;
    if (a == 1) return from;
    a = d;
    b = ++from;
  }
}

struct Steps {
  uint32_t first, step;  // below d
};

// Of a row of d >= 2 edges, of which some are not taken.
JAXGNN_HOST_DEVICE Steps steps_of(const Sample& sample, uint32_t id, uint32_t d) {
  switch (sample.strategy) {
    case Strategy::kFastRand:
      return {0, 577 % d};
    case Strategy::kStride: {
      if (sample.key == nullptr) {
        const uint32_t golden = static_cast<uint32_t>((uint64_t{40503} * d) >> 16);
        return {0, coprime_from(1 + golden, d) % d};
      }
      const PhiloxWords block = philox4x32({{id, 0, 0, 1}}, sample.key[0], sample.key[1]);
      return {below(block.words[0], d), coprime_from(1 + below(block.words[1], d - 1), d) % d};
    }
    default:
      return {0, 1};
  }
}

// (first + step j) mod d.
JAXGNN_HOST_DEVICE uint32_t step_to(const Steps& steps, uint32_t j, uint32_t d) {
  const uint64_t at = uint64_t{steps.step} * j + steps.first;
  return at >> 32 ? static_cast<uint32_t>(at % d) : static_cast<uint32_t>(at) % d;
}

}  // namespace
}  // namespace jaxgnn::sampling
