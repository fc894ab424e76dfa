// The parts of the Python module `jaxgnn._cpu`, each defined beside what it binds.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxgnn {

// Host preprocessing: sort, transpose, normalise (graph_bindings.cc).
void bind_graph(nanobind::module_& module);

// Graph generators (generate_bindings.cc).
void bind_generate(nanobind::module_& module);

// `registrations()`: the XLA FFI targets (ffi.cc).
void bind_ffi(nanobind::module_& module);

}  // namespace jaxgnn
