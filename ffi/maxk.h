// What the handlers of MaxK have in common on either platform.
#pragma once

#include <cstdint>

#include "ffi/check.h"

namespace jaxgnn {

// What a selection does to its rows before: a bias of the given type and the keys of dropout, each
// absent, or one for all examples, or one for each.
template <class Selection>
void take_transform(Check& check, const AnyBuffer& bias, xla::ffi::DataType type,
                    const AnyBuffer& keys, int64_t drop_below, int64_t rows_per_example,
                    Selection& args) {
  check.that(rows_per_example >= 1 && args.num_rows % rows_per_example == 0,
             "rows_per_example must divide the rows");
  check.drop_below(drop_below);
  if (check.failed()) return;
  const int64_t examples = args.num_rows / rows_per_example;
  check.optional_matrix(bias, type, dim(bias, 0) == 1 ? 1 : examples, args.width,
                        "the bias must be [1 or examples, width] of the accumulation type");
  check.optional_matrix(keys, xla::ffi::U32, dim(keys, 0) == 1 ? 1 : examples, 2,
                        "the keys must be uint32 [1 or examples, 2]");
  args.bias = static_cast<decltype(args.bias)>(data_or_null(bias));
  args.keys = static_cast<const uint32_t*>(data_or_null(keys));
  args.bias_of_each = dim(bias, 0) > 1;
  args.key_of_each = dim(keys, 0) > 1;
  args.rows_per_example = rows_per_example;
  args.drop_below = static_cast<uint32_t>(drop_below);
}

}  // namespace jaxgnn
