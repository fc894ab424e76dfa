// The XLA FFI handlers of Gaussian weights.
#include "cuda/core/ffi.h"

#include "cuda/gaussian/gaussian_spmm.h"
#include "ffi/gaussian.h"

namespace jaxgnn::gaussian {
namespace {

namespace ffi = xla::ffi;

struct Cuda {
  using Context = cudaStream_t;
  using Sum = GaussianSumArgs;
  using Gradient = GaussianGradientArgs;

  static void take_rows(const GaussianOperands& from, ffi::DataType type, GaussianArgs& args) {
    args.rows = make_rows(from.row_offsets, from.columns, &from.splits, count(from.columns),
                          from.split_length, &from.row_order);
    args.num_columns = from.num_columns;
    args.type = value_type(type);
  }
  static ffi::Error run(cudaStream_t stream, const GaussianSumArgs& args, size_t /*out_bytes*/) {
    return status("jaxgnn_gaussian_spmm", launch_gaussian_spmm(args, stream));
  }
  static ffi::Error run(cudaStream_t stream, const GaussianGradientArgs& args) {
    return status("jaxgnn_gaussian_spmm_coordinates", launch_gaussian_coordinates(args, stream));
  }
};

XLA_FFI_DEFINE_HANDLER(gaussian_spmm_handler, gaussian_spmm<Cuda>,
                       gaussian_spmm_signature(ffi::Ffi::Bind().Ctx<Stream>()),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(gaussian_coordinates_handler, gaussian_coordinates<Cuda>,
                       gaussian_coordinates_signature(ffi::Ffi::Bind().Ctx<Stream>()),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_targets(nanobind::dict& targets) {
  add_target(targets, "jaxgnn_gaussian_spmm", gaussian_spmm_handler);
  add_target(targets, "jaxgnn_gaussian_spmm_coordinates", gaussian_coordinates_handler);
}

cudaError_t load_kernels() {
  if (const cudaError_t error = load_gaussian_spmm(); error != cudaSuccess) return error;
  return load_gaussian_gradients();
}

}  // namespace jaxgnn::gaussian
