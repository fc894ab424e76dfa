// The launches of the products and of what else works by rows.
#pragma once

#include "common/aggregation.h"
#include "cuda/core/launch.h"

namespace jaxgnn::aggregation {

cudaError_t launch_spmm(const SpmmArgs& args, const Launch& launch);
cudaError_t launch_extremum(const ExtremumArgs& args, const Launch& launch);
cudaError_t launch_sddmm(const SddmmArgs& args, const Launch& launch);
cudaError_t launch_csr_row_ids(const CsrRowIdsArgs& args, const Launch& launch);

}  // namespace jaxgnn::aggregation
