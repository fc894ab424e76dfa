#include "isa.h"

#include <cstdlib>
#include <cstring>

#include "expand_rows.h"
#include "extremum.h"
#include "gat_attention.h"
#include "gaussian_spmm.h"
#include "maxk.h"
#include "maxk_spmm.h"
#include "pair_attention.h"
#include "sddmm.h"
#include "spmm.h"

namespace jaxgnn {
namespace {

#define JAXGNN_KERNELS(isa)                                                                 \
  Kernels {                                                                                 \
    #isa, isa::spmm, isa::spmm_extremum, isa::sddmm, isa::sddmm_extremum, isa::expand_rows, \
        isa::maxk, isa::cbsr_scatter, isa::cbsr_in_range, isa::maxk_spmm, isa::maxk_sspmm,  \
        isa::maxk_sddmm, isa::attention, isa::attention_senders, isa::attention_receivers,  \
        isa::dot_attention, isa::dot_attention_gradients, isa::gatv2_attention,             \
        isa::gatv2_attention_gradients, isa::gaussian_spmm, isa::gaussian_coordinates       \
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
