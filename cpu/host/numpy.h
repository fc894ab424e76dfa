// NumPy arrays as arguments and results of the bindings.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>

#include "cpu/host/graph.h"

namespace nb = nanobind;

namespace jaxgnn::host {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Takes memory that `FreeMemory` frees.
template <class T>
nb::object to_numpy(T* data, std::size_t size) {
  nb::capsule owner(data, [](void* memory) noexcept { FreeMemory()(memory); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

template <class T>
nb::object to_numpy(Buffer<T> buffer) {
  const std::size_t size = static_cast<std::size_t>(buffer.size());
  return to_numpy(buffer.release(), size);
}

// The same as rows of `columns` elements.
template <class T>
nb::object to_matrix(Buffer<T> buffer, std::size_t columns) {
  const std::size_t rows = static_cast<std::size_t>(buffer.size()) / columns;
  T* data = buffer.release();
  nb::capsule owner(data, [](void* memory) noexcept { FreeMemory()(memory); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(data, {rows, columns}, owner));
}

}  // namespace jaxgnn::host
