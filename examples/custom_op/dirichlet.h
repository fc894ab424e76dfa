// What the kernels of both platforms take: plain structs, without a header of XLA.
#pragma once

#include "common/rows.h"

namespace dirichlet {

// energy[i] = sum over the edges j -> i of |x[j] - x[i]|^2
struct EnergyArgs {
  jaxgnn::Rows rows;
  const float* x;  // [rows, width]
  float* energy;   // [rows]
  int64_t width;
};

// gradient[i] = 2 * (sum over the edges j -> i of d[i] (x[i] - x[j])
//                  + sum over the edges i -> k of d[k] (x[i] - x[k]))
struct GradientArgs {
  jaxgnn::Rows rows;       // a row's columns are the senders j
  jaxgnn::Rows transpose;  // and here the receivers k
  const float* x;          // [rows, width]
  const float* d;          // [rows], the cotangent of the energy
  float* gradient;         // [rows, width]
  int64_t width;
};

}  // namespace dirichlet
