// What ffi/binding.h asks of the platform: calls run on XLA's threads, as soon as they come.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "cpu/core/huge_pages.h"
#include "cpu/core/isa.h"
#include "cpu/core/parallel.h"
#include "ffi/check.h"

namespace jaxgnn {

struct Launch {
  static constexpr bool kCapturable = false;
  static constexpr bool kFloat64Everywhere = true;

  template <class Args>
  Error operator()(void (*kernel)(const Args&, const Executor&), const Args& args) {
    kernel(args, make_executor(pool));
    return Error::Success();
  }

  xla::ffi::ThreadPool pool;
};

template <class>
nanobind::capsule stages_of(XLA_FFI_Handler* handler) {
  return nanobind::capsule(reinterpret_cast<void*>(handler));
}

inline void expect_writes(Launch&, AnyBuffer& result) {
  prefer_huge_pages(result.untyped_data(), result.size_bytes());
}

inline Error finish(const Check&, Error outcome) { return outcome; }

}  // namespace jaxgnn

namespace xla::ffi {

template <>
struct CtxBinding<jaxgnn::Launch> {
  using Ctx = jaxgnn::Launch;
};

template <>
struct CtxDecoding<jaxgnn::Launch> {
  using Type = jaxgnn::Launch;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                    DiagnosticEngine& diagnostic) {
    const auto pool = CtxDecoding<ThreadPool>::Decode(api, context, diagnostic);
    if (!pool.has_value()) return std::nullopt;
    return Type{*pool};
  }
};

}  // namespace xla::ffi
