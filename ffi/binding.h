// From functions to XLA's handlers: operands, results and attributes are inferred from a function's
// signature. Its first parameter is the platform's `Launch`, which the platform's core/ffi.h makes
// of XLA's context. For a Launch there are
//   Launch::kCapturable               whether calls may be captured into a CUDA graph
//   stages_of<Launch>(handler)        what jax.ffi.register_ffi_target takes
//   expect_writes(launch, result)     told of a large result before it is written
//   finish(check, outcome)            the error of a launch
#pragma once

#include <nanobind/nanobind.h>

#include "ffi/check.h"

namespace jaxgnn {

// The attributes' names. `Int<attr::heads>` is an int64 attribute "heads" in a signature,
// `Ints` a sequence of them.
namespace attr {
inline constexpr char activation[] = "activation";
inline constexpr char by_senders[] = "by_senders";
inline constexpr char chunk_length[] = "chunk_length";
inline constexpr char drop_below[] = "drop_below";
inline constexpr char epsilon[] = "epsilon";
inline constexpr char group[] = "group";
inline constexpr char heads[] = "heads";
inline constexpr char longest_row[] = "longest_row";
inline constexpr char negative_slope[] = "negative_slope";
inline constexpr char narrow_slices[] = "narrow_slices";
inline constexpr char num_edges[] = "num_edges";
inline constexpr char num_rows[] = "num_rows";
inline constexpr char packed[] = "packed";
inline constexpr char padding[] = "padding";
inline constexpr char paddings[] = "paddings";
inline constexpr char reduce[] = "reduce";
inline constexpr char row_limit[] = "row_limit";
inline constexpr char rows_per_example[] = "rows_per_example";
inline constexpr char rows_stacked[] = "rows_stacked";
inline constexpr char sample_rate[] = "sample_rate";
inline constexpr char sample_size[] = "sample_size";
inline constexpr char score[] = "score";
inline constexpr char score_parameter[] = "score_parameter";
inline constexpr char self_loops[] = "self_loops";
inline constexpr char shared_input[] = "shared_input";
inline constexpr char sizes[] = "sizes";
inline constexpr char strategy[] = "strategy";
inline constexpr char symmetric[] = "symmetric";
inline constexpr char tensor_cores[] = "tensor_cores";
inline constexpr char tensorfloat32[] = "tensorfloat32";
inline constexpr char threads[] = "threads";
inline constexpr char transpose[] = "transpose";
inline constexpr char transpose_chunk_length[] = "transpose_chunk_length";
inline constexpr char warpgroups[] = "warpgroups";
inline constexpr char width[] = "width";
}  // namespace attr

template <const char* kName>
using Int = xla::ffi::Attr<int64_t, kName>;
template <const char* kName>
using Ints = xla::ffi::Attr<xla::ffi::Span<const int64_t>, kName>;
template <const char* kName>
using Float = xla::ffi::Attr<double, kName>;

template <class Launch, auto kFunction>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  static auto* const bound = [] {
    if constexpr (Launch::kCapturable) {
      return xla::ffi::Ffi::BindTo(kFunction, {xla::ffi::Traits::kCmdBufferCompatible}).release();
    } else {
      return xla::ffi::Ffi::BindTo(kFunction).release();
    }
  }();
  return bound->Call(frame);
}

// What `registrations` returns: the handlers by target name.
template <class Launch>
struct Targets {
  nanobind::dict stages;

  template <auto kFunction>
  void add(const char* name) {
    stages[name] = stages_of<Launch>(handler<Launch, kFunction>);
  }
};

}  // namespace jaxgnn
