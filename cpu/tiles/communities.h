// Rows by communities, so that the rows of a window read the same columns.
#pragma once

#include <cstdint>

#include "cpu/host/graph.h"

namespace jaxgnn::host {

// An order of the rows of a square matrix: by communities of communities, as Louvain's method finds
// them, and by falling number of edges within one. Windows of 64 such rows are sorted by falling
// number of edges, an incomplete one last. The same for any number of threads.
//
// Source: Blondel et al., Fast unfolding of communities in large networks, J. Stat. Mech. (2008).
Buffer<int32_t> order_by_communities(const int32_t* row_offsets, const int32_t* columns,
                                     int32_t num_rows);

}  // namespace jaxgnn::host
