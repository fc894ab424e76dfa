// Host memory that the GPU reads by its address.
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/bindings.h"

namespace nb = nanobind;

namespace jaxgnn {
namespace {

void check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the next call starts anew
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

void pin(uintptr_t address, size_t bytes) {
  void* const memory = reinterpret_cast<void*>(address);
  check("cudaHostRegister",
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  void* seen = nullptr;
  const cudaError_t error = cudaHostGetDevicePointer(&seen, memory, 0);
  if (error != cudaSuccess || seen != memory) cudaHostUnregister(memory);
  check("cudaHostGetDevicePointer", error);
  if (seen != memory) throw std::runtime_error("the GPU reads it at another address");
}

void unpin(uintptr_t address) {
  check("cudaDeviceSynchronize", cudaDeviceSynchronize());
  check("cudaHostUnregister", cudaHostUnregister(reinterpret_cast<void*>(address)));
}

}  // namespace

void bind_pinned_memory(nb::module_& module) {
  // Pages are locked one by one, and programs that wait for Python may be running.
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  module.def("pin", &pin, nb::arg("address"), nb::arg("bytes"), Unlocked(),
             "Page-locks host memory, which the GPU then reads at the same address.");
  module.def("unpin", &unpin, nb::arg("address"), Unlocked(),
             "Waits for the current device, and unlocks what `pin` locked.");
}

}  // namespace jaxgnn
