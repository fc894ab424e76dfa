// Attention by cosines, forward, for rows of 16-bit values, over tiles or all by rows: the
// exponentials of the edges in tiles and their sums on tensor cores, by window; then the rows,
// which add their other edges and divide.
//
// A score's size is at most |beta|, so that exponentials have one reference for all edges of a head
// and both parts of a row are added as they are.
#pragma once

#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {

constexpr int64_t kMaxCosineWidth = 64;  // of a head

struct TilesCosineArgs {
  Type type;        // of 16 bits
  bool self_loops;  // one for each row, in place of the graph's
  // Without tiles (`tiled`) `rows` are in their schedule or null, `chunks` are the rows', and the
  // other edges are all, by row.
  bool tiled;
  TiledRows tiles;
  int64_t heads;
  int64_t width;              // of all heads; each is whole 16 bytes, at most kMaxCosineWidth
  const void* x;              // T[N, width]
  const float* row_scale;     // [N, heads]: beta over the row's norm,
  const float* column_scale;  // [N, heads]: 1 over it
  const float* beta;          // [heads]
  void* out;                  // T[N, width]
  float* log_sum;             // [N, heads]
  // Scratch: sums of rows and of exponentials, of each part's 64 rows and of each chunk.
  float* slots;         // [num_parts, 64, width]
  float* slot_totals;   // [num_parts, 64, heads]
  float* partials;      // [num_chunks, width]
  float* chunk_totals;  // [num_chunks, heads]
  uint32_t* loops;      // [num_parts, 2], by slot: the rows whose self-loop is in a tile
};

cudaError_t launch_cosine_tiles(const TilesCosineArgs& args, const Launch& launch);
cudaError_t launch_cosine_rest(const TilesCosineArgs& args, const Launch& launch);

}  // namespace jaxgnn::tiles
