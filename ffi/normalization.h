// The handlers of normalization. Besides what binding.h says, a Launch has kernels for all
// types.
#pragma once

#include "common/normalization.h"
#include "ffi/binding.h"

namespace jaxgnn::normalization {

template <class Launch>
Error layer_norm(Launch launch, AnyBuffer x, AnyBuffer scale, AnyBuffer bias, Result out,
                 Float<attr::epsilon> epsilon) {
  Check check("jaxgnn_layer_norm");
  const DataType type = x.element_type();
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  LayerNormArgs args{};
  args.num_rows = dim(x, 0);
  args.width = dim(x, 1);
  check.matrix(x, type, args.num_rows, args.width, "x must be a matrix");
  check.matrix(*out, type, args.num_rows, args.width, "the result must be shaped like x");
  check.vector(scale, accumulator(type), args.width,
               "the scale must be [width] of the accumulation type");
  check.vector(bias, accumulator(type), args.width,
               "the bias must be [width] of the accumulation type");
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.scale = scale.untyped_data();
  args.bias = bias.untyped_data();
  args.epsilon = *epsilon;
  args.out = out->untyped_data();
  expect_writes(launch, *out);
  return finish(check, launch_layer_norm(args, launch));
}

template <class Launch>
Error layer_norm_gradient(Launch launch, AnyBuffer x, AnyBuffer scale, AnyBuffer gradient,
                          Result dx, Result sums, Result partials, Float<attr::epsilon> epsilon) {
  Check check("jaxgnn_layer_norm_gradient");
  const DataType type = x.element_type();
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  LayerNormGradientArgs args{};
  args.num_rows = dim(x, 0);
  args.width = dim(x, 1);
  args.num_blocks = dim(*partials, 0);
  check.matrix(x, type, args.num_rows, args.width, "x must be a matrix");
  check.matrix(gradient, type, args.num_rows, args.width, "the gradient must be shaped like x");
  check.matrix(*dx, type, args.num_rows, args.width, "the gradient of x must be shaped like x");
  check.vector(scale, accumulator(type), args.width,
               "the scale must be [width] of the accumulation type");
  check.two_sums(*sums, *partials, type, args.width);
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.scale = scale.untyped_data();
  args.gradient = gradient.untyped_data();
  args.epsilon = *epsilon;
  args.dx = dx->untyped_data();
  args.sums = sums->untyped_data();
  args.partials = partials->untyped_data();
  expect_writes(launch, *dx);
  return finish(check, launch_layer_norm_gradient(args, launch));
}

template <class Launch>
Error centered_sums(Launch launch, AnyBuffer x, AnyBuffer shift, AnyBuffer gradient, AnyBuffer mask,
                    Result sums, Result partials) {
  Check check("jaxgnn_centered_sums");
  const DataType type = x.element_type();
  check.that(is_value_type(type), "x must be float32, bfloat16, float16 or float64");
  CenteredSumsArgs args{};
  args.num_rows = dim(x, 0);
  args.width = dim(x, 1);
  args.num_blocks = dim(*partials, 0);
  check.matrix(x, type, args.num_rows, args.width, "x must be a matrix");
  check.vector(shift, accumulator(type), args.width,
               "the shift must be [width] of the accumulation type");
  check.optional_matrix(gradient, type, args.num_rows, args.width,
                        "the gradient must be shaped like x, or absent");
  if (count(mask) > 0) {
    check.vector(mask, xla::ffi::PRED, args.num_rows, "the mask must be bool [rows], or absent");
  }
  check.two_sums(*sums, *partials, type, args.width);
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.shift = shift.untyped_data();
  args.gradient = data_or_null(gradient);
  args.mask = static_cast<const bool*>(data_or_null(mask));
  args.sums = sums->untyped_data();
  args.partials = partials->untyped_data();
  return finish(check, launch_centered_sums(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<centered_sums<Launch>>("jaxgnn_centered_sums");
  targets.template add<layer_norm<Launch>>("jaxgnn_layer_norm");
  targets.template add<layer_norm_gradient<Launch>>("jaxgnn_layer_norm_gradient");
}

}  // namespace jaxgnn::normalization
