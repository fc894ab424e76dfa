// What the FFI handlers over tiles check alike: the arrays of a graph's tiles.
#pragma once

#include "cuda/core/ffi.h"
#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {

// A vector of int32.
inline const int32_t* integers(Check& check, const AnyBuffer& buffer, int64_t size,
                               const char* what) {
  check.vector(buffer, xla::ffi::S32, size, what);
  return static_cast<const int32_t*>(data_or_null(buffer));
}

// Scratch of float32 for each part's 64 rows.
inline float* scratch_of_parts(Check& check, const AnyBuffer& buffer, int64_t parts, int64_t width,
                               const char* what) {
  check.that(buffer.element_type() == xla::ffi::F32 && rank(buffer) == 3 &&
                 dim(buffer, 0) == parts && dim(buffer, 1) == kWindowRows &&
                 dim(buffer, 2) == width,
             what);
  return static_cast<float*>(data_or_null(buffer));
}

// The buffers of TiledRows, in the order of the handlers' operands; weighted sums have neither all
// columns nor masks.
struct TileBuffers {
  const AnyBuffer& row_offsets;
  const AnyBuffer* row_columns;
  const AnyBuffer& chunks;
  const AnyBuffer& rows;
  const AnyBuffer& columns;
  const AnyBuffer* masks;
  const AnyBuffer& parts;
  const AnyBuffer& slot_offsets;
  const AnyBuffer& rest_offsets;
  const AnyBuffer& rest_columns;
};

// The tiles of so many rows. If not `tiled`, the arrays of tiles have no elements and the other
// edges are all; `rows` may then have none.
inline TiledRows tiled_rows(Check& check, const TileBuffers& of, int64_t num_rows, bool tiled,
                            int64_t chunk_length) {
  const int64_t windows = (num_rows + kWindowRows - 1) / kWindowRows;
  const int64_t num_parts = dim(of.parts, 0), num_chunks = dim(of.chunks, 0);
  check.that(chunk_length > 0 && chunk_length <= INT32_MAX, "chunk_length must be positive");
  check.that(num_rows < INT32_MAX && num_parts < INT32_MAX && num_chunks < INT32_MAX,
             "there must be fewer than 2^31 rows, parts and chunks");
  check.that(tiled || num_parts == 0, "parts need the rest's offsets");
  TiledRows tiles{};
  tiles.row_offsets =
      integers(check, of.row_offsets, num_rows + 1, "row_offsets must be int32 [rows + 1]");
  if (of.row_columns != nullptr) {
    tiles.row_columns =
        integers(check, *of.row_columns, count(*of.row_columns), "columns must be int32 [edges]");
  }
  tiles.rows = integers(check, of.rows, tiled || count(of.rows) > 0 ? num_rows : 0,
                        "the rows in order must be int32 [rows]");
  tiles.columns =
      integers(check, of.columns, count(of.columns), "the tiles' columns must be int32");
  check.that(count(of.columns) % kBatchEntries == 0, "the tiles' columns must be 16 a batch");
  if (of.masks != nullptr) {
    check.matrix(*of.masks, xla::ffi::U32, count(of.columns) / kBatchEntries, kBatchWords,
                 "the tiles' masks must be uint32 [batches, 32]");
    tiles.masks = static_cast<const uint32_t*>(data_or_null(*of.masks));
  }
  check.matrix(of.parts, xla::ffi::S32, num_parts, 4, "the tiles' parts must be int32 [parts, 4]");
  tiles.parts = static_cast<const int4*>(data_or_null(of.parts));
  tiles.slot_offsets = integers(check, of.slot_offsets, tiled ? windows + 1 : 0,
                                "the slot offsets must be int32 [windows + 1]");
  tiles.rest_offsets = integers(check, of.rest_offsets, tiled ? num_rows + 1 : 0,
                                "the rest's offsets must be int32 [rows + 1]");
  tiles.rest_columns =
      integers(check, of.rest_columns, count(of.rest_columns), "the rest's columns must be int32");
  if (!tiled) {
    tiles.rest_offsets = tiles.row_offsets;
    tiles.rest_columns = tiles.row_columns;
  }
  check.matrix(of.chunks, xla::ffi::S32, num_chunks, 2,
               "the rest's chunks must be int32 [chunks, 2]");
  tiles.chunks = static_cast<const RowPart*>(data_or_null(of.chunks));
  tiles.num_parts = static_cast<int>(num_parts);
  tiles.num_chunks = static_cast<int>(num_chunks);
  tiles.chunk_length = static_cast<int>(chunk_length);
  tiles.num_rows = num_rows;
  return tiles;
}

}  // namespace jaxgnn::tiles
