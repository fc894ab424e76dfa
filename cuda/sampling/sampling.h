// The launches of sampling.
#pragma once

#include "common/sampling.h"
#include "cuda/core/launch.h"

namespace jaxgnn::sampling {

cudaError_t launch_sample_edges(const SampleArgs& args, const Launch& launch);
cudaError_t launch_mark_edges(const MarkArgs& args, const Launch& launch);
cudaError_t launch_drop_edges(const DropArgs& args, const Launch& launch);
cudaError_t launch_permute_bits(const PermuteArgs& args, const Launch& launch);
cudaError_t launch_compact_edges(const CompactArgs& args, const Launch& launch);
cudaError_t launch_gather_host_rows(const HostRowsArgs& args, const Launch& launch);

}  // namespace jaxgnn::sampling
