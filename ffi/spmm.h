// What the handlers of the products have in common on either platform.
#pragma once

#include <utility>

#include "ffi/check.h"

namespace jaxgnn {

// The operands of a product, with and without ties, behind the context that a platform binds.
template <class Binding>
auto spmm_operands(Binding&& context) {
  return std::forward<Binding>(context)
      .template Arg<AnyBuffer>()   // row_offsets
      .template Arg<AnyBuffer>()   // indices of the columns
      .template Arg<AnyBuffer>()   // splits
      .template Arg<AnyBuffer>()   // row_order
      .template Arg<AnyBuffer>()   // x
      .template Arg<AnyBuffer>();  // weights
}

}  // namespace jaxgnn
