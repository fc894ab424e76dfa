// Sampled edges of rows, and the rows that marked edges make.
#pragma once

#include "common/sampling.h"
#include "cpu/core/executor.h"

namespace jaxgnn::sampling {

void sample_edges(const SampleArgs& args, const Executor& executor);
void mark_edges(const MarkArgs& args, const Executor& executor);
void drop_edges(const DropArgs& args, const Executor& executor);
void permute_bits(const PermuteArgs& args, const Executor& executor);
void compact_edges(const CompactArgs& args, const Executor& executor);
void gather_host_rows(const HostRowsArgs& args, const Executor& executor);

}  // namespace jaxgnn::sampling
