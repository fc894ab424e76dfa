// The XLA FFI handler of attention by cosines over tiles, and by rows where arrays of tiles have no
// elements.
#include "cuda/core/ffi.h"
#include "cuda/registrations.h"
#include "cuda/tiles/cosine.h"
#include "cuda/tiles/tiled_rows.h"

namespace jaxgnn::tiles {
namespace {

constexpr int64_t kMostHeads = 65535;  // of a grid's second axis

// A matrix of float32.
float* floats(Check& check, const AnyBuffer& buffer, int64_t rows, int64_t columns,
              const char* what) {
  check.matrix(buffer, xla::ffi::F32, rows, columns, what);
  return static_cast<float*>(data_or_null(buffer));
}

Error tiles_cosine_attention(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer row_columns,
                             AnyBuffer chunks, AnyBuffer rows, AnyBuffer columns, AnyBuffer masks,
                             AnyBuffer parts, AnyBuffer slot_offsets, AnyBuffer rest_offsets,
                             AnyBuffer rest_columns, AnyBuffer x, AnyBuffer row_scale,
                             AnyBuffer column_scale, AnyBuffer beta, Result out, Result log_sum,
                             Result slots, Result slot_totals, Result partials, Result chunk_totals,
                             Result loops, Int<attr::heads> num_heads,
                             Int<attr::self_loops> self_loops,
                             Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_tiles_cosine_attention");
  const DataType type = x.element_type();
  const bool tiled = count(rest_offsets) > 0;
  const int64_t nodes = tiled ? count(rows) : dim(x, 0), width = dim(x, 1), heads = *num_heads;
  const int64_t num_parts = dim(parts, 0), num_chunks = dim(chunks, 0);
  check.that(type == xla::ffi::BF16 || type == xla::ffi::F16, "x must be bfloat16 or float16");
  check.matrix(x, type, nodes, width, "x must have a row for each row of the graph");
  check.matrix(*out, type, nodes, width, "the result must be like x");
  check.that(heads > 0 && heads <= kMostHeads && width % heads == 0 && width / heads % 8 == 0 &&
                 width / heads <= kMaxCosineWidth,
             "a head must have a multiple of 8 features, at most 64");
  TilesCosineArgs args{};
  const TileBuffers tiles{row_offsets, &row_columns, chunks,       rows,         columns,
                          &masks,      parts,        slot_offsets, rest_offsets, rest_columns};
  args.tiles = tiled_rows(check, tiles, nodes, tiled, *chunk_length);
  args.row_scale =
      floats(check, row_scale, nodes, heads, "row_scale must be float32 [nodes, heads]");
  args.column_scale =
      floats(check, column_scale, nodes, heads, "column_scale must be float32 [nodes, heads]");
  check.vector(beta, xla::ffi::F32, heads, "beta must be float32 [heads]");
  args.log_sum = floats(check, *log_sum, nodes, heads, "log_sum must be float32 [nodes, heads]");
  args.slots = scratch_of_parts(check, *slots, num_parts, width,
                                "slots must be float32 [parts, 64, features]");
  args.slot_totals = scratch_of_parts(check, *slot_totals, num_parts, heads,
                                      "slot_totals must be float32 [parts, 64, heads]");
  args.partials =
      floats(check, *partials, num_chunks, width, "partials must be float32 [chunks, features]");
  args.chunk_totals = floats(check, *chunk_totals, num_chunks, heads,
                             "chunk_totals must be float32 [chunks, heads]");
  check.matrix(*loops, xla::ffi::U32, num_parts, 2, "loops must be uint32 [parts, 2]");
  if (check.failed()) return check.error();
  if (nodes == 0 || width == 0) return Error::Success();
  args.type = value_type(type);
  args.tiled = tiled;
  args.self_loops = *self_loops != 0;
  args.loops = static_cast<uint32_t*>(data_or_null(*loops));
  args.heads = heads;
  args.width = width;
  args.x = x.untyped_data();
  args.beta = static_cast<const float*>(beta.untyped_data());
  args.out = out->untyped_data();
  cudaError_t error = launch_cosine_tiles(args, launch);
  if (error == cudaSuccess) error = launch_cosine_rest(args, launch);
  return finish(check, error);
}

}  // namespace

void add_cosine_targets(CudaTargets& targets) {
  targets.add<tiles_cosine_attention>("jaxgnn_tiles_cosine_attention");
}

}  // namespace jaxgnn::tiles
