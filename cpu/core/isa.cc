#include "cpu/core/isa.h"

#include <cstdlib>
#include <cstring>

#include "cpu/aggregation/csr_row_ids.h"
#include "cpu/aggregation/edge_softmax.h"
#include "cpu/aggregation/extremum.h"
#include "cpu/aggregation/sddmm.h"
#include "cpu/aggregation/spmm.h"
#include "cpu/attention/gat_attention.h"
#include "cpu/attention/pair_attention.h"
#include "cpu/attention/sparse_attention.h"
#include "cpu/dropout/mask.h"
#include "cpu/gaussian/gaussian_spmm.h"
#include "cpu/maxk/maxk.h"
#include "cpu/maxk/maxk_spmm.h"
#include "cpu/normalization/batch_norm.h"
#include "cpu/normalization/layer_norm.h"
#include "cpu/projection/weight_gradient.h"

namespace jaxgnn {
namespace {

#define JAXGNN_KERNELS(isa)                                                                  \
  Kernels {                                                                                  \
    #isa, aggregation::isa::spmm, aggregation::isa::spmm_extremum, aggregation::isa::sddmm,  \
        aggregation::isa::sddmm_extremum, aggregation::isa::edge_softmax,                    \
        aggregation::isa::csr_row_ids, maxk::isa::maxk, maxk::isa::maxk_normalized_gradient, \
        maxk::isa::cbsr_scatter, maxk::isa::cbsr_in_range, maxk::isa::maxk_spmm,             \
        maxk::isa::maxk_sspmm, maxk::isa::maxk_sddmm, attention::isa::attention,             \
        attention::isa::attention_senders, attention::isa::attention_receivers,              \
        attention::isa::sparse_attention, attention::isa::sparse_attention_gradients,        \
        attention::isa::dot_attention, attention::isa::dot_attention_gradients,              \
        attention::isa::gatv2_attention, attention::isa::gatv2_attention_gradients,          \
        gaussian::isa::gaussian_spmm, gaussian::isa::gaussian_coordinates,                   \
        projection::isa::weight_gradient, normalization::isa::centered_sums,                 \
        normalization::isa::layer_norm, normalization::isa::layer_norm_gradient,             \
        dropout::isa::mask                                                                   \
  }

Kernels choose() {
#ifdef JAXGNN_X86
  const char* wanted = std::getenv("JAXGNN_CPU_ISA");
  auto admits = [wanted](const char* name) {
    return wanted == nullptr || *wanted == '\0' || std::strcmp(wanted, name) == 0;
  };
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512 && admits("avx512")) return JAXGNN_KERNELS(avx512);
  if (avx2 && !(wanted != nullptr && std::strcmp(wanted, "baseline") == 0)) {
    return JAXGNN_KERNELS(avx2);
  }
#endif
  return JAXGNN_KERNELS(baseline);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

const char* isa_name() { return kernels().name; }

}  // namespace jaxgnn
