// What the kernels take: plain structs of raw pointers, shared by every instruction set.
#pragma once

#include <cstdint>

namespace jaxgnn {

// T, the type of features. Sums are float, or double for f64.
enum class ValueType { f32, bf16, f16, f64 };

// Edge e of row r: row_offsets[r] <= e < row_offsets[r + 1].
struct Csr {
  const void* row_offsets;  // [num_rows + 1], int32 or int64
  bool wide_offsets;        // int64
  const void* indices;      // [num_edges], int32 or int64; null: edge e reads row e
  bool wide_indices;
  int64_t num_rows;
  int64_t num_edges;
  // The parts of rows longer than split_length, (row, part), ascending; row -1 pads the end.
  const int32_t* splits;  // [num_splits, 2]
  int64_t num_splits;
  int64_t split_length;
};

// Runs body(data, item) for every item once, on any thread, and returns when all are done.
struct Executor {
  void (*run)(void* self, int64_t items, void (*body)(void* data, int64_t item), void* data);
  void* self;
  int64_t threads;
};

// Reductions by their FFI attribute.
enum class Reduce : int64_t { sum = 0, mean = 1, max = 2, min = 3 };

// out[r, f] = reduce over edges e of row r of weights[e, f / (width / heads)] x[index(e), f]
struct SpmmArgs {
  Csr csr;
  ValueType type;
  Reduce reduce;
  int64_t width;        // F
  int64_t heads;        // H, divides F
  const void* x;        // T[N, F]
  const void* weights;  // A[E, H] or null for ones
  void* out;            // T[R, F]
  void* ties;           // T[R, F], how many edges attained a max or min, or null
  void* partials;       // A[num_splits, F], and as many more with ties, scratch
};

// The linear map of the derivative of max and min: the sum over the edges of a row of
// [T(weights x) == y] scale values, where x belongs to the sender and y to the receiver.
struct SpmmExtremumArgs {
  Csr csr;
  ValueType type;
  bool transpose;  // rows are senders and indices receivers
  int64_t width;
  int64_t heads;
  const void* x;        // T[senders, F]
  const void* y;        // T[receivers, F]
  const void* weights;  // A[E, H] or null
  const void* values;   // T[index, F]
  const void* scale;    // A[E, H], with weights
  void* out;            // T[R, F]
  void* partials;       // A[num_splits, F], scratch
};

// out[e, h] = sum_d a[r(e), h, d] b[index(e), h, d]; with x given, of the terms where
// T(weights[e, h] x[index(e), h, d]) == y[r(e), h, d] only.
struct SddmmArgs {
  Csr csr;
  ValueType type;
  int64_t width;
  int64_t heads;
  const void* a;        // T[R, F]
  const void* b;        // T[N, F]
  const void* x;        // T[N, F] or null
  const void* y;        // T[R, F], with x
  const void* weights;  // A[E, H] or null
  void* out;            // A[E, H]
};

// Compressed balanced sparse rows: k entries in each, their columns distinct and ascending.
struct Cbsr {
  int64_t num_rows;
  int64_t k;
  int64_t width;        // columns of the dense form, at most 4096
  const void* values;   // T[num_rows, k], or null where only the positions count
  const void* indices;  // [num_rows, k], uint8 or uint16
  bool wide_indices;    // uint16
};

// The k largest entries of each row of x: lower columns first at ties, every NaN the largest.
struct MaxkArgs {
  ValueType type;
  int64_t num_rows;
  int64_t width;
  int64_t k;
  const void* x;  // T[num_rows, width]
  void* values;   // T[num_rows, k]
  void* indices;  // [num_rows, k], uint8 up to 256 columns, else uint16
  // What x is before: (x + bias) times dropout's mask and scale, in A, rounded to T. Example i has
  // the rows from i rows_per_example on, which dropout counts from 0.
  const void* bias;      // A[1 or examples, width] or null
  const uint32_t* keys;  // [1 or examples, 2] or null: no dropout
  bool bias_of_each;     // a bias for each example
  bool key_of_each;
  int64_t rows_per_example;
  uint32_t drop_below;
};

struct CbsrScatterArgs {
  ValueType type;
  Cbsr cbsr;
  void* out;  // T[num_rows, width]
};

// With S(v) the dense form of a sparse row, v its values and I its columns:
//   maxk_spmm:   out[r] = reduce over the edges e of row r of weights[e] S(v[index(e)])
//   maxk_sspmm:  out[r, c] = sum over the edges e of row r of weights[e] y[index(e), I[r, c]]
//   maxk_sddmm:  out[e] = sum_c v[index(e), c] y[r(e), I[index(e), c]]
struct MaxkProductArgs {
  Csr csr;
  ValueType type;
  Reduce reduce;  // sum or mean, maxk_spmm's
  Cbsr cbsr;
  const void* y;        // T[N, width] or T[R, width]
  const void* weights;  // A[E] or null for ones
  void* out;            // T[R, width], T[R, k], A[E]
  void* partials;       // A[num_splits, the width of out], scratch
};

// Attention over the edges e of a row, heads h side by side. Its scores are
//   LeakyReLU(sender_scores[j] + receiver's score[i] + edge_bias[e]).
struct AttentionArgs {
  Csr csr;
  ValueType type;
  int64_t heads;            // H
  int64_t width;            // H F
  int64_t num_columns;      // nodes at the other end of the rows
  const void* permutation;  // [E], the edges' numbers; null: their places
  bool wide_permutation;
  // The graph's own self-loops are passed over, and each row that is also a column gets one.
  bool self_loops;
  double negative_slope;
  const uint32_t* streams;  // [3, H]: the key's two words and the head's number; null: no dropout
  uint32_t drop_below;
  const void* edge_bias;      // A[E, H] or null
  const void* loop_bias;      // A[receivers, H] or null
  const void* values;         // T[senders, H F]
  const void* sender_scores;  // A[senders, H]
};

// out[i] = sum_e softmax(scores)[e] values[j], with dropout; log_sum[i] = log sum_e exp score[e].
struct AttentionForwardArgs {
  AttentionArgs attention;
  const void* receiver_scores;  // A[R, H]
  void* out;                    // T[R, H F]
  void* log_sum;                // A[R, H]
  void* partials;               // A[num_splits, H F + 2 H], scratch
};

// The gradients, given that of out. delta is the dot product of the latter with out.
struct AttentionGradientArgs {
  AttentionArgs attention;
  const void* cotangent;  // T[receivers, H F]
  const void* receivers;  // A[receivers, 3 H]: score, log_sum, delta
  void* values_gradient;  // T[senders, H F], of the pass over senders
  void* scores_gradient;  // A[rows, H]
  void* edge_gradient;    // A[E, H] or null, of the pass over receivers
  void* loop_gradient;    // A[receivers, H] or null, the same
  void* partials;         // A[num_splits, H F + H], or A[num_splits, H], scratch
};

// Gaussians of the edges e of a row, K of them on r coordinates:
//   w[e, k] = exp(-1/2 sum_d ((p[e, d] - mu[k, d]) inv_sigma[k, d])^2)
// with p[e] = edges[e], or near[row] + far[column], through tanh where that is asked for.
struct GaussianArgs {
  Csr csr;
  ValueType type;
  int64_t kernels;          // K
  int64_t dims;             // r
  int64_t width;            // F
  const void* permutation;  // [E], the edges' numbers; null: their places
  bool wide_permutation;
  bool tanh;
  const void* near;       // A[rows, r], or null
  const void* far;        // A[columns, r], with near
  const void* edges;      // A[E, r] in the graph's order, or null
  const void* mu;         // A[K, r]
  const void* inv_sigma;  // A[K, r]
};

// Sums or means over the edges of row i:
//   out[i] = sum_k sum_e w[e, k] x[j, k], or with `each` out[i, k] = sum_e w[e, k] x[j].
struct GaussianSumArgs {
  GaussianArgs gaussian;
  bool mean;
  bool each;
  const void* x;   // T[columns, K F], or T[columns, F]
  void* out;       // T[R, F], or T[R, K F]
  void* partials;  // A[num_splits, as out], scratch
};

// The gradients of what the coordinates are made of, and of the Gaussians' parameters, by the rows
// of either end, from g[e, k] = w[e, k] <single[a], stacked[b, k]>: one end's rows are those of a
// sum over the kernels or its gradient, the other's have features for each kernel.
struct GaussianGradientArgs {
  GaussianArgs gaussian;
  bool rows_stacked;         // the rows are those of `stacked`, the columns those of `single`
  const void* single;        // T[nodes, F]
  const void* stacked;       // T[nodes, K F]
  void* near_gradient;       // A[R, r], or null
  void* edge_gradient;       // A[E, r] in the graph's order, or null
  void* mu_gradient;         // A[K, r], or null
  void* inv_sigma_gradient;  // A[K, r], with mu_gradient
  void* partials;            // A[num_splits, r], scratch
  void* records;             // A[num_splits + R, 2 K r] with mu_gradient, scratch
};

// Attention whose scores need both feature rows of an edge, H heads of F features side by side:
//   scale <q[i], k[j]>  or  <vector, LeakyReLU(q[i] + k[j])>,  and edge_bias[e].
struct PairArgs {
  AttentionArgs attention;  // of the values, which may be the keys; without sender_scores
  int64_t head_width;       // F
  double number;            // the scale, or the LeakyReLU's slope
  const void* queries;      // T[receivers, H F]
  const void* keys;         // T[senders, H F]
  const void* vector;       // A[H, F] or null
  const void* key_scale;    // A[senders, H] or null
};

struct PairForwardArgs {
  PairArgs pair;
  void* out;       // T[R, width]
  void* log_sum;   // A[R, H]
  void* partials;  // A[num_splits, width + 2 H], scratch
};

// The gradients of the rows at one end. `second` is T[senders, width], the values' gradient, by
// senders and where the values are not the keys; by receivers A[receivers, H F], each row's share
// in the gradient of the vector, where there is one.
struct PairGradientArgs {
  PairArgs pair;
  bool by_senders;
  const void* cotangent;  // T[receivers, width]
  const void* records;    // A[receivers, 2 H]: log_sum, delta
  void* first;            // T[R, H F], the gradient of scaled keys or of queries
  void* second;
  void* edge_gradient;  // A[E, H] or null, of the pass over receivers
  void* loop_gradient;  // A[receivers, H] or null, the same
  void* partials;       // A[num_splits, H F], then A[num_splits, the width of `second`], scratch
};

struct CsrRowIdsArgs {
  Csr csr;
  int32_t* out;  // [E]
};

}  // namespace jaxgnn
