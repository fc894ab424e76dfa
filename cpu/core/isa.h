// The kernels of the instruction set that this processor runs best.
#pragma once

#include "cpu/core/csr.h"

namespace jaxgnn {

struct Kernels {
  const char* name;
  void (*spmm)(const SpmmArgs&, const Executor&);
  void (*spmm_extremum)(const SpmmExtremumArgs&, const Executor&);
  void (*sddmm)(const SddmmArgs&, const Executor&);
  void (*sddmm_extremum)(const SddmmArgs&, const Executor&);
  void (*csr_row_ids)(const CsrRowIdsArgs&, const Executor&);
  void (*maxk)(const MaxkArgs&, const Executor&);
  void (*cbsr_scatter)(const CbsrScatterArgs&, const Executor&);
  bool (*cbsr_in_range)(const Cbsr&, const Executor&);
  void (*maxk_spmm)(const MaxkProductArgs&, const Executor&);
  void (*maxk_sspmm)(const MaxkProductArgs&, const Executor&);
  void (*maxk_sddmm)(const MaxkProductArgs&, const Executor&);
  void (*attention)(const AttentionForwardArgs&, const Executor&);
  void (*attention_senders)(const AttentionGradientArgs&, const Executor&);
  void (*attention_receivers)(const AttentionGradientArgs&, const Executor&);
  void (*dot_attention)(const PairForwardArgs&, const Executor&);
  void (*dot_attention_gradients)(const PairGradientArgs&, const Executor&);
  void (*gatv2_attention)(const PairForwardArgs&, const Executor&);
  void (*gatv2_attention_gradients)(const PairGradientArgs&, const Executor&);
  void (*gaussian_spmm)(const GaussianSumArgs&, const Executor&);
  void (*gaussian_coordinates)(const GaussianGradientArgs&, const Executor&);
};

// Chosen once: "avx512" (F, BW, VL, DQ), "avx2" (with FMA and F16C) or "baseline" (what the
// compiler assumes anyway: SSE2 or NEON). The environment variable JAXGNN_CPU_ISA, read at that
// time, asks for one of them, for tests; one that this processor lacks is refused in favour of the
// best that it has.
const Kernels& kernels();

const char* isa_name();

}  // namespace jaxgnn
