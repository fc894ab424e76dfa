// The row of each edge, from row offsets.
#pragma once

#include "rows.h"

namespace jaxgnn {

// rows: offsets, num_rows and num_edges are used.
cudaError_t launch_expand_rows(const Rows& rows, int32_t* out, cudaStream_t stream);
cudaError_t load_expand_rows();

}  // namespace jaxgnn
