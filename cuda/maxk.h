// MaxK and CBSR (compressed balanced sparse rows): k values and ascending columns a row.
#pragma once

#include "rows.h"

namespace jaxgnn {

// Column indices are uint8 for widths to 256, else uint16.
struct MaxkArgs {
  Type type;
  const void* x;  // [num_rows, width]
  void* values;   // [num_rows, k]
  void* columns;  // [num_rows, k]
  int64_t num_rows;
  int64_t width;
  int64_t k;
};

// The k largest of each row: NaN first, +0 = -0, the lower column at a tie.
cudaError_t launch_maxk(const MaxkArgs& args, cudaStream_t stream);
cudaError_t load_maxk();  // both kernels

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

}  // namespace jaxgnn
