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
