// The product over tiles (see cpu/tiles/layout.h), in two launches: the tiles' sums by window, then
// the rows, which add their other edges.
#pragma once

#include <vector_types.h>

#include "common/rows.h"
#include "cuda/core/launch.h"

namespace jaxgnn::tiles {

constexpr int kWindowRows = 64;
constexpr int kBatchEntries = 16;
constexpr int kBatchWords = 32;
constexpr int kSliceBytes = 128;  // of a row that a block works on

// The edges in tiles one by one, as TileLayout lists them.
struct TileEdges {
  const int32_t* stage_offsets;  // [parts + 1], by slot
  const uint2* counts;           // [stages, 8]: 8 bytes, of a row each
  const int32_t* offsets;        // [8 parts + 1]
  const uint8_t* entries;
  const int32_t* edges;
};

// A graph's rows over its tiles (see TileLayout), and all of its edges.
struct TiledRows {
  const int32_t* rows;          // [num_rows]: the row at each place
  const int32_t* columns;       // [batches, 16]
  const uint32_t* masks;        // [batches, 32], or null for weighted sums
  const int4* parts;            // [num_parts]: first batch, end, slot, window
  const int32_t* slot_offsets;  // [windows + 1]
  const int32_t* rest_offsets;  // [num_rows + 1], by place
  const int32_t* rest_columns;
  const RowPart* chunks;  // [num_chunks]: of the places with more than chunk_length other edges
  int num_parts;
  int num_chunks;
  int chunk_length;
  // All edges, for rows that are summed again as a value was not finite; columns may be null for
  // weighted sums.
  const int32_t* row_offsets;
  const int32_t* row_columns;
  int64_t num_rows;
};

// out_r = sum, or mean, over the edges of row r of x_c, or of w_e x_c. T is the type of x, 16 or 32
// bits wide.
struct TilesSpmmArgs {
  Type type;
  bool mean;
  bool tensorfloat32;  // float32 features may be rounded, to no fewer bits than TF32 has
  TiledRows tiles;
  int64_t width;    // F; rows are of whole 16 bytes
  const void* x;    // T[N, F]
  void* out;        // T[R, F]
  float* slots;     // [num_parts, 64, F], scratch
  float* partials;  // [num_chunks, F], scratch
  // Of weighted sums; without weights tensor cores take the masks.
  const float* weights;  // [edges, heads] or null; F is a multiple of heads
  int64_t heads;
  TileEdges edges;
  const int32_t* rest_edges;
};

inline unsigned num_slices(const TilesSpmmArgs& args) {
  const int64_t bytes = args.width * (args.type == Type::kF32 ? 4 : 2);
  return static_cast<unsigned>((bytes + kSliceBytes - 1) / kSliceBytes);
}

// The slots, of 16-bit types and of float32.
cudaError_t launch_tiles_16_bit(const TilesSpmmArgs& args, const Launch& launch);
cudaError_t launch_tiles_f32(const TilesSpmmArgs& args, const Launch& launch);
cudaError_t launch_weighted_tiles(const TilesSpmmArgs& args, const Launch& launch);

// The rows, from slots and other edges.
cudaError_t launch_rest(const TilesSpmmArgs& args, const Launch& launch);

}  // namespace jaxgnn::tiles
