// The XLA FFI handlers of all families: checked buffers in, raw pointers to the kernels of
// core/isa.h out.
#include "cpu/bindings.h"
#include "cpu/core/ffi.h"

namespace jaxgnn {

void add_target(nanobind::dict& targets, const char* name, XLA_FFI_Handler* handler) {
  targets[name] = nanobind::capsule(reinterpret_cast<void*>(handler));
}

void bind_ffi(nanobind::module_& module) {
  module.def(
      "registrations",
      [] {
        nanobind::dict targets;
        aggregation::add_targets(targets);
        maxk::add_targets(targets);
        attention::add_gat_targets(targets);
        attention::add_pair_targets(targets);
        gaussian::add_targets(targets);
        return targets;
      },
      "The XLA FFI handlers by target name, as capsules for jax.ffi.register_ffi_target.");
}

}  // namespace jaxgnn
