// Floyd's algorithm within a thread.
#pragma once

#include "common/sampling.h"

namespace jaxgnn::sampling {
namespace {

// k of the d edges of a row, k <= min(d, kMost), without replacement: number i draws t below j + 1,
// j = d - k + i, and takes t, or j if t is taken. Four numbers share a block of random words. Of
// k = d edges all, in their order; beyond k what nobody reads.
template <int kMost>
__device__ inline void floyd(uint32_t (&edges)[kMost], uint32_t k, uint32_t d, uint32_t id,
                             const uint32_t* key) {
  const uint32_t base = d - k;
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) edges[i] = i;
  if (k == d) return;
#pragma unroll
  for (uint32_t i = 0; i < kMost; i += 4) {
    if (i >= k) break;
    const PhiloxWords block = philox4x32({{id, i / 4, 0, 1}}, key[0], key[1]);
#pragma unroll
    for (uint32_t n = i; n < i + 4; ++n) {
      const uint32_t t = below(block.words[n - i], base + n + 1);  // the order of draw_word
      bool taken = false;
#pragma unroll
      for (uint32_t earlier = 0; earlier < n; ++earlier) taken |= edges[earlier] == t;
      edges[n] = taken ? base + n : t;
    }
  }
}

}  // namespace
}  // namespace jaxgnn::sampling
