// What ffi/binding.h asks of the platform: calls are enqueued on XLA's stream.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "cuda/core/launch.h"
#include "ffi/check.h"

namespace jaxgnn {

// A call's Launch.
struct StreamLaunch : Launch {
  static constexpr bool kCapturable = true;
  static constexpr bool kFloat64Everywhere = false;  // float64 runs in JAX on a GPU
};

// Loads the kernels of all families into the current device's context (registrations.cc).
XLA_FFI_Error* initialize(XLA_FFI_CallFrame* frame);

template <class>
nanobind::dict stages_of(XLA_FFI_Handler* handler) {
  nanobind::dict stages;
  stages["initialize"] = nanobind::capsule(reinterpret_cast<void*>(initialize));
  stages["execute"] = nanobind::capsule(reinterpret_cast<void*>(handler));
  return stages;
}

// Types that accumulate in float32.
inline bool is_narrow_type(DataType type) {
  return type == xla::ffi::F32 || type == xla::ffi::BF16 || type == xla::ffi::F16;
}

// Of an attribute `reduce` that must be a sum or a mean.
inline bool is_mean(Check& check, int64_t reduce) {
  const Reduce how = static_cast<Reduce>(reduce);
  check.that(how == Reduce::kSum || how == Reduce::kMean, "reduce must be a sum or a mean");
  return how == Reduce::kMean;
}

inline void expect_writes(const Launch&, const AnyBuffer&) {}

inline Error finish(const Check& check, cudaError_t outcome) {
  if (outcome == cudaSuccess) return Error::Success();
  return Error::Internal(std::string(check.target()) + ": " + cudaGetErrorString(outcome));
}

}  // namespace jaxgnn

namespace xla::ffi {

template <>
struct CtxBinding<jaxgnn::StreamLaunch> {
  using Ctx = jaxgnn::StreamLaunch;
};

template <>
struct CtxDecoding<jaxgnn::StreamLaunch> {
  using Type = jaxgnn::StreamLaunch;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                    DiagnosticEngine& diagnostic) {
    const auto stream = CtxDecoding<PlatformStream<cudaStream_t>>::Decode(api, context, diagnostic);
    if (!stream.has_value()) return std::nullopt;
    return Type{{*stream, false}};
  }
};

}  // namespace xla::ffi
