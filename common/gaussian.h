// The arguments of Gaussian weights. Of the edges e of a row, K of them on r coordinates:
//   w[e, k] = exp(-1/2 sum_d ((p[e, d] - mu[k, d]) inv_sigma[k, d])^2)
// with p[e] = edges[e], or row_terms[row] + column_terms[column] (`row_terms`: terms of the rows,
// `column_terms`: of the columns), through tanh if `activation` is set.
#pragma once

#include "common/rows.h"

namespace jaxgnn::gaussian {

// Coordinates of an edge, at most; jaxgnn/ops/_gaussian/kernels.py has the same.
constexpr int kMaxDims = 16;

// Coordinates, parameters and their gradients are in the accumulation type.
struct GaussianArgs {
  Rows rows;
  int64_t num_columns;
  Type type;
  int64_t kernels;          // K
  int64_t dims;             // r
  int64_t width;            // F, features of a kernel
  const void* permutation;  // [E], the graph's edge at each place; null where that is the place
  bool wide_permutation;
  bool tanh;
  const void* row_terms;     // A[rows, r], or null
  const void* column_terms;  // A[columns, r], with row_terms
  const void* edges;         // A[E, r] in the graph's order, or null
  const void* mu;            // A[K, r]
  const void* inv_sigma;     // A[K, r]
};

// Sums or means over the edges of row i:
//   out[i] = sum_k sum_e w[e, k] x[j, k], or with `shared_input` out[i, k] = sum_e w[e, k] x[j].
struct GaussianSumArgs {
  GaussianArgs gaussian;
  bool mean;
  bool shared_input;
  const void* x;   // T[columns, K F], or T[columns, F]
  void* out;       // T[R, F], or T[R, K F]
  void* partials;  // A[num_chunks, as out], scratch
};

// The gradients of what the coordinates are made of, and of the Gaussians' parameters, by the rows
// of either end, from g[e, k] = w[e, k] <single[a], stacked[b, k]>: one end's rows are those of a
// sum over the kernels or its gradient, the other's have features for each kernel.
struct GaussianGradientArgs {
  GaussianArgs gaussian;
  bool rows_stacked;         // the rows are those of `stacked`, the columns those of `single`
  const void* single;        // T[nodes, F]
  const void* stacked;       // T[nodes, K F]
  void* row_terms_gradient;  // A[R, r], or null
  void* edge_gradient;       // A[E, r] in the graph's order, or null
  void* mu_gradient;         // A[K, r], or null
  void* inv_sigma_gradient;  // A[K, r], with mu_gradient
  void* partials;            // A[num_chunks, r], scratch
  void* block_sums;          // A[num_chunks + R, 2 K r] with mu_gradient, scratch
};

}  // namespace jaxgnn::gaussian
