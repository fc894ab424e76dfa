// The parts of the Python module `jaxgnn._cuda`.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxgnn {

void bind_ffi(nanobind::module_& module);

}  // namespace jaxgnn
