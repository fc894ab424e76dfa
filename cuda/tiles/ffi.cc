// The XLA FFI handler of the product over tiles, which only a GPU has.
#include "cuda/core/ffi.h"

#include "cuda/registrations.h"
#include "cuda/tiles/tiles.h"

namespace jaxgnn::tiles {
namespace {

constexpr int64_t kMostSlices = 65535;  // of a grid's second axis

Error tiles_spmm(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer row_columns, AnyBuffer rows,
                 AnyBuffer columns, AnyBuffer masks, AnyBuffer parts, AnyBuffer slot_offsets,
                 AnyBuffer rest_offsets, AnyBuffer rest_columns, AnyBuffer chunks, AnyBuffer x,
                 Result out, Result slots, Result partials, Int<attr::reduce> reduce,
                 Int<attr::split_length> split_length) {
  Check check("jaxgnn_tiles_spmm");
  const auto integers = [&](const AnyBuffer& buffer, int64_t size, const char* what) {
    check.vector(buffer, xla::ffi::S32, size, what);
    return static_cast<const int32_t*>(data_or_null(buffer));
  };
  const DataType type = x.element_type();
  const int64_t num_rows = count(rows), batches = dim(masks, 0), width = dim(x, 1);
  const int64_t windows = (num_rows + kWindowRows - 1) / kWindowRows;
  check.that(is_narrow_type(type), "x must be float32, bfloat16 or float16");
  check.matrix(x, type, dim(x, 0), width, "x must be [columns, features]");
  check.gathered(dim(x, 0), count(row_columns));
  check.matrix(*out, type, num_rows, width, "the result must be [rows, features] of x's type");
  const int64_t row_bytes = width * (type == xla::ffi::F32 ? 4 : 2);
  check.that(row_bytes % 16 == 0, "a row of x must be of whole 16 bytes");
  check.that(row_bytes <= kMostSlices * kSliceBytes, "x must have fewer features");
  check.that(*split_length > 0 && *split_length <= INT32_MAX, "split_length must be positive");
  check.that(num_rows < INT32_MAX && dim(parts, 0) < INT32_MAX && dim(chunks, 0) < INT32_MAX,
             "there must be fewer than 2^31 rows, parts and chunks");
  TilesSpmmArgs args{};
  args.mean = is_mean(check, *reduce);
  args.rows = integers(rows, num_rows, "the tiles' rows must be int32 [rows]");
  args.columns =
      integers(columns, batches * kBatchEntries, "the tiles' columns must be int32, 16 a batch");
  args.slot_offsets =
      integers(slot_offsets, windows + 1, "the slot offsets must be int32 [windows + 1]");
  args.rest_offsets =
      integers(rest_offsets, num_rows + 1, "the rest's offsets must be int32 [rows + 1]");
  args.rest_columns =
      integers(rest_columns, count(rest_columns), "the rest's columns must be int32");
  args.row_offsets = integers(row_offsets, num_rows + 1, "row_offsets must be int32 [rows + 1]");
  args.row_columns = integers(row_columns, count(row_columns), "columns must be int32 [edges]");
  check.matrix(masks, xla::ffi::U32, batches, kBatchWords,
               "the tiles' masks must be uint32 [batches, 32]");
  check.matrix(parts, xla::ffi::S32, dim(parts, 0), 4, "the tiles' parts must be int32 [parts, 4]");
  check.matrix(chunks, xla::ffi::S32, dim(chunks, 0), 2,
               "the rest's chunks must be int32 [chunks, 2]");
  check.that(slots->element_type() == xla::ffi::F32 && rank(*slots) == 3 &&
                 dim(*slots, 0) == dim(parts, 0) && dim(*slots, 1) == kWindowRows &&
                 dim(*slots, 2) == width,
             "slots must be float32 [parts, 64, features]");
  check.matrix(*partials, xla::ffi::F32, dim(chunks, 0), width,
               "partials must be float32 [chunks, features]");
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.masks = static_cast<const uint32_t*>(data_or_null(masks));
  args.parts = static_cast<const int4*>(data_or_null(parts));
  args.chunks = static_cast<const RowPart*>(data_or_null(chunks));
  args.num_parts = static_cast<int>(dim(parts, 0));
  args.num_chunks = static_cast<int>(dim(chunks, 0));
  args.split_length = static_cast<int>(*split_length);
  args.num_rows = num_rows;
  args.width = width;
  args.x = x.untyped_data();
  args.out = out->untyped_data();
  args.slots = static_cast<float*>(data_or_null(*slots));
  args.partials = static_cast<float*>(data_or_null(*partials));
  if (num_rows == 0 || width == 0) return Error::Success();
  cudaError_t error = cudaSuccess;
  if (args.num_parts > 0) {
    error = args.type == Type::kF32 ? launch_tiles_f32(args, launch)
                                    : launch_tiles_16_bit(args, launch);
  }
  if (error == cudaSuccess) error = launch_rest(args, launch);
  return finish(check, error);
}

}  // namespace

void add_cuda_targets(CudaTargets& targets) { targets.add<tiles_spmm>("jaxgnn_tiles_spmm"); }

cudaError_t load_kernels(const Launch& load) {
  JAXGNN_TRY(launch_tiles_16_bit({}, load));
  JAXGNN_TRY(launch_tiles_f32({}, load));
  return launch_rest({}, load);
}

}  // namespace jaxgnn::tiles
