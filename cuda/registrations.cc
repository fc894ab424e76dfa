// The XLA FFI handlers of all families, and the loading of their kernels.
#include "cuda/registrations.h"

#include <array>
#include <atomic>
#include <string>

#include "cuda/aggregation/aggregation.h"
#include "cuda/bindings.h"
#include "cuda/dropout/dropout.h"
#include "cuda/gaussian/gaussian.h"
#include "cuda/projection/projection.h"
#include "ffi/aggregation.h"
#include "ffi/dropout.h"
#include "ffi/gaussian.h"
#include "ffi/projection.h"

namespace jaxgnn {
namespace {

cudaError_t load_kernels() {
  const Launch load{nullptr, true};
  JAXGNN_TRY(aggregation::launch_spmm({}, load));
  JAXGNN_TRY(aggregation::launch_extremum({}, load));
  JAXGNN_TRY(aggregation::launch_sddmm({}, load));
  JAXGNN_TRY(aggregation::launch_csr_row_ids({}, load));
  JAXGNN_TRY(maxk::load_kernels(load));
  JAXGNN_TRY(attention::load_kernels(load));
  JAXGNN_TRY(tiles::load_kernels(load));
  JAXGNN_TRY(gaussian::launch_gaussian_spmm({}, load));
  JAXGNN_TRY(gaussian::launch_gaussian_coordinates({}, load));
  JAXGNN_TRY(dropout::launch_mask({}, load));
  JAXGNN_TRY(projection::launch_weight_gradient({}, load));
  return sampling::load_kernels(load);
}

// Called before each execution of a program, and before it is captured into a CUDA graph. Kernels
// stay loaded, and asking for each takes longer than a short product, so a device is asked once.
Error load_on_device(xla::ffi::RemainingArgs, xla::ffi::RemainingRets) {
  static std::array<std::atomic<bool>, 64> loaded{};
  const Check current("jaxgnn: the current device"), loading("jaxgnn: loading the kernels");
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return finish(current, error);
  }
  // Two threads may both load: that is harmless. A device beyond the table loads every time.
  std::atomic<bool>* done =
      device >= 0 && device < static_cast<int>(loaded.size()) ? &loaded[device] : nullptr;
  if (done != nullptr && done->load(std::memory_order_acquire)) return Error::Success();
  if (const cudaError_t error = load_kernels(); error != cudaSuccess) return finish(loading, error);
  if (done != nullptr) done->store(true, std::memory_order_release);
  return Error::Success();
}

}  // namespace

XLA_FFI_Error* initialize(XLA_FFI_CallFrame* frame) {
  static auto* const bound =
      xla::ffi::Ffi::BindInitialize().RemainingArgs().RemainingRets().To(load_on_device).release();
  return bound->Call(frame);
}

std::string why_not() {
  const cudaError_t error = aggregation::launch_csr_row_ids({}, Launch{nullptr, true});
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // the next call starts anew
  return std::string("the kernels are for the architectures ") + JAXGNN_CUDA_ARCHITECTURES + ": " +
         cudaGetErrorString(error);
}

void bind_ffi(nanobind::module_& module) {
  module.def(
      "registrations",
      [] {
        CudaTargets targets;
        aggregation::add_targets(targets);
        maxk::add_cuda_targets(targets);
        attention::add_cuda_targets(targets);
        tiles::add_cuda_targets(targets);
        gaussian::add_targets(targets);
        dropout::add_targets(targets);
        projection::add_targets(targets);
        sampling::add_cuda_targets(targets);
        return targets.stages;
      },
      "The XLA FFI handlers by target name and stage, as capsules for "
      "jax.ffi.register_ffi_target.");
}

}  // namespace jaxgnn
