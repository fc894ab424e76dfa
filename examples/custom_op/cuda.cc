// The Python module `_dirichlet_cuda`.
#include <pybind11/pybind11.h>

#include "handlers.h"
#include "kernels.cuh"

namespace dirichlet {

template <class Args>
Error launch(const Args& args, cudaStream_t stream) {
  const cudaError_t error = enqueue(args, stream);
  return error == cudaSuccess ? Error::Success() : Error::Internal(cudaGetErrorString(error));
}

namespace {
using Stream = xla::ffi::PlatformStream<cudaStream_t>;
XLA_FFI_DEFINE_HANDLER_SYMBOL(energy_handler, energy<cudaStream_t>, bind_energy<Stream>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gradient_handler, gradient<cudaStream_t>, bind_gradient<Stream>());
}  // namespace
}  // namespace dirichlet

PYBIND11_MODULE(_dirichlet_cuda, module) {
  module.def("registrations", [] {
    pybind11::dict targets;
    targets["dirichlet_energy"] =
        pybind11::capsule(reinterpret_cast<void*>(dirichlet::energy_handler));
    targets["dirichlet_gradient"] =
        pybind11::capsule(reinterpret_cast<void*>(dirichlet::gradient_handler));
    return targets;
  });
}
