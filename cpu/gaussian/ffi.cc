// The XLA FFI handlers of Gaussian weights.
#include "cpu/core/ffi.h"

#include "cpu/core/huge_pages.h"
#include "cpu/core/isa.h"
#include "cpu/core/parallel.h"
#include "ffi/gaussian.h"

namespace jaxgnn::gaussian {
namespace {

namespace ffi = xla::ffi;

struct Cpu {
  using Context = ffi::ThreadPool;
  using Sum = GaussianSumArgs;
  using Gradient = GaussianGradientArgs;

  static void take_rows(const GaussianOperands& from, ffi::DataType type, GaussianArgs& args) {
    args.csr = make_csr(from.row_offsets, from.columns, from.splits, count(from.columns),
                        from.split_length);
    args.type = value_type(type).value_or(ValueType::f32);
  }
  static ffi::Error run(ffi::ThreadPool pool, const GaussianSumArgs& args, size_t out_bytes) {
    prefer_huge_pages(args.out, out_bytes);
    kernels().gaussian_spmm(args, make_executor(pool));
    return ffi::Error::Success();
  }
  static ffi::Error run(ffi::ThreadPool pool, const GaussianGradientArgs& args) {
    kernels().gaussian_coordinates(args, make_executor(pool));
    return ffi::Error::Success();
  }
};

XLA_FFI_DEFINE_HANDLER(gaussian_spmm_handler, gaussian_spmm<Cpu>,
                       gaussian_spmm_signature(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

XLA_FFI_DEFINE_HANDLER(gaussian_coordinates_handler, gaussian_coordinates<Cpu>,
                       gaussian_coordinates_signature(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

}  // namespace

void add_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_gaussian_spmm", gaussian_spmm_handler);
  add_target(targets, "jaxgnn_gaussian_spmm_coordinates", gaussian_coordinates_handler);
}

}  // namespace jaxgnn::gaussian
