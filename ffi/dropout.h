// The handler of dropout's mask.
#pragma once

#include "common/dropout.h"
#include "ffi/binding.h"

namespace jaxgnn::dropout {

template <class Launch>
Error mask(Launch launch, AnyBuffer keys, Result out, Int<attr::drop_below> drop_below,
           Int<attr::width> width) {
  Check check("jaxgnn_dropout_mask");
  MaskArgs args{};
  args.num_keys = dim(keys, 0);
  args.num_rows = dim(*out, 1);
  args.width = *width;
  check.drop_below(*drop_below);
  check.that(args.width >= 0 && args.width <= kMostColumns, "width must be from 0 to 2^34");
  check.matrix(keys, xla::ffi::U32, args.num_keys, 2, "the keys must be uint32 [keys, 2]");
  check.that(out->element_type() == xla::ffi::U32 && rank(*out) == 3 &&
                 dim(*out, 0) == args.num_keys && dim(*out, 2) == words_of(args.width),
             "the mask must be uint32 [keys, rows, a word for 32 columns]");
  if (check.failed()) return check.error();
  args.drop_below = static_cast<uint32_t>(*drop_below);
  args.keys = static_cast<const uint32_t*>(keys.untyped_data());
  args.mask = static_cast<uint32_t*>(out->untyped_data());
  return finish(check, launch_mask(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<mask<Launch>>("jaxgnn_dropout_mask");
}

}  // namespace jaxgnn::dropout
