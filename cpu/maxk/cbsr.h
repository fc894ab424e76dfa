// How the kernels read compressed balanced sparse rows: a CBSR row holds the values and columns of
// one node.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <cstdint>

#include "common/maxk.h"
#include "cpu/core/executor.h"
#include "cpu/core/rows.h"

namespace jaxgnn::maxk {
namespace {

// Calls f(Index{}) for the run-time type of the columns.
template <class F>
JAXGNN_INLINE void with_index(bool wide, const F& f) {
  if (wide) {
    f(uint16_t{});
  } else {
    f(uint8_t{});
  }
}

template <class T>
JAXGNN_INLINE const T* values_of(const Cbsr& cbsr, int64_t row) {
  return static_cast<const T*>(cbsr.values) + row * cbsr.k;
}

template <class Index>
JAXGNN_INLINE const Index* indices_of(const Cbsr& cbsr, int64_t row) {
  return static_cast<const Index*>(cbsr.indices) + row * cbsr.k;
}

}  // namespace
}  // namespace jaxgnn::maxk
