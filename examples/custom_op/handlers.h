// XLA's handlers: they check the buffers and call `launch`, which each platform defines.
#pragma once

#include "dirichlet.h"
#include "ffi/check.h"

namespace dirichlet {

using jaxgnn::AnyBuffer;
using jaxgnn::Check;
using jaxgnn::Error;
using jaxgnn::Result;
using xla::ffi::F32;

// Where: XLA's thread pool, or the CUDA stream.
template <class Where>
Error energy(Where where, AnyBuffer offsets, AnyBuffer columns, AnyBuffer x, Result out) {
  Check check("dirichlet_energy");
  const jaxgnn::RowOperands rows{offsets, columns};
  EnergyArgs args{check.rows(rows), nullptr, nullptr, jaxgnn::dim(x, 1)};
  check.matrix(x, F32, rows.num_rows(), args.width, "x must be float32 [nodes, features]");
  check.vector(*out, F32, rows.num_rows(), "the energy must be float32 [nodes]");
  if (check.failed()) return check.error();
  args.x = x.typed_data<float>();
  args.energy = out->typed_data<float>();
  return launch(args, where);
}

template <class Where>
Error gradient(Where where, AnyBuffer offsets, AnyBuffer columns, AnyBuffer transpose_offsets,
               AnyBuffer transpose_columns, AnyBuffer x, AnyBuffer d, Result out) {
  Check check("dirichlet_gradient");
  const jaxgnn::RowOperands rows{offsets, columns}, back{transpose_offsets, transpose_columns};
  const int64_t nodes = rows.num_rows(), width = jaxgnn::dim(x, 1);
  GradientArgs args{check.rows(rows), check.rows(back), nullptr, nullptr, nullptr, width};
  check.that(back.num_rows() == nodes, "the transpose must have as many rows");
  check.matrix(x, F32, nodes, width, "x must be float32 [nodes, features]");
  check.vector(d, F32, nodes, "the cotangent must be float32 [nodes]");
  check.matrix(*out, F32, nodes, width, "the gradient must be float32 [nodes, features]");
  if (check.failed()) return check.error();
  args.x = x.typed_data<float>();
  args.d = d.typed_data<float>();
  args.gradient = out->typed_data<float>();
  return launch(args, where);
}

// The bindings' operands and results, after the platform's context.
template <class Context>
auto bind_energy() {
  return xla::ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Ret<AnyBuffer>();
}

template <class Context>
auto bind_gradient() {
  return xla::ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Arg<AnyBuffer>()
      .template Ret<AnyBuffer>();
}

}  // namespace dirichlet
