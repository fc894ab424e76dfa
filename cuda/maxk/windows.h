// MaxK's products over windows of receivers (see cpu/host/windows.h).
#pragma once

#include <vector_types.h>

#include "common/rows.h"
#include "cuda/core/launch.h"

namespace jaxgnn::maxk {

// A window has 64 receivers, or fewer for rows wider than 256: its rows live in shared memory.
constexpr int kWindowRows = 64;                         // at most
constexpr int64_t kWindowFeatures = kWindowRows * 256;  // of all its rows, at most
constexpr int64_t kWindowWidth = 1024;                  // of one, at most

// Values of `size` bytes from a row of a window to the next in shared memory: `apart` bytes more
// than a row has, a power of 2, where that is a multiple of twice as many. So a column of a row
// lies in other banks than of the rows around, and the CBSR rows of a model often keep the same
// columns (docs/kernels/maxk.md). Vectors of up to `apart` bytes stay aligned where they are.
__host__ __device__ constexpr int row_stride(int64_t width, int size, int apart) {
  return static_cast<int>(width + (width * size % (2 * apart) == 0 ? apart / size : 0));
}
constexpr int kRowsApart = 8;  // not 16: two blocks would leave less of the L1 cache
constexpr int kMostWindowBytes = kWindowFeatures * 4 + kWindowRows * kRowsApart;
constexpr int64_t kLeastWindowBytes = kWindowRows * 8;  // bounds of the rows before their sums

struct Windows {
  const int32_t* rows;     // [windows, receivers]; -1 is padding
  const int4* parts;       // [num_parts]: window, first entry, end, place among the partials or -1
  const int32_t* senders;  // [entries]
  const uint2* masks;      // [entries]
  int num_parts;
  int num_windows;
  // [windows, receivers + 1]: where the weights of entries with n edges lie; or null
  const int32_t* slots;
};

// There are fewer than 2^32 entries num_senders * k. Columns have 16 bits where windows have fewer
// than 64 receivers; then k is a multiple of 4.
struct MaxkWindowsArgs {
  Type type;
  Windows windows;
  int64_t window_rows;      // receivers of a window
  const void* row_offsets;  // of the receivers, for their degrees; backward: of a mean
  bool wide_offsets;
  bool mean;
  const void* values;         // forward: [num_senders, k]
  const uint32_t* words;      // forward: values and columns in one, read instead of them; or null
  const void* columns;        // [num_senders, k]
  void* dense;                // forward: the result, backward: the operand; [num_receivers, width]
  float* partials;            // forward: [num_partials, window_rows, width]
  uint32_t* range;            // of the values, or of dense; see fixed_point.cuh
  const float* sizes;         // forward: of the CBSR rows
  const uint8_t* size_codes;  // forward without weights: the same in a byte each
  float* row_bounds;          // forward without weights: scratch, [num_receivers]
  uint32_t* flags;            // forward: set for rows to compute again in float; zeros before
  void* sums;                 // backward: [num_senders, k], float or int64; zeroed here
  int64_t num_senders;
  int64_t num_edges;
  int64_t width;
  int64_t k;
  // With edge weights, else null:
  const float* weights;       // [num_edges], by slot
  const float* edge_weights;  // [num_edges], in the graph's order; forward
  float* weight_sums;         // [num_receivers], scratch; forward
  float* wide;                // forward: the result in float, `dense` itself if that is float
};

// dense_i = sum over edges of the sender's CBSR row, in fixed point; does nothing where `range`
// says that there is no scale. `rows` are those of the graph.
cudaError_t launch_maxk_spmm_windows(const MaxkWindowsArgs& args, const Rows& rows,
                                     const Launch& launch);

// The same with weights.
cudaError_t launch_maxk_spmm_windows_weighted(const MaxkWindowsArgs& args, int64_t num_receivers,
                                              const Launch& launch);

// sums_jc = sum over edges of dense_i at the CBSR row's columns, by reductions in L2; of a mean,
// of dense_i divided by the number of the row's edges, and rounded to the type. In float the order
// of the additions, and so the last bits, change from run to run. With weights, if there are any.
cudaError_t launch_maxk_sspmm_windows(const MaxkWindowsArgs& args, const Launch& launch);

// The same of a sum in 64-bit fixed point, then rounded to `out`: the same bits in every run. Does
// nothing where `range` says that it would lose accuracy.
cudaError_t launch_maxk_sspmm_windows_exact(const MaxkWindowsArgs& args, void* out,
                                            const Launch& launch);

}  // namespace jaxgnn::maxk
