// The Python module `jaxgnn._cuda`.
#include <nanobind/nanobind.h>

#include "cuda/bindings.h"

NB_MODULE(_cuda, module) {
  module.doc() = "jaxgnn's CUDA kernels.";
  module.def(
      "architectures", [] { return JAXGNN_CUDA_ARCHITECTURES; },
      "The GPU architectures that the kernels were compiled for.");
  jaxgnn::bind_ffi(module);
}
