// The XLA FFI handlers of the product over tiles, which only a GPU has.
#include "cuda/core/ffi.h"

#include "cuda/registrations.h"
#include "cuda/tiles/cosine.h"
#include "cuda/tiles/tiled_rows.h"

namespace jaxgnn::tiles {
namespace {

constexpr int64_t kMostSlices = 65535;  // of a grid's second axis

// What sums with weights and without have in common.
TilesSpmmArgs spmm_args(Check& check, const TileBuffers& tiles, const AnyBuffer& x,
                        const AnyBuffer& out, const AnyBuffer& slots, const AnyBuffer& partials,
                        int64_t reduce, int64_t chunk_length) {
  const DataType type = x.element_type();
  const int64_t num_rows = count(tiles.rows), width = dim(x, 1);
  check.that(is_narrow_type(type), "x must be float32, bfloat16 or float16");
  check.matrix(x, type, dim(x, 0), width, "x must be [columns, features]");
  check.matrix(out, type, num_rows, width, "the result must be [rows, features] of x's type");
  const int64_t row_bytes = width * (type == xla::ffi::F32 ? 4 : 2);
  check.that(row_bytes % 16 == 0, "a row of x must be of whole 16 bytes");
  check.that(row_bytes <= kMostSlices * kSliceBytes, "x must have fewer features");
  TilesSpmmArgs args{};
  args.mean = is_mean(check, reduce);
  args.tiles = tiled_rows(check, tiles, num_rows, /*tiled=*/true, chunk_length);
  args.slots = scratch_of_parts(check, slots, dim(tiles.parts, 0), width,
                                "slots must be float32 [parts, 64, features]");
  check.matrix(partials, xla::ffi::F32, dim(tiles.chunks, 0), width,
               "partials must be float32 [chunks, features]");
  if (check.failed()) return args;
  args.type = value_type(type);
  args.width = width;
  args.heads = 1;
  args.x = x.untyped_data();
  args.out = out.untyped_data();
  args.partials = static_cast<float*>(data_or_null(partials));
  return args;
}

Error tiles_spmm(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer row_columns,
                 AnyBuffer chunks, AnyBuffer rows, AnyBuffer columns, AnyBuffer masks,
                 AnyBuffer parts, AnyBuffer slot_offsets, AnyBuffer rest_offsets,
                 AnyBuffer rest_columns, AnyBuffer x, Result out, Result slots, Result partials,
                 Int<attr::reduce> reduce, Int<attr::chunk_length> chunk_length,
                 Int<attr::tensorfloat32> tensorfloat32) {
  Check check("jaxgnn_tiles_spmm");
  check.gathered(dim(x, 0), count(row_columns));
  const TileBuffers tiles{row_offsets, &row_columns, chunks,       rows,         columns,
                          &masks,      parts,        slot_offsets, rest_offsets, rest_columns};
  TilesSpmmArgs args = spmm_args(check, tiles, x, *out, *slots, *partials, *reduce, *chunk_length);
  if (check.failed()) return check.error();
  args.tensorfloat32 = *tensorfloat32 != 0;
  if (args.tiles.num_rows == 0 || args.width == 0) return Error::Success();
  cudaError_t error = cudaSuccess;
  if (args.tiles.num_parts > 0) {
    error = args.type == Type::kF32 ? launch_tiles_f32(args, launch)
                                    : launch_tiles_16_bit(args, launch);
  }
  if (error == cudaSuccess) error = launch_rest(args, launch);
  return finish(check, error);
}

// The edges in tiles, of so many parts.
TileEdges tile_edges(Check& check, int64_t parts, const AnyBuffer& stage_offsets,
                     const AnyBuffer& edge_counts, const AnyBuffer& edge_offsets,
                     const AnyBuffer& edge_entries, const AnyBuffer& edges) {
  TileEdges out{};
  out.stage_offsets =
      integers(check, stage_offsets, parts + 1, "the stage offsets must be int32 [parts + 1]");
  check.matrix(edge_counts, xla::ffi::U8, dim(edge_counts, 0), kWindowRows,
               "the edge counts must be uint8 [stages, 64]");
  out.counts = static_cast<const uint2*>(data_or_null(edge_counts));
  out.offsets =
      integers(check, edge_offsets, 8 * parts + 1, "the edge offsets must be int32 [8 parts + 1]");
  check.vector(edge_entries, xla::ffi::U8, count(edges),
               "the edges' entries must be uint8 [edges]");
  out.entries = static_cast<const uint8_t*>(data_or_null(edge_entries));
  out.edges = integers(check, edges, count(edges), "the tiles' edges must be int32");
  return out;
}

Error tiles_weighted_spmm(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer chunks,
                          AnyBuffer rows, AnyBuffer columns, AnyBuffer parts,
                          AnyBuffer slot_offsets, AnyBuffer rest_offsets, AnyBuffer rest_columns,
                          AnyBuffer rest_edges, AnyBuffer stage_offsets, AnyBuffer edge_counts,
                          AnyBuffer edge_offsets, AnyBuffer edge_entries, AnyBuffer edges,
                          AnyBuffer x, AnyBuffer weights, Result out, Result slots, Result partials,
                          Int<attr::reduce> reduce, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_tiles_weighted_spmm");
  const int64_t num_edges = dim(weights, 0), heads = dim(weights, 1);
  check.gathered(dim(x, 0), count(columns) + count(rest_columns));
  check.matrix(weights, xla::ffi::F32, num_edges, heads, "weights must be float32 [edges, heads]");
  check.that(num_edges == count(edges) + count(rest_edges),
             "weights must be those of the edges in tiles and of the others");
  check.that(heads > 0 && dim(x, 1) % heads == 0 &&
                 dim(x, 1) / heads * (x.element_type() == xla::ffi::F32 ? 4 : 2) % 16 == 0,
             "each head must be of whole 16 bytes");
  const TileBuffers tiles{row_offsets, nullptr, chunks,       rows,         columns,
                          nullptr,     parts,   slot_offsets, rest_offsets, rest_columns};
  TilesSpmmArgs args = spmm_args(check, tiles, x, *out, *slots, *partials, *reduce, *chunk_length);
  args.rest_edges = integers(check, rest_edges, count(rest_columns),
                             "the rest's edges must be int32, one for each of its columns");
  args.edges = tile_edges(check, dim(parts, 0), stage_offsets, edge_counts, edge_offsets,
                          edge_entries, edges);
  if (check.failed()) return check.error();
  args.weights = static_cast<const float*>(data_or_null(weights));
  args.heads = heads;
  if (args.tiles.num_rows == 0 || args.width == 0) return Error::Success();
  cudaError_t error = cudaSuccess;
  if (args.tiles.num_parts > 0) error = launch_weighted_tiles(args, launch);
  if (error == cudaSuccess) error = launch_rest(args, launch);
  return finish(check, error);
}

}  // namespace

void add_cuda_targets(CudaTargets& targets) {
  targets.add<tiles_spmm>("jaxgnn_tiles_spmm");
  targets.add<tiles_weighted_spmm>("jaxgnn_tiles_weighted_spmm");
  add_cosine_targets(targets);
}

cudaError_t load_kernels(const Launch& load) {
  JAXGNN_TRY(launch_tiles_16_bit({}, load));
  JAXGNN_TRY(launch_tiles_f32({}, load));
  JAXGNN_TRY(launch_weighted_tiles({}, load));
  JAXGNN_TRY(launch_cosine_tiles({}, load));
  JAXGNN_TRY(launch_cosine_rest({}, load));
  return launch_rest({}, load);
}

}  // namespace jaxgnn::tiles
