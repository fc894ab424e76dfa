// The launches of sampling.
#pragma once

#include "common/sampling.h"
#include "cuda/core/launch.h"

namespace jaxgnn::sampling {

constexpr int kRowsPerTotal = 2048;

// offsets[i] is the sum of the counts before row i; sums wrap.
struct RowOffsetsArgs {
  const int32_t* counts;  // [num_rows]
  int64_t num_rows;
  int32_t* offsets;  // [num_rows + 1]
  int32_t* totals;   // scratch, one for kRowsPerTotal rows and at least one
};

// A tree of neighbors drawn alike or by alias tables, hop by hop: level 0 are the seeds, and hop h
// adds a place for each of the at most sizes[h] edges of each place of level h. After the places of
// level h there are paddings[h] of padding: the row of the last has what the hop's edges leave
// free. Nodes and edges of padding are -1. By a place's number in its level and by keys[h] hop h
// draws what SampleArgs does with the strategy: kRandom, kReplace or kAlias.
struct SampleTreeArgs {
  Rows rows;
  const int32_t* seeds;  // [num_seeds]; a number that is no row is padding
  int64_t num_seeds;
  const uint32_t* keys;  // [num_hops, 2]
  int64_t num_hops;
  const int64_t* sizes;     // [num_hops], on the host, from 1 to kMostTreeEdges
  const int64_t* paddings;  // [num_hops + 1], on the host
  Strategy strategy;
  const uint64_t* alias_table;  // [num_edges], as of SampleArgs, of kAlias alone
  const int32_t* positive;  // [num_rows], how many edges of a row have a weight, of kAlias alone
  int32_t* nodes;           // of all places
  void* edges;         // of the type of rows.offsets, one for each place of a level but the first
  int32_t* offsets;    // of the edges of all places but the last level's, and the number of edges
  int32_t* receivers;  // the receiving place of each edge of all hops but the last
  uint64_t* states;    // scratch, one for kLeastTreePlaces of each hop
  int64_t num_states;
};

constexpr int64_t kMostTreeEdges = 32;
constexpr int kLeastTreePlaces = 32;  // of a block
constexpr int64_t kMostTreePadding = 128;

cudaError_t launch_sample_tree(const SampleTreeArgs& args, const Launch& launch);
cudaError_t launch_sample_edges(const SampleArgs& args, const Launch& launch);
cudaError_t launch_random_edges(const SampleArgs& args, const Launch& launch);    // of kRandom
cudaError_t launch_smallest_edges(const SampleArgs& args, const Launch& launch);  // takes_smallest
cudaError_t launch_mark_edges(const MarkArgs& args, const Launch& launch);
cudaError_t launch_drop_edges(const DropArgs& args, const Launch& launch);
cudaError_t launch_permute_bits(const PermuteArgs& args, const Launch& launch);
cudaError_t launch_compact_edges(const CompactArgs& args, const Launch& launch);
cudaError_t launch_gather_host_rows(const HostRowsArgs& args, const Launch& launch);
cudaError_t launch_row_offsets(const RowOffsetsArgs& args, const Launch& launch);

}  // namespace jaxgnn::sampling
