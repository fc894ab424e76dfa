// A row in registers, normalized: for the selection from it, and for its gradient.
#pragma once

#include "cuda/maxk/top_k.cuh"

namespace jaxgnn::maxk {
namespace {

// Subtracts the mean of a row, of which each thread of a team has kVectors vectors of V values (see
// column_of), those from `width` on without any meaning; returns 1 / sqrt(variance + epsilon).
template <int V, int kVectors, int kWarps>
__device__ inline float center(const Team<kWarps>& team, int width, float inverse_width,
                               float epsilon, float (&value)[kVectors * V]) {
  constexpr int kTeam = 32 * kWarps;
  float2 sums = {};
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    if ((c * kTeam + team.rank) * V >= width) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) sums.x += value[c * V + i];
  }
  const float mean = team.sum(sums).x * inverse_width;
  sums = {};
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    if ((c * kTeam + team.rank) * V >= width) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float& v = value[c * V + i];
      v -= mean;
      sums.x += v * v;
    }
  }
  return rsqrtf(team.sum(sums).x * inverse_width + epsilon);
}

}  // namespace
}  // namespace jaxgnn::maxk
