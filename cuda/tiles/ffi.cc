// The XLA FFI handlers of the product over tiles, which only a GPU has.
#include "cuda/core/ffi.h"

#include "cuda/registrations.h"
#include "cuda/tiles/cosine.h"
#include "cuda/tiles/integers.h"
#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {
namespace {

constexpr int64_t kMostSlices = 65535;  // of a grid's second axis

// Of sums with weights or without, what both take.
struct SpmmBuffers {
  const AnyBuffer& row_offsets;
  const AnyBuffer& rows;
  const AnyBuffer& columns;
  const AnyBuffer& parts;
  const AnyBuffer& slot_offsets;
  const AnyBuffer& rest_offsets;
  const AnyBuffer& rest_columns;
  const AnyBuffer& chunks;
  const AnyBuffer& x;
  const AnyBuffer& out;
  const AnyBuffer& slots;
  const AnyBuffer& partials;
};

TilesSpmmArgs spmm_args(Check& check, const SpmmBuffers& of, int64_t reduce, int64_t split_length) {
  const DataType type = of.x.element_type();
  const int64_t num_rows = count(of.rows), width = dim(of.x, 1);
  const int64_t windows = (num_rows + kWindowRows - 1) / kWindowRows;
  check.that(is_narrow_type(type), "x must be float32, bfloat16 or float16");
  check.matrix(of.x, type, dim(of.x, 0), width, "x must be [columns, features]");
  check.matrix(of.out, type, num_rows, width, "the result must be [rows, features] of x's type");
  const int64_t row_bytes = width * (type == xla::ffi::F32 ? 4 : 2);
  check.that(row_bytes % 16 == 0, "a row of x must be of whole 16 bytes");
  check.that(row_bytes <= kMostSlices * kSliceBytes, "x must have fewer features");
  check.that(split_length > 0 && split_length <= INT32_MAX, "split_length must be positive");
  check.that(num_rows < INT32_MAX && dim(of.parts, 0) < INT32_MAX && dim(of.chunks, 0) < INT32_MAX,
             "there must be fewer than 2^31 rows, parts and chunks");
  TilesSpmmArgs args{};
  args.mean = is_mean(check, reduce);
  args.rows = integers(check, of.rows, num_rows, "the tiles' rows must be int32 [rows]");
  args.columns = integers(check, of.columns, count(of.columns), "the tiles' columns must be int32");
  check.that(count(of.columns) % kBatchEntries == 0, "the tiles' columns must be 16 a batch");
  args.slot_offsets =
      integers(check, of.slot_offsets, windows + 1, "the slot offsets must be int32 [windows + 1]");
  args.rest_offsets =
      integers(check, of.rest_offsets, num_rows + 1, "the rest's offsets must be int32 [rows + 1]");
  args.rest_columns =
      integers(check, of.rest_columns, count(of.rest_columns), "the rest's columns must be int32");
  args.row_offsets =
      integers(check, of.row_offsets, num_rows + 1, "row_offsets must be int32 [rows + 1]");
  check.matrix(of.parts, xla::ffi::S32, dim(of.parts, 0), 4,
               "the tiles' parts must be int32 [parts, 4]");
  check.matrix(of.chunks, xla::ffi::S32, dim(of.chunks, 0), 2,
               "the rest's chunks must be int32 [chunks, 2]");
  check.that(of.slots.element_type() == xla::ffi::F32 && rank(of.slots) == 3 &&
                 dim(of.slots, 0) == dim(of.parts, 0) && dim(of.slots, 1) == kWindowRows &&
                 dim(of.slots, 2) == width,
             "slots must be float32 [parts, 64, features]");
  check.matrix(of.partials, xla::ffi::F32, dim(of.chunks, 0), width,
               "partials must be float32 [chunks, features]");
  if (check.failed()) return args;
  args.type = value_type(type);
  args.parts = static_cast<const int4*>(data_or_null(of.parts));
  args.chunks = static_cast<const RowPart*>(data_or_null(of.chunks));
  args.num_parts = static_cast<int>(dim(of.parts, 0));
  args.num_chunks = static_cast<int>(dim(of.chunks, 0));
  args.split_length = static_cast<int>(split_length);
  args.num_rows = num_rows;
  args.width = width;
  args.heads = 1;
  args.x = of.x.untyped_data();
  args.out = of.out.untyped_data();
  args.slots = static_cast<float*>(data_or_null(of.slots));
  args.partials = static_cast<float*>(data_or_null(of.partials));
  return args;
}

Error tiles_spmm(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer row_columns, AnyBuffer rows,
                 AnyBuffer columns, AnyBuffer masks, AnyBuffer parts, AnyBuffer slot_offsets,
                 AnyBuffer rest_offsets, AnyBuffer rest_columns, AnyBuffer chunks, AnyBuffer x,
                 Result out, Result slots, Result partials, Int<attr::reduce> reduce,
                 Int<attr::split_length> split_length, Int<attr::tensorfloat32> tensorfloat32) {
  Check check("jaxgnn_tiles_spmm");
  const int64_t batches = dim(masks, 0);
  check.gathered(dim(x, 0), count(row_columns));
  check.vector(columns, xla::ffi::S32, batches * kBatchEntries,
               "the tiles' columns must be int32, 16 a batch");
  check.matrix(masks, xla::ffi::U32, batches, kBatchWords,
               "the tiles' masks must be uint32 [batches, 32]");
  const SpmmBuffers of{row_offsets,  rows,   columns, parts, slot_offsets, rest_offsets,
                       rest_columns, chunks, x,       *out,  *slots,       *partials};
  TilesSpmmArgs args = spmm_args(check, of, *reduce, *split_length);
  args.row_columns =
      integers(check, row_columns, count(row_columns), "columns must be int32 [edges]");
  if (check.failed()) return check.error();
  args.masks = static_cast<const uint32_t*>(data_or_null(masks));
  args.tensorfloat32 = *tensorfloat32 != 0;
  if (args.num_rows == 0 || args.width == 0) return Error::Success();
  cudaError_t error = cudaSuccess;
  if (args.num_parts > 0) {
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

Error tiles_weighted_spmm(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer rows,
                          AnyBuffer columns, AnyBuffer parts, AnyBuffer slot_offsets,
                          AnyBuffer rest_offsets, AnyBuffer rest_columns, AnyBuffer chunks,
                          AnyBuffer rest_edges, AnyBuffer stage_offsets, AnyBuffer edge_counts,
                          AnyBuffer edge_offsets, AnyBuffer edge_entries, AnyBuffer edges,
                          AnyBuffer x, AnyBuffer weights, Result out, Result slots, Result partials,
                          Int<attr::reduce> reduce, Int<attr::split_length> split_length) {
  Check check("jaxgnn_tiles_weighted_spmm");
  const int64_t num_edges = dim(weights, 0), heads = dim(weights, 1);
  check.gathered(dim(x, 0), count(columns) + count(rest_columns));
  check.matrix(weights, xla::ffi::F32, num_edges, heads, "weights must be float32 [edges, heads]");
  check.that(num_edges == count(edges) + count(rest_edges),
             "weights must be those of the edges in tiles and of the others");
  check.that(heads > 0 && dim(x, 1) % heads == 0 &&
                 dim(x, 1) / heads * (x.element_type() == xla::ffi::F32 ? 4 : 2) % 16 == 0,
             "each head must be of whole 16 bytes");
  const SpmmBuffers of{row_offsets,  rows,   columns, parts, slot_offsets, rest_offsets,
                       rest_columns, chunks, x,       *out,  *slots,       *partials};
  TilesSpmmArgs args = spmm_args(check, of, *reduce, *split_length);
  args.rest_edges = integers(check, rest_edges, count(rest_columns),
                             "the rest's edges must be int32, one for each of its columns");
  args.edges = tile_edges(check, dim(parts, 0), stage_offsets, edge_counts, edge_offsets,
                          edge_entries, edges);
  if (check.failed()) return check.error();
  args.weights = static_cast<const float*>(data_or_null(weights));
  args.heads = heads;
  if (args.num_rows == 0 || args.width == 0) return Error::Success();
  cudaError_t error = cudaSuccess;
  if (args.num_parts > 0) error = launch_weighted_tiles(args, launch);
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
