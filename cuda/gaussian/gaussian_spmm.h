// Sums of rows weighted by Gaussians of the edges' coordinates, and their gradients: see
// jaxgnn/ops/gaussian_spmm.py for the equations.
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::gaussian {

// Coordinates, parameters and their gradients are in the accumulation type.
struct GaussianArgs {
  Rows rows;
  int64_t num_columns;
  Type type;
  int64_t kernels;
  int64_t dims;             // coordinates of an edge
  int64_t width;            // features of a kernel
  const void* permutation;  // [edges], the graph's edge at each place; null where that is the place
  bool wide_permutation;
  bool tanh;
  const void* near;       // [rows, dims], or null
  const void* far;        // [columns, dims], with near
  const void* edges;      // [edges, dims] in the graph's order, or null
  const void* mu;         // [kernels, dims]
  const void* inv_sigma;  // [kernels, dims]
};

// Sums of rows: one, of the columns' rows for each kernel, or with `each` one for each kernel, of
// the columns' row for all of them.
struct GaussianSumArgs {
  GaussianArgs gaussian;
  bool mean;
  bool each;
  const void* x;   // [columns, kernels * width], or [columns, width]
  void* out;       // [rows, width], or [rows, kernels * width]
  void* partials;  // [num_splits, as out]
};

struct GaussianGradientArgs {
  GaussianArgs gaussian;
  bool rows_stacked;         // the rows are those of `stacked`, the columns those of `single`
  const void* single;        // [nodes, width]: features of all kernels
  const void* stacked;       // [nodes, kernels * width]: of each
  void* near_gradient;       // [rows, dims], or null
  void* edge_gradient;       // [edges, dims] in the graph's order, or null
  void* mu_gradient;         // [kernels, dims], or null
  void* inv_sigma_gradient;  // [kernels, dims], with mu_gradient
  void* partials;            // [num_splits, dims]
  void* records;             // [num_splits + rows, 2 * kernels * dims] with mu_gradient
};

cudaError_t launch_gaussian_spmm(const GaussianSumArgs& args, cudaStream_t stream);
cudaError_t launch_gaussian_coordinates(const GaussianGradientArgs& args, cudaStream_t stream);
cudaError_t load_gaussian_spmm();
cudaError_t load_gaussian_gradients();

}  // namespace jaxgnn::gaussian
