// Compressed rows that come from Python: whether loops over them stay within the arrays.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cpu/host/host_parallel.h"
#include "cpu/host/numpy.h"

namespace jaxgnn::host {

// Throws std::invalid_argument, with what is wrong, unless the offsets rise from 0 to the number of
// columns and each column is one of `num_columns`. One pass, by several threads; Python's checks
// have better messages. Returns the number of rows.
template <class Index>
int64_t check_rows(const In<Index>& row_offsets, const In<int32_t>& columns, int32_t num_columns) {
  const int64_t num_rows = static_cast<int64_t>(row_offsets.shape(0)) - 1;
  const int64_t num_edges = static_cast<int64_t>(columns.shape(0));
  const Index* offsets = row_offsets.data();
  if (num_rows < 0 || offsets[0] != 0 || int64_t{offsets[num_rows]} != num_edges ||
      !std::is_sorted(offsets, offsets + num_rows + 1)) {
    throw std::invalid_argument("row_offsets: expected numbers that rise from 0 to " +
                                std::to_string(num_edges));
  }
  std::atomic<bool> fits{true};
  parallel_for(num_edges, num_chunks(num_edges), [&](int64_t begin, int64_t end, int) {
    uint32_t most = 0;  // a negative column is a large one; without a branch, for vectors
    for (int64_t e = begin; e < end; ++e) {
      most = std::max(most, static_cast<uint32_t>(columns.data()[e]));
    }
    if (begin < end && int64_t{most} >= num_columns) fits = false;
  });
  if (!fits) {
    throw std::invalid_argument("columns: expected numbers from 0 to less than " +
                                std::to_string(num_columns));
  }
  return num_rows;
}

}  // namespace jaxgnn::host
