// The parts of the Python module `jaxgnn._cuda`.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace jaxgnn {

void bind_ffi(nanobind::module_& module);

// Pinned host memory (sampling/pinned_memory.cc).
void bind_pinned_memory(nanobind::module_& module);

// Why the current device or its driver cannot run the kernels; empty if they can.
std::string why_not();

}  // namespace jaxgnn
