// Sampled edges of rows, and the rows that marked edges make.
#pragma once

#include "common/sampling.h"
#include "cpu/core/executor.h"

namespace jaxgnn::sampling {

// Of a CPU alone: a GPU has XLA's sort.
struct CountingSortArgs {
  const int32_t* keys;  // [num_keys], from 0 to num_values - 1; others come last
  int64_t num_keys;
  int64_t num_values;
  int32_t* offsets;  // [num_values + 1], where the entries of each key begin
  int32_t* order;    // [num_keys], the entry at each place
};

void sample_edges(const SampleArgs& args, const Executor& executor);
void mark_edges(const MarkArgs& args, const Executor& executor);
void drop_edges(const DropArgs& args, const Executor& executor);
void permute_bits(const PermuteArgs& args, const Executor& executor);
void compact_edges(const CompactArgs& args, const Executor& executor);
void gather_host_rows(const HostRowsArgs& args, const Executor& executor);
void counting_sort(const CountingSortArgs& args, const Executor& executor);

}  // namespace jaxgnn::sampling
