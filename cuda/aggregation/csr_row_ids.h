// The row of each edge, from row offsets.
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::aggregation {

// rows: offsets, num_rows and num_edges are used.
cudaError_t launch_csr_row_ids(const Rows& rows, int32_t* out, cudaStream_t stream);
cudaError_t load_csr_row_ids();

}  // namespace jaxgnn::aggregation
