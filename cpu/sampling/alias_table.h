// Alias tables of the rows of a graph, by which kAlias draws (common/sampling.h).
#pragma once

#include <cstdint>

namespace jaxgnn::host {

// Row i of `table` and `counts` are the edges [row_offsets[i], row_offsets[i + 1]), and offsets
// must rise from 0 on. The result is the same for any number of threads.
template <class Index>
void build_alias_table(const Index* row_offsets, int64_t num_rows, const float* weights,
                       int num_threads, uint32_t* table, int32_t* counts);

}  // namespace jaxgnn::host
