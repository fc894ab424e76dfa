// The kernels of the instruction set that this processor runs best.
#pragma once

#include "common/aggregation.h"
#include "common/attention.h"
#include "common/dropout.h"
#include "common/gaussian.h"
#include "common/maxk.h"
#include "common/normalization.h"
#include "common/projection.h"
#include "common/sparse_attention.h"
#include "cpu/core/executor.h"

namespace jaxgnn {

struct Kernels {
  const char* name;
  void (*spmm)(const aggregation::SpmmArgs&, const Executor&);
  void (*spmm_extremum)(const aggregation::ExtremumArgs&, const Executor&);
  void (*sddmm)(const aggregation::SddmmArgs&, const Executor&);
  void (*sddmm_extremum)(const aggregation::SddmmArgs&, const Executor&);
  void (*edge_softmax)(const aggregation::EdgeSoftmaxArgs&, const Executor&);
  void (*csr_row_ids)(const aggregation::CsrRowIdsArgs&, const Executor&);
  void (*maxk)(const maxk::MaxkArgs&, const Executor&);
  void (*maxk_normalized_gradient)(const maxk::MaxkNormalizedGradientArgs&, const Executor&);
  void (*cbsr_scatter)(const maxk::CbsrScatterArgs&, const Executor&);
  bool (*cbsr_in_range)(const maxk::Cbsr&, const Executor&);
  void (*maxk_spmm)(const maxk::MaxkProductArgs&, const Executor&);
  void (*maxk_sspmm)(const maxk::MaxkProductArgs&, const Executor&);
  void (*maxk_sddmm)(const maxk::MaxkProductArgs&, const Executor&);
  void (*attention)(const attention::AttentionForwardArgs&, const Executor&);
  void (*attention_senders)(const attention::AttentionGradientArgs&, const Executor&);
  void (*attention_receivers)(const attention::AttentionGradientArgs&, const Executor&);
  void (*sparse_attention)(const attention::SparseForwardArgs&, const Executor&);
  void (*sparse_attention_gradients)(const attention::SparseGradientArgs&, const Executor&);
  void (*dot_attention)(const attention::PairForwardArgs&, const Executor&);
  void (*dot_attention_gradients)(const attention::PairGradientArgs&, const Executor&);
  void (*gatv2_attention)(const attention::PairForwardArgs&, const Executor&);
  void (*gatv2_attention_gradients)(const attention::PairGradientArgs&, const Executor&);
  void (*gaussian_spmm)(const gaussian::GaussianSumArgs&, const Executor&);
  void (*gaussian_coordinates)(const gaussian::GaussianGradientArgs&, const Executor&);
  void (*weight_gradient)(const projection::WeightGradientArgs&, const Executor&);
  void (*centered_sums)(const normalization::CenteredSumsArgs&, const Executor&);
  void (*layer_norm)(const normalization::LayerNormArgs&, const Executor&);
  void (*layer_norm_gradient)(const normalization::LayerNormGradientArgs&, const Executor&);
  void (*dropout_mask)(const dropout::MaskArgs&, const Executor&);
};

// Chosen once: "avx512" (F, BW, VL, DQ), "avx2" (with FMA and F16C) or "baseline" (what the
// compiler assumes anyway: SSE2 or NEON). The environment variable JAXGNN_CPU_ISA, read at that
// time, asks for one of them, for tests; an instruction set that this processor lacks is refused
// and the best available one is used.
const Kernels& kernels();

const char* isa_name();

}  // namespace jaxgnn
