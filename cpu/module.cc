// The Python module `jaxgnn._cpu`.
#include <nanobind/nanobind.h>

#include "cpu/bindings.h"
#include "cpu/core/isa.h"

NB_MODULE(_cpu, module) {
  module.doc() = "jaxgnn's CPU kernels and host preprocessing.";
  module.def("isa", &jaxgnn::isa_name,
             "The instruction set that the kernels run on: 'baseline', 'avx2' or 'avx512'.");
  jaxgnn::bind_ffi(module);
  jaxgnn::host::bind_graph(module);
  jaxgnn::host::bind_generate(module);
  jaxgnn::host::bind_text(module);
  jaxgnn::host::bind_tiles(module);
  jaxgnn::host::bind_partition(module);
  jaxgnn::host::bind_sampling(module);
}
