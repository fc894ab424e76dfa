// The launches of MaxK and its products, row by row. float64 runs in JAX on a GPU.
#pragma once

#include "common/maxk.h"
#include "cuda/core/launch.h"

namespace jaxgnn::maxk {

// Whether the columns lie within the width: known to the device alone, so that Python guards them.
bool columns_in_range(const Cbsr& cbsr, const Launch& launch);

cudaError_t launch_maxk(const MaxkArgs& args, const Launch& launch);
cudaError_t launch_maxk_normalized_gradient(const MaxkNormalizedGradientArgs& args,
                                            const Launch& launch);
cudaError_t launch_cbsr_scatter(const CbsrScatterArgs& args, const Launch& launch);

// The widest rows that have sums in fixed point with weights: a warp's share of shared memory.
constexpr int64_t kWeightedWidth = 2048;

struct MaxkSpmmArgs : MaxkProductArgs {
  const uint32_t* range = nullptr;  // see launch_range; null: never in fixed point
  const float* sizes = nullptr;     // of the CBSR rows (see fixed_point.cuh), with range
  uint32_t* flags = nullptr;        // [num_chunks + num_rows], zeros before, with range
  int64_t padding = 0;              // entries at the end of each CBSR row that are none of its own
  bool wide_columns = false;        // of 16 bits also for widths to 256
  bool fallback = false;  // another kernel has done this in fixed point but for what is flagged
};
cudaError_t launch_maxk_spmm(const MaxkSpmmArgs& args, const Launch& launch);

struct RangeArgs {
  Type type;
  const void* values;  // [num_rows, width]
  int64_t num_rows;
  int64_t width;
  uint32_t* range;      // [3]; see fixed_point.cuh
  float* sizes;         // [num_rows], or null
  uint8_t* size_codes;  // [num_rows], with sizes, or null; see fixed_point.cuh
  const void* columns;  // [num_rows, width], with words; see launch_range
  uint32_t* words;      // [num_rows, width], or null; then the width is a multiple of 4
  uint32_t* flags;      // [num_flags]
  int64_t num_flags;
};

// What decides about fixed point: the sizes of rows of values, and their range (fixed_point.cuh).
// Beside that, each value and its column, of 8 bits or wide of 16, in one word (cbsr.cuh), and
// flags set to 0.
cudaError_t launch_range(const RangeArgs& args, const Launch& launch, bool wide_columns = false);

// Gathered over the rows of the transpose, always in the same order. With `range`, does nothing
// where 64-bit fixed point holds (see fixed_point.cuh), for another kernel has done it. Wide
// columns have 16 bits also for widths to 256;
cudaError_t launch_maxk_sspmm(const MaxkProductArgs& args, const Launch& launch,
                              const uint32_t* range = nullptr, bool wide_columns = false);
// or scattered from the rows of the graph, which are those of `dense`, by float reductions in L2,
// in any order. `out` are float sums, zeroed here.
cudaError_t launch_maxk_sspmm_scatter(const MaxkProductArgs& args, const Launch& launch);

// Float sums rounded to the type.
struct RoundArgs {
  Type type;
  const float* sums;  // [size]
  void* out;          // [size]
  int64_t size;
};
cudaError_t launch_round(const RoundArgs& args, const Launch& launch);

cudaError_t launch_maxk_sddmm(const MaxkProductArgs& args, const Launch& launch);

}  // namespace jaxgnn::maxk
