// The XLA FFI handlers of all families, and the loading of their kernels.
#include <cuda_runtime.h>
#include <nanobind/nanobind.h>

#include <array>
#include <atomic>

#include "cuda/bindings.h"
#include "cuda/core/ffi.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// Called before each execution of a program, and before it is captured into a CUDA graph: loading a
// kernel allocates, which a stream capture does not permit. Kernels stay loaded, and asking for
// each takes longer than a short product, so a device is asked once.
ffi::Error initialize(ffi::RemainingArgs, ffi::RemainingRets) {
  static std::array<std::atomic<bool>, 64> loaded{};
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return status("jaxgnn: the current device", error);
  }
  // Two threads may both load: that is harmless. A device beyond the table loads every time.
  std::atomic<bool>* done =
      device >= 0 && device < static_cast<int>(loaded.size()) ? &loaded[device] : nullptr;
  if (done != nullptr && done->load(std::memory_order_acquire)) return ffi::Error::Success();
  for (cudaError_t (*load)() :
       {aggregation::load_kernels, maxk::load_kernels, attention::load_gat, attention::load_pair,
        attention::load_cosine, gaussian::load_kernels}) {
    if (const cudaError_t error = load(); error != cudaSuccess) {
      return status("jaxgnn: loading the kernels", error);
    }
  }
  if (done != nullptr) done->store(true, std::memory_order_release);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(initialize_handler, initialize,
                       ffi::Ffi::BindInitialize().RemainingArgs().RemainingRets());

}  // namespace

void add_target(nanobind::dict& targets, const char* name, XLA_FFI_Handler* handler) {
  namespace nb = nanobind;
  nb::dict stages;
  stages["initialize"] = nb::capsule(reinterpret_cast<void*>(initialize_handler));
  stages["execute"] = nb::capsule(reinterpret_cast<void*>(handler));
  targets[name] = stages;
}

void bind_ffi(nanobind::module_& module) {
  namespace nb = nanobind;
  module.def(
      "registrations",
      [] {
        nb::dict targets;
        aggregation::add_targets(targets);
        maxk::add_targets(targets);
        attention::add_gat_targets(targets);
        attention::add_pair_targets(targets);
        attention::add_cosine_targets(targets);
        gaussian::add_targets(targets);
        return targets;
      },
      "The XLA FFI handlers by target name: capsules for jax.ffi.register_ffi_target, by stage.");
}

}  // namespace jaxgnn
