// The XLA FFI handlers of Gaussian weights.
#include "ffi/gaussian.h"
#include "ffi_common.h"
#include "huge_pages.h"
#include "isa.h"
#include "parallel.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

GaussianArgs make_gaussian(Check& check, const GaussianOperands& from, const AnyBuffer& stacked,
                           const AnyBuffer& single) {
  GaussianArgs args{};
  take_gaussian(check, from, stacked, single, args);
  args.csr =
      make_csr(from.row_offsets, from.columns, from.splits, count(from.columns), from.split_length);
  args.type = value_type(stacked.element_type()).value_or(ValueType::f32);
  return args;
}

ffi::Error gaussian_spmm(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                         AnyBuffer splits, AnyBuffer permutation, AnyBuffer x, AnyBuffer near,
                         AnyBuffer far, AnyBuffer edges, AnyBuffer mu, AnyBuffer inv_sigma,
                         Result out, Result partials, int64_t reduce, int64_t each,
                         int64_t activation, int64_t split_length) {
  Check check("jaxgnn_gaussian_spmm");
  const GaussianOperands from{row_offsets, columns,   splits,    near,       far,         edges,
                              mu,          inv_sigma, dim(x, 0), activation, split_length};
  GaussianSumArgs args{};
  args.gaussian = make_gaussian(check, from, each != 0 ? *out : x, each != 0 ? x : *out);
  take_permutation(check, permutation, columns, args.gaussian);
  check_sums(check, from, *out, *partials);
  check.that(reduce == 0 || reduce == 1, "reduce must be 0 or 1");
  if (check.failed()) return check.error();
  args.reduce = static_cast<Reduce>(reduce);
  args.each = each != 0;
  args.x = x.untyped_data();
  args.out = out->untyped_data();
  args.partials = partials->untyped_data();
  prefer_huge_pages(args.out, out->size_bytes());
  kernels().gaussian_spmm(args, make_executor(pool));
  return ffi::Error::Success();
}

ffi::Error gaussian_coordinates(ffi::ThreadPool pool, AnyBuffer row_offsets, AnyBuffer columns,
                                AnyBuffer splits, AnyBuffer permutation, AnyBuffer single,
                                AnyBuffer stacked, AnyBuffer near, AnyBuffer far, AnyBuffer edges,
                                AnyBuffer mu, AnyBuffer inv_sigma, Result near_gradient,
                                Result edge_gradient, Result mu_gradient, Result inv_sigma_gradient,
                                Result partials, Result records, int64_t rows_stacked,
                                int64_t activation, int64_t split_length) {
  Check check("jaxgnn_gaussian_spmm_coordinates");
  const AnyBuffer& gathered = rows_stacked != 0 ? single : stacked;
  const GaussianOperands from{
      row_offsets, columns,   splits,           near,       far,         edges,
      mu,          inv_sigma, dim(gathered, 0), activation, split_length};
  GaussianGradientArgs args{};
  args.gaussian = make_gaussian(check, from, stacked, single);
  take_permutation(check, permutation, columns, args.gaussian);
  take_gradients(check, from, single, stacked, rows_stacked != 0, *near_gradient, *edge_gradient,
                 *mu_gradient, *inv_sigma_gradient, *partials, *records, args);
  if (check.failed()) return check.error();
  kernels().gaussian_coordinates(args, make_executor(pool));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(gaussian_spmm_handler, gaussian_spmm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // permutation
                           .Arg<AnyBuffer>()  // x
                           .Arg<AnyBuffer>()  // near
                           .Arg<AnyBuffer>()  // far
                           .Arg<AnyBuffer>()  // edges
                           .Arg<AnyBuffer>()  // mu
                           .Arg<AnyBuffer>()  // inv_sigma
                           .Ret<AnyBuffer>()  // out
                           .Ret<AnyBuffer>()  // partials
                           .Attr<int64_t>("reduce")
                           .Attr<int64_t>("each")
                           .Attr<int64_t>("activation")
                           .Attr<int64_t>("split_length"));

XLA_FFI_DEFINE_HANDLER(gaussian_coordinates_handler, gaussian_coordinates,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<AnyBuffer>()  // row_offsets
                           .Arg<AnyBuffer>()  // columns
                           .Arg<AnyBuffer>()  // splits
                           .Arg<AnyBuffer>()  // permutation
                           .Arg<AnyBuffer>()  // single
                           .Arg<AnyBuffer>()  // stacked
                           .Arg<AnyBuffer>()  // near
                           .Arg<AnyBuffer>()  // far
                           .Arg<AnyBuffer>()  // edges
                           .Arg<AnyBuffer>()  // mu
                           .Arg<AnyBuffer>()  // inv_sigma
                           .Ret<AnyBuffer>()  // near_gradient
                           .Ret<AnyBuffer>()  // edge_gradient
                           .Ret<AnyBuffer>()  // mu_gradient
                           .Ret<AnyBuffer>()  // inv_sigma_gradient
                           .Ret<AnyBuffer>()  // partials
                           .Ret<AnyBuffer>()  // records
                           .Attr<int64_t>("rows_stacked")
                           .Attr<int64_t>("activation")
                           .Attr<int64_t>("split_length"));

}  // namespace

void add_gaussian_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_gaussian_spmm", gaussian_spmm_handler);
  add_target(targets, "jaxgnn_gaussian_spmm_coordinates", gaussian_coordinates_handler);
}

}  // namespace jaxgnn
