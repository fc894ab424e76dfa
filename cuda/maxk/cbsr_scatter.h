// The dense rows of CBSR (compressed balanced sparse rows).
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::maxk {

// Column indices are uint8 for widths to 256, else uint16.
struct CbsrScatterArgs {
  Type type;
  const void* values;
  const void* columns;
  void* out;  // [num_rows, width]: zeros elsewhere
  int64_t num_rows;
  int64_t width;
  int64_t k;
};

cudaError_t launch_cbsr_scatter(const CbsrScatterArgs& args, cudaStream_t stream);
cudaError_t load_cbsr_scatter();

}  // namespace jaxgnn::maxk
