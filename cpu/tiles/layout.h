// The layout of tiles: the columns that several rows of a 64-row window share, as masks in the
// order of a tensor core instruction, and the other edges as compressed rows.
//
// Plain pointers in, owned buffers out; the same result for any number of threads.
#pragma once

#include <cstdint>

#include "cpu/host/graph.h"

namespace jaxgnn::host {

constexpr int kTileRows = 64;          // of a window
constexpr int kBatchEntries = 16;      // of a batch: K of mma.m16n8k16
constexpr int kBatchWords = 32;        // of a batch's mask: one a lane of a warp
constexpr int64_t kPartBatches = 384;  // of a part, at most: what a thread block takes
constexpr int kStageBatches = 4;       // of a stage: what a thread block holds at once
constexpr int kRowGroups = 8;          // of a window: rows g, g + 8, ..., g + 56, a warp's

// A *place* is a row's number in the order; window w has the places 64 w to 64 w + 63. An *entry*
// is a column of a window that at least `min_edges` of its rows read.
struct TileLayout {
  Buffer<int32_t> columns;       // [batches, 16], ascending within a window; padding repeats the
                                 // batch's last column
  Buffer<uint32_t> masks;        // [batches, 32], see mask_bit
  Buffer<int32_t> parts;         // [parts, 4]: first batch, end, slot, window; the longest first
  Buffer<int32_t> slot_offsets;  // [windows + 1]: the slots of each window
  Buffer<int32_t> rest_offsets;  // [rows + 1], by place
  Buffer<int32_t> rest_columns;  // of the edges that are in no tile
  Buffer<int32_t> rest_edges;    // the edge of each, by its place in `columns`
  // The edges in tiles, for operations that take each by itself. A stage is 4 consecutive batches
  // of a part, its last one possibly fewer. Edges are listed by slot, row group, stage and row.
  Buffer<int32_t> stage_offsets;  // [parts + 1], by slot
  Buffer<uint8_t> edge_counts;    // [stages, 64]: edges of row g + 8 i in the stage, at 8 g + i
  Buffer<int32_t> edge_offsets;   // [8 parts + 1], by slot and row group
  Buffer<uint8_t> edge_entries;   // of each edge, its entry in the stage
  Buffer<int32_t> edges;          // its place in `columns` of the rows
  int64_t num_entries = 0;        // without padding
  int64_t num_columns = 0;        // distinct columns, summed over the windows
};

// Where the 64 x 16 mask of a batch has row `row` and entry `k`. Lane l's word holds the A
// fragments of four m16n8k16 (rows 0-15, 16-31, ...): register i of tile m, which has the rows
// g + 8 (i & 1) and the columns 2 t + 8 (i >> 1) and the next, g = l / 4 and t = l % 4, is
// (i + 4 m == 0 ? word >> 1 : word << (i + 4 m - 1)) & 0x40004000: two 16-bit floats, 0 or 2.
struct MaskBit {
  int lane;
  uint32_t bit;
};
inline MaskBit mask_bit(int row, int k) {
  const int tile = row / 16, within = row % 16;
  const int i = within / 8 + 2 * (k / 8);
  return {within % 8 * 4 + k % 8 / 2, uint32_t{1} << ((k % 2 != 0 ? 31 : 15) - (4 * tile + i))};
}

// `order` holds each row once, `columns` are below `num_columns`. A repeated edge is in the rest.
// So is a window's last batch, of the entries with the fewest edges, if it has fewer than
// 16 min_edges edges. Throws std::length_error if there are 2^31 entries or more.
TileLayout lay_out_tiles(const int32_t* row_offsets, const int32_t* columns, const int32_t* order,
                         int32_t num_rows, int32_t num_columns, int32_t min_edges);

// The distinct columns of each window of this order, summed.
int64_t count_window_columns(const int32_t* row_offsets, const int32_t* columns,
                             const int32_t* order, int32_t num_rows, int32_t num_columns);

}  // namespace jaxgnn::host
