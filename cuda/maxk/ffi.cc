// The XLA FFI handlers of MaxK: what the forward product in fixed point needs, and the products
// over windows and by reductions in L2, which only a GPU has.
#include "cuda/core/ffi.h"

#include <algorithm>

#include "cuda/maxk/maxk.h"
#include "cuda/maxk/windows_ffi.h"
#include "cuda/registrations.h"
#include "ffi/maxk.h"

namespace jaxgnn::maxk {

bool columns_in_range(const Cbsr&, const Launch&) { return true; }

namespace {

// Scratch memory of a forward product: the range, with `words` a word for each entry, the size of
// each CBSR row, and with `flags` a flag for each row; with `bounds` a bound for each row and a
// byte for each CBSR row.
constexpr int64_t kRangeWords = 8;

struct Scratch {
  uint32_t* range = nullptr;
  uint32_t* words = nullptr;
  float* sizes = nullptr;
  uint32_t* flags = nullptr;
  float* bounds = nullptr;
  uint8_t* size_codes = nullptr;
};

Scratch lay_out(Check& check, AnyBuffer& buffer, int64_t words, int64_t sizes, int64_t flags,
                int64_t bounds = 0) {
  const int64_t codes = bounds > 0 ? (sizes + 3) / 4 : 0;
  check.vector(buffer, xla::ffi::U32, kRangeWords + words + sizes + flags + bounds + codes,
               "scratch must be uint32 [8 + words + records + flags + bounds]");
  if (check.failed()) return {};
  Scratch parts;
  parts.range = static_cast<uint32_t*>(buffer.untyped_data());
  uint32_t* const entries = parts.range + kRangeWords;
  if (words > 0) parts.words = entries;
  parts.sizes = reinterpret_cast<float*>(entries + words);
  parts.flags = entries + words + sizes;
  if (bounds > 0) {
    parts.bounds = reinterpret_cast<float*>(parts.flags + flags);
    parts.size_codes = reinterpret_cast<uint8_t*>(parts.bounds + bounds);
  }
  return parts;
}

RangeArgs range_of(Type type, const void* values, int64_t rows, int64_t width, uint32_t* range) {
  RangeArgs args{};
  args.type = type;
  args.values = values;
  args.num_rows = rows;
  args.width = width;
  args.range = range;
  return args;
}

RangeArgs range_of(const MaxkProductArgs& args, const Scratch& scratch, int64_t flags) {
  const Cbsr& cbsr = args.cbsr;
  RangeArgs range = range_of(args.type, cbsr.values, cbsr.num_rows, cbsr.k, scratch.range);
  range.sizes = scratch.sizes;
  range.size_codes = scratch.size_codes;
  range.flags = scratch.flags;
  range.num_flags = flags;
  return range;
}

}  // namespace

Error run_maxk_spmm(Check& check, const MaxkProductArgs& product, AnyBuffer& scratch,
                    const Launch& launch) {
  MaxkSpmmArgs args{product};
  const int64_t flags = args.rows.num_chunks + args.rows.num_rows;
  const bool fits = args.weights == nullptr || args.cbsr.width <= kWeightedWidth;
  if (count(scratch) == 0 || !fits) {
    return finish(check, launch_maxk_spmm(args, launch));
  }
  const Scratch parts = lay_out(check, scratch, 0, args.cbsr.num_rows, flags);
  if (check.failed()) return check.error();
  args.range = parts.range;
  args.sizes = parts.sizes;
  args.flags = parts.flags;
  cudaError_t error = launch_range(range_of(args, parts, flags), launch);
  if (error == cudaSuccess) error = launch_maxk_spmm(args, launch);
  return finish(check, error);
}

namespace {

// The windows of the rows of `dense`, of which they hold all.
MaxkWindowsArgs take_windows(Check& check, const WindowOperands& from, const Cbsr& cbsr, Type type,
                             int64_t num_receivers) {
  const int64_t size = from.window_rows(), width = cbsr.width;
  MaxkWindowsArgs args{};
  args.windows = take_window_arrays(check, from, num_receivers);
  check.gathered(cbsr.num_rows, count(from.senders));
  check.that(
      width % 4 == 0 && width <= kWindowWidth && width * size <= kWindowFeatures,
      "windows need a width that is a multiple of 4, at most 1024, and at most 16384 features");
  check.that(!from.wide_columns() || cbsr.k % 4 == 0,
             "windows of fewer than 64 receivers need a k that is a multiple of 4");
  check.that(cbsr.num_rows * cbsr.k <= UINT32_MAX, "windows need fewer than 2^32 entries");
  args.type = type;
  args.window_rows = size;
  args.values = cbsr.values;
  args.columns = cbsr.indices;
  args.num_senders = cbsr.num_rows;
  args.width = width;
  args.k = cbsr.k;
  return args;
}

// What the forward products over windows have in common.
struct ForwardWindows {
  MaxkSpmmArgs rows;  // what adds in floating point where fixed point does not hold
  MaxkWindowsArgs args;
  Scratch parts;
};

ForwardWindows take_forward(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& columns,
                            const WindowOperands& from, const AnyBuffer& values,
                            const AnyBuffer& indices, AnyBuffer& out, AnyBuffer& partials,
                            AnyBuffer& scratch, bool packed, int64_t reduce, bool weighted) {
  // Where fixed point does not hold, whole rows in float, long ones too.
  ForwardWindows forward{
      MaxkSpmmArgs{take_spmm<StreamLaunch>(check, {row_offsets, columns}, values, indices, out,
                                           reduce, from.wide_columns())},
      {},
      {}};
  auto& [rows, args, parts] = forward;
  rows.wide_columns = from.wide_columns();
  rows.fallback = true;
  const int64_t receivers = rows.rows.num_rows;
  args = take_windows(check, from, rows.cbsr, rows.type, receivers);
  check.that(!packed || args.k % 4 == 0, "words need a k that is a multiple of 4");
  // With weights, the sum of each row's beside its flag.
  parts = lay_out(check, scratch, packed ? count(values) : 0, args.num_senders,
                  weighted ? 2 * receivers : receivers, weighted ? 0 : receivers);
  check.that(partials.element_type() == xla::ffi::F32 && rank(partials) == 3 &&
                 dim(partials, 1) == from.window_rows() && dim(partials, 2) == args.width,
             "partials must be float32 [places, receivers, width]");
  if (check.failed()) return forward;
  args.row_offsets = rows.rows.offsets;
  args.wide_offsets = rows.rows.wide_offsets;
  args.mean = rows.reduce == Reduce::kMean;
  args.words = parts.words;
  args.dense = rows.out;
  args.partials = static_cast<float*>(data_or_null(partials));
  rows.range = args.range = parts.range;
  args.sizes = rows.sizes = parts.sizes;
  args.flags = rows.flags = parts.flags;
  args.size_codes = parts.size_codes;
  args.row_bounds = parts.bounds;
  return forward;
}

cudaError_t launch_range_of(const ForwardWindows& forward, const Launch& launch) {
  RangeArgs range = range_of(forward.rows, forward.parts, forward.rows.rows.num_rows);
  range.columns = forward.args.columns;
  range.words = forward.parts.words;
  return launch_range(range, launch, forward.rows.wide_columns);
}

Error maxk_spmm_windows(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                        AnyBuffer window_rows, AnyBuffer window_parts, AnyBuffer window_senders,
                        AnyBuffer window_masks, AnyBuffer values, AnyBuffer indices, Result out,
                        Result partials, Result scratch, Int<attr::packed> packed,
                        Int<attr::reduce> reduce) {
  Check check("jaxgnn_maxk_spmm_windows");
  const WindowOperands from{window_rows, window_parts, window_senders, window_masks};
  const ForwardWindows forward =
      take_forward(check, row_offsets, columns, from, values, indices, *out, *partials, *scratch,
                   *packed != 0, *reduce, false);
  if (check.failed()) return check.error();
  cudaError_t error = launch_range_of(forward, launch);
  if (error == cudaSuccess) {
    error = launch_maxk_spmm_windows(forward.args, forward.rows.rows, launch);
  }
  if (error == cudaSuccess) error = launch_maxk_spmm(forward.rows, launch);
  return finish(check, error);
}

// The float sums of a result: itself, if it is float32, else the scratch that is then rounded.
float* take_sums(Check& check, AnyBuffer& out, AnyBuffer& sums) {
  const bool own = out.element_type() == xla::ffi::F32;
  if (!own) {
    check.matrix(sums, xla::ffi::F32, dim(out, 0), dim(out, 1),
                 "the sums must be float32 [rows, k]");
  }
  return static_cast<float*>(own ? out.untyped_data() : sums.untyped_data());
}

cudaError_t round_sums(AnyBuffer& out, const float* sums, const Launch& launch) {
  if (out.element_type() == xla::ffi::F32) return cudaSuccess;
  return launch_round({value_type(out.element_type()), sums, out.untyped_data(), count(out)},
                      launch);
}

// The weights by slot, and where a window's slots lie.
void take_slots(Check& check, const AnyBuffer& slots, const AnyBuffer& slot_weights,
                MaxkWindowsArgs& args, int64_t windows) {
  check.matrix(slots, xla::ffi::S32, windows, args.window_rows + 1,
               "the windows' slots must be int32 [windows, receivers + 1]");
  check.vector(slot_weights, xla::ffi::F32, count(slot_weights),
               "the weights by slot must be float32 [edges]");
  args.windows.slots = static_cast<const int32_t*>(slots.untyped_data());
  args.weights = static_cast<const float*>(slot_weights.untyped_data());
}

Error maxk_spmm_windows_weighted(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                                 AnyBuffer window_rows, AnyBuffer window_parts,
                                 AnyBuffer window_senders, AnyBuffer window_masks, AnyBuffer slots,
                                 AnyBuffer slot_weights, AnyBuffer values, AnyBuffer indices,
                                 AnyBuffer weights, Result out, Result partials, Result scratch,
                                 Result sums, Int<attr::packed> packed, Int<attr::padding> padding,
                                 Int<attr::reduce> reduce) {
  Check check("jaxgnn_maxk_spmm_windows_weighted");
  const WindowOperands from{window_rows, window_parts, window_senders, window_masks};
  ForwardWindows forward = take_forward(check, row_offsets, columns, from, values, indices, *out,
                                        *partials, *scratch, *packed != 0, *reduce, true);
  auto& [rows, args, parts] = forward;
  const int64_t receivers = rows.rows.num_rows, edges = rows.rows.num_edges;
  take_slots(check, slots, slot_weights, args, dim(window_rows, 0));
  check.that(count(slot_weights) == edges, "there must be a weight by slot for each edge");
  check.matrix(weights, xla::ffi::F32, edges, 1, "weights must be float32 [edges, 1]");
  check.that(*padding >= 0 && *padding < std::max<int64_t>(args.k, 1),
             "padding must be less than k");
  float* const wide = take_sums(check, *out, *sums);
  if (check.failed()) return check.error();
  rows.weights = weights.untyped_data();
  rows.padding = *padding;
  args.edge_weights = static_cast<const float*>(rows.weights);
  args.weight_sums = reinterpret_cast<float*>(parts.flags + receivers);
  args.wide = wide;
  cudaError_t error = launch_range_of(forward, launch);
  if (error == cudaSuccess) error = launch_maxk_spmm_windows_weighted(args, receivers, launch);
  if (error == cudaSuccess) error = round_sums(*out, wide, launch);
  if (error == cudaSuccess) error = launch_maxk_spmm(rows, launch);
  return finish(check, error);
}

Error maxk_sspmm_scatter(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                         AnyBuffer chunks, AnyBuffer dense, AnyBuffer indices, AnyBuffer weights,
                         Result out, Result sums, Int<attr::chunk_length> chunk_length) {
  Check check("jaxgnn_maxk_sspmm_scatter");
  const RowOperands from{row_offsets, columns, &chunks, *chunk_length};
  MaxkProductArgs args = take_sspmm<StreamLaunch>(check, from, dense, indices, *out);
  check.that(args.rows.num_rows == dim(dense, 0), "the dense operand must have a row for each row");
  check.gathered(args.cbsr.num_rows, args.rows.num_edges);
  args.weights = take_weights(check, weights, dense.element_type(), args.rows.num_edges);
  float* const target = take_sums(check, *out, *sums);
  if (check.failed()) return check.error();
  args.out = target;
  cudaError_t error = launch_maxk_sspmm_scatter(args, launch);
  if (error == cudaSuccess) error = round_sums(*out, target, launch);
  return finish(check, error);
}

// What both backward products over windows take.
MaxkWindowsArgs take_backward(Check& check, const WindowOperands& from, const AnyBuffer& dense,
                              const AnyBuffer& indices, const AnyBuffer& out) {
  const DataType type = dense.element_type();
  check_type<StreamLaunch>(check, type);
  const Cbsr cbsr = take_cbsr(check, nullptr, indices, type, dim(dense, 1), from.wide_columns());
  check.matrix(dense, type, dim(dense, 0), cbsr.width, "the dense operand must be a matrix");
  check.matrix(out, type, cbsr.num_rows, cbsr.k,
               "the result must have the dense operand's type and be shaped like the indices");
  MaxkWindowsArgs args = take_windows(check, from, cbsr, value_type(type), dim(dense, 0));
  args.dense = dense.untyped_data();
  return args;
}

// The offsets of the rows of `dense` of a mean, which it divides by; a sum has none.
void take_degrees(Check& check, const AnyBuffer& row_offsets, const AnyBuffer& dense,
                  MaxkWindowsArgs& args) {
  check.integers(row_offsets, "row_offsets must be int32 or int64 [rows + 1]");
  args.mean = count(row_offsets) > 0;
  check.that(!args.mean || count(row_offsets) == dim(dense, 0) + 1,
             "row_offsets must have an element more than the dense operand has rows, or none");
  args.row_offsets = row_offsets.untyped_data();
  args.wide_offsets = is_wide(row_offsets);
}

Error maxk_sspmm_windows(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer window_rows,
                         AnyBuffer window_parts, AnyBuffer window_senders, AnyBuffer window_masks,
                         AnyBuffer dense, AnyBuffer indices, Result out, Result sums) {
  Check check("jaxgnn_maxk_sspmm_windows");
  MaxkWindowsArgs args = take_backward(
      check, {window_rows, window_parts, window_senders, window_masks}, dense, indices, *out);
  take_degrees(check, row_offsets, dense, args);
  float* const target = take_sums(check, *out, *sums);
  if (check.failed()) return check.error();
  args.sums = target;
  cudaError_t error = launch_maxk_sspmm_windows(args, launch);
  if (error == cudaSuccess) error = round_sums(*out, target, launch);
  return finish(check, error);
}

Error maxk_sspmm_windows_weighted(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer window_rows,
                                  AnyBuffer window_parts, AnyBuffer window_senders,
                                  AnyBuffer window_masks, AnyBuffer slots, AnyBuffer slot_weights,
                                  AnyBuffer dense, AnyBuffer indices, Result out, Result sums) {
  Check check("jaxgnn_maxk_sspmm_windows_weighted");
  MaxkWindowsArgs args = take_backward(
      check, {window_rows, window_parts, window_senders, window_masks}, dense, indices, *out);
  take_degrees(check, row_offsets, dense, args);
  take_slots(check, slots, slot_weights, args, dim(window_rows, 0));
  float* const target = take_sums(check, *out, *sums);
  if (check.failed()) return check.error();
  args.sums = target;
  cudaError_t error = launch_maxk_sspmm_windows(args, launch);
  if (error == cudaSuccess) error = round_sums(*out, target, launch);
  return finish(check, error);
}

Error maxk_sspmm_windows_exact(StreamLaunch launch, AnyBuffer transpose_row_offsets,
                               AnyBuffer transpose_columns, AnyBuffer window_rows,
                               AnyBuffer window_parts, AnyBuffer window_senders,
                               AnyBuffer window_masks, AnyBuffer dense, AnyBuffer indices,
                               Result out, Result sums, Result scratch) {
  Check check("jaxgnn_maxk_sspmm_windows_exact");
  const WindowOperands from{window_rows, window_parts, window_senders, window_masks};
  MaxkWindowsArgs args = take_backward(check, from, dense, indices, *out);
  // Where fixed point does not hold, whole rows of the transpose in float, long ones too.
  const MaxkProductArgs rows = take_sspmm<StreamLaunch>(
      check, {transpose_row_offsets, transpose_columns}, dense, indices, *out, from.wide_columns());
  check.that(rows.rows.num_rows == args.num_senders, "the indices must have a row for each row");
  check.gathered(dim(dense, 0), rows.rows.num_edges);
  check.that(sums->element_type() == xla::ffi::U32 && count(*sums) == 2 * args.num_senders * args.k,
             "the sums must be uint32 [rows, k, 2]");
  check.vector(*scratch, xla::ffi::U32, kRangeWords, "scratch must be uint32 [8]");
  if (check.failed()) return check.error();
  args.num_edges = rows.rows.num_edges;
  args.sums = sums->untyped_data();
  uint32_t* const range = static_cast<uint32_t*>(scratch->untyped_data());
  args.range = range;
  cudaError_t error =
      launch_range(range_of(args.type, args.dense, dim(dense, 0), args.width, range), launch);
  if (error == cudaSuccess) error = launch_maxk_sspmm_windows_exact(args, rows.out, launch);
  if (error == cudaSuccess) error = launch_maxk_sspmm(rows, launch, range, from.wide_columns());
  return finish(check, error);
}

}  // namespace

void add_cuda_targets(CudaTargets& targets) {
  add_targets(targets);
  targets.add<maxk_spmm_windows>("jaxgnn_maxk_spmm_windows");
  targets.add<maxk_spmm_windows_weighted>("jaxgnn_maxk_spmm_windows_weighted");
  targets.add<maxk_sspmm_scatter>("jaxgnn_maxk_sspmm_scatter");
  targets.add<maxk_sspmm_windows>("jaxgnn_maxk_sspmm_windows");
  targets.add<maxk_sspmm_windows_weighted>("jaxgnn_maxk_sspmm_windows_weighted");
  targets.add<maxk_sspmm_windows_exact>("jaxgnn_maxk_sspmm_windows_exact");
}

cudaError_t load_kernels(const Launch& load) {
  JAXGNN_TRY(launch_maxk({}, load));
  JAXGNN_TRY(launch_maxk_normalized_gradient({}, load));
  JAXGNN_TRY(launch_cbsr_scatter({}, load));
  JAXGNN_TRY(launch_range({}, load));
  JAXGNN_TRY(launch_maxk_spmm({}, load));
  JAXGNN_TRY(launch_maxk_spmm_windows({}, {}, load));
  JAXGNN_TRY(launch_maxk_spmm_windows_weighted({}, 0, load));
  JAXGNN_TRY(launch_maxk_sspmm({}, load));
  JAXGNN_TRY(launch_maxk_sspmm_scatter({}, load));
  JAXGNN_TRY(launch_maxk_sspmm_windows({}, load));
  JAXGNN_TRY(launch_maxk_sspmm_windows_exact({}, nullptr, load));
  JAXGNN_TRY(launch_round({}, load));
  return launch_maxk_sddmm({}, load);
}

}  // namespace jaxgnn::maxk
