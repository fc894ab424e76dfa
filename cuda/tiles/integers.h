// What the FFI handlers over tiles check alike.
#pragma once

#include "cuda/core/ffi.h"

namespace jaxgnn::tiles {

// A vector of int32.
inline const int32_t* integers(Check& check, const AnyBuffer& buffer, int64_t size,
                               const char* what) {
  check.vector(buffer, xla::ffi::S32, size, what);
  return static_cast<const int32_t*>(data_or_null(buffer));
}

}  // namespace jaxgnn::tiles
