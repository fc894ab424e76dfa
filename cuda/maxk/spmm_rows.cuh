// What MaxK's row-wise forward products share: a warp owns a row.
#pragma once

#include "cuda/core/reduce.cuh"
#include "cuda/maxk/cbsr.cuh"
#include "cuda/maxk/fixed_point.cuh"
#include "cuda/maxk/maxk.h"

namespace jaxgnn::maxk {

constexpr int kRowThreads = 128;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kRowSteps = 4;  // CBSR rows of a group in flight

template <typename T, typename I>
struct SpmmParams {
  Rows rows;
  const T* values;
  const I* columns;
  const float* weights;
  T* out;
  float* partials;
  const uint32_t* range;
  const float* sizes;  // of the CBSR rows
  uint32_t* flags;     // set for work that is left to float_rows
  int width;
  int k;
  int padding;  // entries at the end of a CBSR row that are none of its own
  bool mean;
};

template <typename T, typename I>
__device__ inline void finish(const SpmmParams<T, I>& p, const Work& work, int f, float sum) {
  float result[1] = {sum};
  store_row<T, 1, float>(work, p.out, p.partials, p.width, f, p.mean, result);
}

// In fixed point with weights; sets flags for rows that are left to floating point.
template <typename T, typename I>
cudaError_t launch_weighted_rows(const SpmmParams<T, I>& p, const Launch& launch);

}  // namespace jaxgnn::maxk
