// The handler of the gradient of a projection's weights. Besides what binding.h says, a Launch has
// kFloat64Everywhere, whether its kernels all take float64.
#pragma once

#include "common/projection.h"
#include "ffi/binding.h"

namespace jaxgnn::projection {

template <class Launch>
Error weight_gradient(Launch launch, AnyBuffer x, AnyBuffer g, Result out, Result partials,
                      Int<attr::warpgroups> warpgroups) {
  Check check("jaxgnn_weight_gradient");
  const DataType type = x.element_type();
  WeightGradientArgs args{};
  args.type = value_type(type);
  args.num_rows = dim(x, 0);
  args.in_features = dim(x, 1);
  args.out_features = dim(g, 1);
  args.num_blocks = dim(*partials, 0);
  args.warpgroups = *warpgroups != 0;
  if constexpr (Launch::kFloat64Everywhere) {
    check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  } else {
    check.that(is_value_type(type) && type != xla::ffi::F64,
               "x must be float32, bfloat16 or float16");
    const auto whole_words = [&](int64_t features) {
      return features * static_cast<int64_t>(xla::ffi::ByteWidth(type)) % 4 == 0;
    };
    check.that(whole_words(args.in_features) && whole_words(args.out_features),
               "rows of x and g must be multiples of 4 bytes");
  }
  check.matrix(x, type, args.num_rows, args.in_features, "x must be a matrix");
  check.matrix(g, type, args.num_rows, args.out_features,
               "g must be a matrix of x's type with as many rows");
  check.matrix(*out, type, args.in_features, args.out_features,
               "the result must be [features of x, features of g] of x's type");
  check.matrix(*partials, accumulator(type), args.num_blocks, args.in_features * args.out_features,
               "partials must be [blocks, numbers of the result] of the accumulation type");
  check.that(args.num_blocks >= 1, "there must be a block");
  if (check.failed()) return check.error();
  args.x = x.untyped_data();
  args.g = g.untyped_data();
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  return finish(check, launch_weight_gradient(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<weight_gradient<Launch>>("jaxgnn_weight_gradient");
}

}  // namespace jaxgnn::projection
