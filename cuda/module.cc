// The Python module `jaxgnn._cuda`.
#include <nanobind/nanobind.h>

#include "cuda/bindings.h"

NB_MODULE(_cuda, module) {
  module.doc() = "jaxgnn's CUDA kernels.";
  module.def(
      "architectures", [] { return JAXGNN_CUDA_ARCHITECTURES; },
      "The GPU architectures that the kernels were compiled for.");
  module.def("why_not", &jaxgnn::why_not,
             "Why the current device or its driver cannot run the kernels; empty if they can.");
  jaxgnn::bind_ffi(module);
  jaxgnn::bind_pinned_memory(module);
}
