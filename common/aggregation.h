// The arguments of the products and of what else works by rows. R rows, E edges, F features in H
// heads; T and A are the types of features and of sums.
#pragma once

#include "common/rows.h"

namespace jaxgnn::aggregation {

// One of the ties, the edges that attained an extremum. They are counted in units of 2^14, so that
// float16 holds 1 (its smallest normal number) to 10^9 of them.
inline constexpr float kTie = 1.0f / 16384;
inline constexpr float kMostTies = 65504;  // float16's largest number

inline constexpr int64_t kNoLimit = INT64_MAX;

// out[r, f] = reduce over the first row_limit edges e of row r of weights[e, h(f)] x[column(e), f]
struct SpmmArgs {
  Rows rows;
  Type type;
  Reduce reduce;
  int64_t width;        // F
  int64_t heads;        // H, divides F
  int64_t num_columns;  // N
  bool narrow_slices;   // on a GPU features are cut into slices of 128 bytes also for short rows
  int64_t row_limit;    // only the first so many edges of a row count, of sums; or kNoLimit
  int64_t longest_row;  // no row has more edges; 0: not known
  const void* x;        // T[N, F]
  const void* weights;  // A[E, H], or null for ones
  void* out;            // T[R, F]
  void* ties;           // [R, F], how many edges attained a max or min, in float16 where T has 16
                        // bits, else in T; or null
  void* partials;       // A[num_chunks, F], twice that with ties; scratch
};

// The linear map of the derivative of max and min. An edge between r (its end in y) and j (its end
// in x) attained the extremum at feature f if T(weights[e, h] x[j, f]) == y[r, f]. Along
// (`transpose` false) rows are r and columns j:
//   out[r, f] = sum over attaining edges of scale[e, h] values[j, f];
// with `transpose` rows are j, columns r, and values lie at r. Null weights and scale count as 1;
// there are both or neither.
struct ExtremumArgs {
  Rows rows;
  Type type;
  bool transpose;
  int64_t width;
  int64_t heads;
  const void* x;        // T[., F]
  const void* y;        // T[., F]
  const void* weights;  // A[E, H] or null
  const void* values;   // T[columns, F]
  const void* scale;    // A[E, H], with weights
  void* out;            // T[R, F]
  void* partials;       // A[num_chunks, F], scratch
};

// out[e, h] = sum over d of a[r(e), h, d] b[column(e), h, d]; with x, of those terms only where
// T(weights[e, h] x[column(e), h, d]) == y[r(e), h, d].
struct SddmmArgs {
  Rows rows;
  Type type;
  int64_t width;  // F
  int64_t heads;
  int64_t num_columns;  // N
  const void* a;        // T[R, F]
  const void* b;        // T[N, F]
  const void* x;        // T[N, F] or null
  const void* y;        // T[R, F], with x
  const void* weights;  // A[E, H] or null
  void* out;            // A[E, H]
};

// out[e, h] = exp(scores[e, h] - m[r(e), h]) / the sum of these over the row, m being the row's
// maxima; 0 where all of a row's scores are -inf.
struct EdgeSoftmaxArgs {
  Rows rows;
  Type type;  // kF32 or kF64
  int64_t heads;
  const void* scores;  // A[E, H]
  void* out;           // A[E, H]
  void* partials;      // A[num_chunks, 2 H], scratch
};

// The row of each edge.
struct CsrRowIdsArgs {
  Rows rows;     // offsets, num_rows and num_edges
  int32_t* out;  // [E]
};

}  // namespace jaxgnn::aggregation
