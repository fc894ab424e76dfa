// The parts of the Python module `jaxgnn._cpu`, each defined beside what it binds.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxgnn {

namespace host {
// Preprocessing: sort, transpose, normalize (host/graph_bindings.cc).
void bind_graph(nanobind::module_& module);

// Graph generators (host/generate_bindings.cc).
void bind_generate(nanobind::module_& module);

// Parsers of text files (host/text_bindings.cc).
void bind_text(nanobind::module_& module);

// Splits of a graph into parts (partition/bindings.cc).
void bind_partition(nanobind::module_& module);

// Alias tables (sampling/bindings.cc).
void bind_sampling(nanobind::module_& module);

// Sparse graph translation and the layout of tiles (tiles/bindings.cc).
void bind_tiles(nanobind::module_& module);
}  // namespace host

// `registrations()`: the XLA FFI targets (registrations.cc).
void bind_ffi(nanobind::module_& module);

}  // namespace jaxgnn
