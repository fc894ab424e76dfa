// The XLA FFI handlers of MaxK and its products.
#include "cuda/core/ffi.h"

#include "cuda/maxk/cbsr_scatter.h"
#include "cuda/maxk/maxk.h"
#include "cuda/maxk/maxk_spmm.h"
#include "cuda/maxk/windows.h"
#include "ffi/maxk.h"

namespace jaxgnn::maxk {
namespace {

namespace ffi = xla::ffi;

// float64 runs in JAX on a GPU.
bool is_narrow(ffi::DataType type) { return is_value_type(type) && type != ffi::F64; }

ffi::DataType index_type(int64_t width) { return width <= 256 ? ffi::U8 : ffi::U16; }

constexpr int64_t kMaxWidth = 4096;  // a warp's rows of sums must fit in shared memory

// Records of k values and columns of a width.
void check_records(Check& check, const AnyBuffer& values, const AnyBuffer& columns, int64_t width) {
  check.that(is_narrow(values.element_type()), "values must be float32, bfloat16 or float16");
  check.that(width >= 1 && width <= kMaxWidth, "the width must be from 1 to 4096");
  check.that(dim(values, 1) >= 1 && dim(values, 1) <= width, "k must be from 1 to the width");
  check.matrix(columns, index_type(width), dim(values, 0), dim(values, 1),
               "the indices must be [rows, k], uint8 for widths to 256, else uint16");
}

// `splits` null: long rows are not split.
void check_rows(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
                const AnyBuffer* splits, int64_t split_length) {
  if (splits == nullptr) {
    check.row_structure(row_offsets, columns);
  } else {
    check.row_structure(row_offsets, columns, *splits, split_length);
  }
}

constexpr int64_t kUnsplit = int64_t{1} << 30;  // a split length that no row reaches

// A float32 scratch result of the size, or (`needed` false) of no elements.
void check_sums(Check& check, const AnyBuffer& sums, bool needed, int64_t rows, int64_t columns) {
  if (needed) check.matrix(sums, ffi::F32, rows, columns, "the sums must be float32 [rows, k]");
}

void check_weights(Check& check, const AnyBuffer& weights, int64_t edges) {
  check.optional_matrix(weights, ffi::F32, edges, 1, "weights must be float32 [edges, 1]");
}

void check_selection(Check& check, const AnyBuffer& x, Result& values, Result& columns) {
  check_records(check, *values, *columns, dim(x, 1));
  check.matrix(x, values->element_type(), dim(*values, 0), dim(x, 1), "x must be [rows, width]");
}

MaxkArgs make_maxk(const AnyBuffer& x, Result& values, Result& columns) {
  MaxkArgs args{};
  args.type = value_type(x.element_type());
  args.x = x.untyped_data();
  args.values = values->untyped_data();
  args.columns = columns->untyped_data();
  args.num_rows = dim(x, 0);
  args.width = dim(x, 1);
  args.k = dim(*values, 1);
  return args;
}

ffi::Error maxk(cudaStream_t stream, AnyBuffer x, Result values, Result columns) {
  Check check("jaxgnn_maxk");
  check_selection(check, x, values, columns);
  if (check.failed()) return check.error();
  return status("jaxgnn_maxk", launch_maxk(make_maxk(x, values, columns), stream));
}

ffi::Error maxk_transformed(cudaStream_t stream, AnyBuffer x, AnyBuffer bias, AnyBuffer keys,
                            Result values, Result columns, int64_t drop_below,
                            int64_t rows_per_example) {
  Check check("jaxgnn_maxk_transformed");
  check_selection(check, x, values, columns);
  MaxkArgs args = make_maxk(x, values, columns);
  take_transform(check, bias, ffi::F32, keys, drop_below, rows_per_example, args);
  if (check.failed()) return check.error();
  return status("jaxgnn_maxk_transformed", launch_maxk(args, stream));
}

ffi::Error cbsr_scatter(cudaStream_t stream, AnyBuffer values, AnyBuffer columns, Result out) {
  Check check("jaxgnn_cbsr_scatter");
  check_records(check, values, columns, dim(*out, 1));
  check.matrix(*out, values.element_type(), dim(values, 0), dim(*out, 1),
               "the result must be [rows, width]");
  if (check.failed()) return check.error();
  const CbsrScatterArgs args{value_type(values.element_type()),
                             values.untyped_data(),
                             columns.untyped_data(),
                             out->untyped_data(),
                             dim(values, 0),
                             dim(*out, 1),
                             dim(values, 1)};
  return status("jaxgnn_cbsr_scatter", launch_cbsr_scatter(args, stream));
}

// Scratch memory of a forward product: the range, with `words` a word for each entry, the
// size of each record, and with `flags` a flag for each row.
constexpr int64_t kRangeWords = 8;

struct Scratch {
  uint32_t* range = nullptr;
  uint32_t* words = nullptr;
  float* sizes = nullptr;
  uint32_t* flags = nullptr;
};

Scratch lay_out(Check& check, AnyBuffer& buffer, int64_t words, int64_t records, int64_t flags) {
  check.that(
      buffer.element_type() == ffi::U32 && count(buffer) == kRangeWords + words + records + flags,
      "scratch must be uint32 [8 + words + records + flags]");
  if (check.failed()) return {};
  uint32_t* const data = static_cast<uint32_t*>(buffer.untyped_data());
  uint32_t* const entries = data + kRangeWords;
  float* const sizes = reinterpret_cast<float*>(entries + words);
  return {data, words == 0 ? nullptr : entries, sizes, entries + words + records};
}

RangeArgs range_of(const AnyBuffer& values, uint32_t* range) {
  RangeArgs args{};
  args.type = value_type(values.element_type());
  args.values = values.untyped_data();
  args.num_rows = dim(values, 0);
  args.width = dim(values, 1);
  args.range = range;
  return args;
}

// What both forms of the forward product have in common.
MaxkSpmmArgs make_spmm(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
                       const AnyBuffer* splits, const AnyBuffer& values, const AnyBuffer& indices,
                       AnyBuffer& out, int64_t reduce, int64_t split_length) {
  check_rows(check, row_offsets, columns, splits, split_length);
  check_records(check, values, indices, dim(out, 1));
  check.that(reduce == 0 || reduce == 1, "reduce must be 0 or 1");
  MaxkSpmmArgs args{};
  args.rows = make_rows(row_offsets, columns, splits, count(columns), split_length);
  check.matrix(out, values.element_type(), args.rows.num_rows, dim(out, 1),
               "the result must be [rows, width]");
  args.type = value_type(values.element_type());
  args.values = values.untyped_data();
  args.columns = indices.untyped_data();
  args.out = out.untyped_data();
  args.width = dim(out, 1);
  args.k = dim(values, 1);
  args.mean = reduce == 1;
  return args;
}

ffi::Error maxk_spmm(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                     AnyBuffer splits, AnyBuffer values, AnyBuffer indices, AnyBuffer weights,
                     Result out, Result partials, Result scratch, int64_t reduce,
                     int64_t split_length) {
  Check check("jaxgnn_maxk_spmm");
  MaxkSpmmArgs args =
      make_spmm(check, row_offsets, columns, &splits, values, indices, *out, reduce, split_length);
  check_weights(check, weights, count(columns));
  check.matrix(*partials, ffi::F32, dim(splits, 0), args.width,
               "partials must be float32 [parts, width]");
  Scratch parts;
  const int64_t flags = args.rows.num_splits + args.rows.num_rows;
  if (count(*scratch) > 0) parts = lay_out(check, *scratch, 0, dim(values, 0), flags);
  if (check.failed()) return check.error();
  args.weights = static_cast<const float*>(data_or_null(weights));
  args.partials = static_cast<float*>(partials->untyped_data());
  cudaError_t error = cudaSuccess;
  if (parts.range != nullptr && args.weights == nullptr) {  // no bound on weighted sums
    args.range = parts.range;
    args.sizes = parts.sizes;
    RangeArgs range = range_of(values, parts.range);
    range.sizes = parts.sizes;
    range.flags = args.flags = parts.flags;
    range.num_flags = flags;
    error = launch_range(range, stream);
  }
  if (error == cudaSuccess) error = launch_maxk_spmm(args, stream);
  return status("jaxgnn_maxk_spmm", error);
}

Windows make_windows(Check& check, const AnyBuffer& rows, const AnyBuffer& parts,
                     const AnyBuffer& senders, const AnyBuffer& masks) {
  check.that(rows.element_type() == ffi::S32 && dim(rows, 1) == kWindowRows,
             "the windows' rows must be int32 [windows, 64]");
  check.that(parts.element_type() == ffi::S32 && dim(parts, 1) == 4,
             "the windows' parts must be int32 [parts, 4]");
  check.that(senders.element_type() == ffi::S32, "the windows' senders must be int32");
  check.matrix(masks, ffi::U32, count(senders), 2,
               "the windows' masks must be uint32 [entries, 2]");
  return {static_cast<const int32_t*>(rows.untyped_data()),
          static_cast<const int4*>(parts.untyped_data()),
          static_cast<const int32_t*>(senders.untyped_data()),
          static_cast<const uint2*>(masks.untyped_data()), static_cast<int>(dim(parts, 0))};
}

void check_window_sizes(Check& check, int64_t width, const AnyBuffer& indices) {
  check.that(width % 4 == 0 && width <= kWindowWidth,
             "windows need a width that is a multiple of 4, at most 256");
  check.that(count(indices) <= UINT32_MAX, "windows need fewer than 2^32 entries");
}

ffi::Error maxk_spmm_windows(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                             AnyBuffer window_rows, AnyBuffer window_parts,
                             AnyBuffer window_senders, AnyBuffer window_masks, AnyBuffer values,
                             AnyBuffer indices, Result out, Result partials, Result scratch,
                             int64_t in_words, int64_t reduce) {
  Check check("jaxgnn_maxk_spmm_windows");
  // Where fixed point does not hold, whole rows in float, long ones too.
  MaxkSpmmArgs rows =
      make_spmm(check, row_offsets, columns, nullptr, values, indices, *out, reduce, kUnsplit);
  rows.fallback = true;
  MaxkWindowsArgs args{};
  args.windows = make_windows(check, window_rows, window_parts, window_senders, window_masks);
  check_window_sizes(check, rows.width, indices);
  check.that(in_words == 0 || rows.k % 4 == 0, "words need a k that is a multiple of 4");
  const Scratch parts = lay_out(check, *scratch, in_words != 0 ? count(values) : 0, dim(values, 0),
                                rows.rows.num_rows);
  check.that(partials->element_type() == ffi::F32 &&
                 count(*partials) % (kWindowRows * std::max<int64_t>(rows.width, 1)) == 0,
             "partials must be float32 [places, 64, width]");
  if (check.failed()) return check.error();
  args.type = rows.type;
  args.row_offsets = rows.rows.offsets;
  args.wide_offsets = rows.rows.wide_offsets;
  args.mean = rows.mean;
  args.values = rows.values;
  args.words = parts.words;
  args.columns = static_cast<const uint8_t*>(rows.columns);
  args.dense = rows.out;
  args.partials = count(*partials) == 0 ? nullptr : static_cast<float*>(partials->untyped_data());
  args.range = rows.range = parts.range;
  args.sizes = rows.sizes = parts.sizes;
  args.flags = parts.flags;
  rows.flags = parts.flags;
  args.width = rows.width;
  args.k = rows.k;
  RangeArgs range = range_of(values, parts.range);
  range.sizes = parts.sizes;
  range.columns = args.columns;
  range.words = parts.words;
  range.flags = parts.flags;
  range.num_flags = rows.rows.num_rows;
  cudaError_t error = launch_range(range, stream);
  if (error == cudaSuccess) error = launch_maxk_spmm_windows(args, stream);
  if (error == cudaSuccess) error = launch_maxk_spmm(rows, stream);
  return status("jaxgnn_maxk_spmm_windows", error);
}

// What the three forms of the backward product have in common; `rows` are those of `dense` when
// scattered, of the records when gathered.
MaxkSspmmArgs make_sspmm(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
                         const AnyBuffer* splits, const AnyBuffer& dense, const AnyBuffer& indices,
                         AnyBuffer& out, int64_t split_length) {
  check_rows(check, row_offsets, columns, splits, split_length);
  check_records(check, out, indices, dim(dense, 1));
  check.matrix(dense, out.element_type(), dim(dense, 0), dim(dense, 1),
               "the dense operand must have the result's type");
  MaxkSspmmArgs args{};
  args.type = value_type(dense.element_type());
  args.rows = make_rows(row_offsets, columns, splits, count(columns), split_length);
  args.dense = dense.untyped_data();
  args.columns = indices.untyped_data();
  args.out = out.untyped_data();
  args.width = dim(dense, 1);
  args.k = dim(out, 1);
  args.num_records = dim(out, 0);
  return args;
}

ffi::Error maxk_sspmm(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                      AnyBuffer splits, AnyBuffer dense, AnyBuffer indices, AnyBuffer weights,
                      Result out, Result partials, int64_t split_length) {
  Check check("jaxgnn_maxk_sspmm");
  MaxkSspmmArgs args =
      make_sspmm(check, row_offsets, columns, &splits, dense, indices, *out, split_length);
  check.that(args.rows.num_rows == args.num_records, "the result must have a row for each row");
  check_weights(check, weights, count(columns));
  check.matrix(*partials, ffi::F32, dim(splits, 0), args.k, "partials must be float32 [parts, k]");
  if (check.failed()) return check.error();
  args.weights = static_cast<const float*>(data_or_null(weights));
  args.partials = static_cast<float*>(partials->untyped_data());
  return status("jaxgnn_maxk_sspmm", launch_maxk_sspmm(args, stream));
}

// The float sums of a result: itself, if it is float32, else the scratch that is then rounded.
float* sums_of(const AnyBuffer& out, AnyBuffer& result, AnyBuffer& sums) {
  return static_cast<float*>(out.element_type() == ffi::F32 ? result.untyped_data()
                                                            : sums.untyped_data());
}

cudaError_t round_sums(AnyBuffer& out, const float* sums, cudaStream_t stream) {
  if (out.element_type() == ffi::F32) return cudaSuccess;
  return launch_round(value_type(out.element_type()), sums, out.untyped_data(), count(out), stream);
}

ffi::Error maxk_sspmm_scatter(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                              AnyBuffer splits, AnyBuffer dense, AnyBuffer indices,
                              AnyBuffer weights, Result out, Result sums, int64_t split_length) {
  Check check("jaxgnn_maxk_sspmm_scatter");
  MaxkSspmmArgs args =
      make_sspmm(check, row_offsets, columns, &splits, dense, indices, *out, split_length);
  check.that(args.rows.num_rows == dim(dense, 0), "the dense operand must have a row for each row");
  check_weights(check, weights, count(columns));
  check_sums(check, *sums, out->element_type() != ffi::F32, args.num_records, args.k);
  if (check.failed()) return check.error();
  args.weights = static_cast<const float*>(data_or_null(weights));
  float* target = sums_of(*out, *out, *sums);
  args.out = target;
  cudaError_t error = launch_maxk_sspmm_scatter(args, stream);
  if (error == cudaSuccess) error = round_sums(*out, target, stream);
  return status("jaxgnn_maxk_sspmm_scatter", error);
}

MaxkWindowsArgs make_backward(Check& check, const Windows& windows, const AnyBuffer& dense,
                              const AnyBuffer& indices, const AnyBuffer& out) {
  check_records(check, out, indices, dim(dense, 1));
  check_window_sizes(check, dim(dense, 1), indices);
  MaxkWindowsArgs args{};
  args.type = value_type(dense.element_type());
  args.windows = windows;
  args.columns = static_cast<const uint8_t*>(indices.untyped_data());
  args.dense = const_cast<AnyBuffer&>(dense).untyped_data();
  args.num_senders = dim(out, 0);
  args.width = dim(dense, 1);
  args.k = dim(out, 1);
  return args;
}

ffi::Error maxk_sspmm_windows(cudaStream_t stream, AnyBuffer window_rows, AnyBuffer window_parts,
                              AnyBuffer window_senders, AnyBuffer window_masks, AnyBuffer dense,
                              AnyBuffer indices, Result out, Result sums) {
  Check check("jaxgnn_maxk_sspmm_windows");
  const Windows windows =
      make_windows(check, window_rows, window_parts, window_senders, window_masks);
  MaxkWindowsArgs args = make_backward(check, windows, dense, indices, *out);
  check_sums(check, *sums, out->element_type() != ffi::F32, args.num_senders, args.k);
  if (check.failed()) return check.error();
  float* target = sums_of(*out, *out, *sums);
  args.sums = target;
  cudaError_t error = launch_maxk_sspmm_windows(args, stream);
  if (error == cudaSuccess) error = round_sums(*out, target, stream);
  return status("jaxgnn_maxk_sspmm_windows", error);
}

ffi::Error maxk_sspmm_windows_exact(cudaStream_t stream, AnyBuffer transpose_row_offsets,
                                    AnyBuffer transpose_columns, AnyBuffer window_rows,
                                    AnyBuffer window_parts, AnyBuffer window_senders,
                                    AnyBuffer window_masks, AnyBuffer dense, AnyBuffer indices,
                                    Result out, Result sums, Result scratch) {
  Check check("jaxgnn_maxk_sspmm_windows_exact");
  const Windows windows =
      make_windows(check, window_rows, window_parts, window_senders, window_masks);
  MaxkWindowsArgs args = make_backward(check, windows, dense, indices, *out);
  // Where fixed point does not hold, whole rows of the transpose in float, long ones too.
  MaxkSspmmArgs rows = make_sspmm(check, transpose_row_offsets, transpose_columns, nullptr, dense,
                                  indices, *out, kUnsplit);
  check.that(sums->element_type() == ffi::U32 && count(*sums) == 2 * args.num_senders * args.k,
             "the sums must be uint32 [rows, k, 2]");
  check.that(scratch->element_type() == ffi::U32 && count(*scratch) >= 2,
             "scratch must be uint32 [8]");
  if (check.failed()) return check.error();
  args.num_edges = count(transpose_columns);
  args.sums = sums->untyped_data();
  uint32_t* const range = static_cast<uint32_t*>(scratch->untyped_data());
  args.range = rows.range = range;
  cudaError_t error = launch_range(range_of(dense, range), stream);
  if (error == cudaSuccess) {
    error = launch_maxk_sspmm_windows_exact(args, out->untyped_data(), stream);
  }
  if (error == cudaSuccess) error = launch_maxk_sspmm(rows, stream);
  return status("jaxgnn_maxk_sspmm_windows_exact", error);
}

ffi::Error maxk_sddmm(cudaStream_t stream, AnyBuffer row_offsets, AnyBuffer columns,
                      AnyBuffer splits, AnyBuffer values, AnyBuffer indices, AnyBuffer dense,
                      Result out, int64_t split_length) {
  Check check("jaxgnn_maxk_sddmm");
  check.row_structure(row_offsets, columns, splits, split_length);
  check_records(check, values, indices, dim(dense, 1));
  const Rows rows = make_rows(row_offsets, columns, &splits, count(columns), split_length);
  check.matrix(dense, values.element_type(), rows.num_rows, dim(dense, 1),
               "the dense operand must be [rows, width] of the values' type");
  check.matrix(*out, ffi::F32, count(columns), 1, "the result must be float32 [edges, 1]");
  if (check.failed()) return check.error();
  const MaxkSddmmArgs args{value_type(values.element_type()),
                           rows,
                           values.untyped_data(),
                           indices.untyped_data(),
                           dense.untyped_data(),
                           static_cast<float*>(out->untyped_data()),
                           dim(dense, 1),
                           dim(values, 1)};
  return status("jaxgnn_maxk_sddmm", launch_maxk_sddmm(args, stream));
}

XLA_FFI_DEFINE_HANDLER(maxk_handler, maxk,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()   // x
                           .Ret<AnyBuffer>()   // values
                           .Ret<AnyBuffer>(),  // indices
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_transformed_handler, maxk_transformed,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // bias
                           .Arg<AnyBuffer>()  // keys
                           .Ret<AnyBuffer>()  // values
                           .Ret<AnyBuffer>()  // indices
                           .Attr<int64_t>("drop_below")
                           .Attr<int64_t>("rows_per_example"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(cbsr_scatter_handler, cbsr_scatter,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()   // values
                           .Arg<AnyBuffer>()   // indices
                           .Ret<AnyBuffer>(),  // dense
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_spmm_handler, maxk_spmm,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // scratch
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_spmm_windows_handler, maxk_spmm_windows,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // window_rows
                           .Arg<AnyBuffer>()  // window_parts
                           .Arg<AnyBuffer>()  // window_senders
                           .Arg<AnyBuffer>()  // window_masks
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // indices
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // scratch
                           .Attr<int64_t>("in_words")
                           .Attr<int64_t>("reduce"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_sspmm_handler, maxk_sspmm,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // dense
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_sspmm_scatter_handler, maxk_sspmm_scatter,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // dense
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // weights
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // sums
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_sspmm_windows_handler, maxk_sspmm_windows,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()   // window_rows
                           .Arg<AnyBuffer>()   // window_parts
                           .Arg<AnyBuffer>()   // window_senders
                           .Arg<AnyBuffer>()   // window_masks
                           .Arg<AnyBuffer>()   // dense
                           .Arg<AnyBuffer>()   // indices
                           .Ret<AnyBuffer>()   // out
                           .Ret<AnyBuffer>(),  // sums
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_sspmm_windows_exact_handler, maxk_sspmm_windows_exact,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()   // transpose_row_offsets
                           .Arg<AnyBuffer>()   // transpose_columns
                           .Arg<AnyBuffer>()   // window_rows
                           .Arg<AnyBuffer>()   // window_parts
                           .Arg<AnyBuffer>()   // window_senders
                           .Arg<AnyBuffer>()   // window_masks
                           .Arg<AnyBuffer>()   // dense
                           .Arg<AnyBuffer>()   // indices
                           .Ret<AnyBuffer>()   // out
                           .Ret<AnyBuffer>()   // sums
                           .Ret<AnyBuffer>(),  // scratch
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(maxk_sddmm_handler, maxk_sddmm,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // values
                           .Arg<AnyBuffer>()  // indices
                           .Arg<AnyBuffer>()  // dense
                           .Ret<AnyBuffer>()  // out
                           .Attr<int64_t>("split_length"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_maxk", maxk_handler);
  add_target(targets, "jaxgnn_maxk_transformed", maxk_transformed_handler);
  add_target(targets, "jaxgnn_cbsr_scatter", cbsr_scatter_handler);
  add_target(targets, "jaxgnn_maxk_spmm", maxk_spmm_handler);
  add_target(targets, "jaxgnn_maxk_spmm_windows", maxk_spmm_windows_handler);
  add_target(targets, "jaxgnn_maxk_sspmm", maxk_sspmm_handler);
  add_target(targets, "jaxgnn_maxk_sspmm_scatter", maxk_sspmm_scatter_handler);
  add_target(targets, "jaxgnn_maxk_sspmm_windows", maxk_sspmm_windows_handler);
  add_target(targets, "jaxgnn_maxk_sspmm_windows_exact", maxk_sspmm_windows_exact_handler);
  add_target(targets, "jaxgnn_maxk_sddmm", maxk_sddmm_handler);
}

cudaError_t load_kernels() {
  for (cudaError_t (*load)() : {load_maxk, load_cbsr_scatter, load_maxk_spmm, load_maxk_sspmm,
                                load_maxk_sddmm, load_maxk_windows, load_maxk_windows_gradient}) {
    const cudaError_t error = load();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxgnn::maxk
