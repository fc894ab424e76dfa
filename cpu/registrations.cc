// The XLA FFI handlers of all families, on the kernels of isa.h, and of sampling on its own.
#include "cpu/bindings.h"
#include "cpu/core/ffi.h"
#include "cpu/sampling/sampling.h"
#include "ffi/aggregation.h"
#include "ffi/attention.h"
#include "ffi/dropout.h"
#include "ffi/gaussian.h"
#include "ffi/maxk.h"
#include "ffi/normalization.h"
#include "ffi/projection.h"
#include "ffi/sampling.h"
#include "ffi/sparse_attention.h"

namespace jaxgnn {

namespace aggregation {
Error launch_spmm(const SpmmArgs& args, Launch& launch) { return launch(kernels().spmm, args); }
Error launch_extremum(const ExtremumArgs& args, Launch& launch) {
  return launch(kernels().spmm_extremum, args);
}
Error launch_sddmm(const SddmmArgs& args, Launch& launch) {
  return launch(args.x == nullptr ? kernels().sddmm : kernels().sddmm_extremum, args);
}
Error launch_edge_softmax(const EdgeSoftmaxArgs& args, Launch& launch) {
  return launch(kernels().edge_softmax, args);
}
Error launch_csr_row_ids(const CsrRowIdsArgs& args, Launch& launch) {
  return launch(kernels().csr_row_ids, args);
}
}  // namespace aggregation

namespace maxk {
Error launch_maxk(const MaxkArgs& args, Launch& launch) { return launch(kernels().maxk, args); }
Error launch_maxk_normalized_gradient(const MaxkNormalizedGradientArgs& args, Launch& launch) {
  return launch(kernels().maxk_normalized_gradient, args);
}
Error launch_cbsr_scatter(const CbsrScatterArgs& args, Launch& launch) {
  return launch(kernels().cbsr_scatter, args);
}
bool columns_in_range(const Cbsr& cbsr, Launch& launch) {
  return kernels().cbsr_in_range(cbsr, make_executor(launch.pool));
}
Error run_maxk_spmm(const Check&, const MaxkProductArgs& args, AnyBuffer&, Launch& launch) {
  return launch(kernels().maxk_spmm, args);
}
Error launch_maxk_sspmm(const MaxkProductArgs& args, Launch& launch) {
  return launch(kernels().maxk_sspmm, args);
}
Error launch_maxk_sddmm(const MaxkProductArgs& args, Launch& launch) {
  return launch(kernels().maxk_sddmm, args);
}
}  // namespace maxk

namespace attention {
Error launch_attention(const AttentionForwardArgs& args, Launch& launch) {
  return launch(kernels().attention, args);
}
Error launch_attention_senders(const AttentionGradientArgs& args, Launch& launch) {
  return launch(kernels().attention_senders, args);
}
Error launch_attention_receivers(const AttentionGradientArgs& args, Launch& launch) {
  return launch(kernels().attention_receivers, args);
}
Error launch_sparse_attention(const SparseForwardArgs& args, Launch& launch) {
  return launch(kernels().sparse_attention, args);
}
Error launch_sparse_attention_gradients(const SparseGradientArgs& args, Launch& launch) {
  return launch(kernels().sparse_attention_gradients, args);
}
Error launch_dot_attention(const PairForwardArgs& args, Launch& launch) {
  return launch(kernels().dot_attention, args);
}
Error launch_dot_attention_gradients(const PairGradientArgs& args, Launch& launch) {
  return launch(kernels().dot_attention_gradients, args);
}
Error launch_gatv2_attention(const PairForwardArgs& args, Launch& launch) {
  return launch(kernels().gatv2_attention, args);
}
Error launch_gatv2_attention_gradients(const PairGradientArgs& args, Launch& launch) {
  return launch(kernels().gatv2_attention_gradients, args);
}
}  // namespace attention

namespace gaussian {
Error launch_gaussian_spmm(const GaussianSumArgs& args, Launch& launch) {
  return launch(kernels().gaussian_spmm, args);
}
Error launch_gaussian_coordinates(const GaussianGradientArgs& args, Launch& launch) {
  return launch(kernels().gaussian_coordinates, args);
}
}  // namespace gaussian

namespace projection {
Error launch_weight_gradient(const WeightGradientArgs& args, Launch& launch) {
  return launch(kernels().weight_gradient, args);
}
}  // namespace projection

namespace normalization {
Error launch_centered_sums(const CenteredSumsArgs& args, Launch& launch) {
  return launch(kernels().centered_sums, args);
}
Error launch_layer_norm(const LayerNormArgs& args, Launch& launch) {
  return launch(kernels().layer_norm, args);
}
Error launch_layer_norm_gradient(const LayerNormGradientArgs& args, Launch& launch) {
  return launch(kernels().layer_norm_gradient, args);
}
}  // namespace normalization

namespace dropout {
Error launch_mask(const MaskArgs& args, Launch& launch) {
  return launch(kernels().dropout_mask, args);
}
}  // namespace dropout

namespace sampling {
Error launch_sample_edges(const SampleArgs& args, Launch& launch) {
  return launch(sample_edges, args);
}
Error launch_mark_edges(const MarkArgs& args, Launch& launch) { return launch(mark_edges, args); }
Error launch_drop_edges(const DropArgs& args, Launch& launch) { return launch(drop_edges, args); }
Error launch_permute_bits(const PermuteArgs& args, Launch& launch) {
  return launch(permute_bits, args);
}
Error launch_compact_edges(const CompactArgs& args, Launch& launch) {
  return launch(compact_edges, args);
}
Error launch_gather_host_rows(const HostRowsArgs& args, Launch& launch) {
  return launch(gather_host_rows, args);
}

Error handle_counting_sort(Launch launch, AnyBuffer keys, Result offsets, Result order) {
  Check check("jaxgnn_counting_sort");
  CountingSortArgs args{};
  args.num_keys = count(keys);
  args.num_values = dim(*offsets, 0) - 1;
  check.that(args.num_keys <= INT32_MAX && args.num_values >= 0,
             "expected fewer than 2^31 keys, and an offset");
  check.vector(keys, xla::ffi::S32, args.num_keys, "keys must be int32 [keys]");
  check.vector(*offsets, xla::ffi::S32, args.num_values + 1, "offsets must be int32 [values + 1]");
  check.vector(*order, xla::ffi::S32, args.num_keys, "the order must be int32 [keys]");
  if (check.failed()) return check.error();
  args.keys = static_cast<const int32_t*>(keys.untyped_data());
  args.offsets = static_cast<int32_t*>(offsets->untyped_data());
  args.order = static_cast<int32_t*>(order->untyped_data());
  return launch(counting_sort, args);
}
}  // namespace sampling

void bind_ffi(nanobind::module_& module) {
  module.def(
      "registrations",
      [] {
        Targets<Launch> targets;
        aggregation::add_targets(targets);
        aggregation::add_cpu_targets(targets);
        maxk::add_targets(targets);
        attention::add_targets(targets);
        attention::add_sparse_targets(targets);
        gaussian::add_targets(targets);
        projection::add_targets(targets);
        normalization::add_targets(targets);
        dropout::add_targets(targets);
        sampling::add_targets(targets);
        targets.add<sampling::handle_counting_sort>("jaxgnn_counting_sort");
        return targets.stages;
      },
      "The XLA FFI handlers by target name, as capsules for jax.ffi.register_ffi_target.");
}

}  // namespace jaxgnn
