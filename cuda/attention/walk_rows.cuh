// What the walks over the rows share: their parameters, a lane's place, the store of sums.
#pragma once

#include "cuda/attention/edge_weights.cuh"
#include "cuda/core/slices.cuh"

namespace jaxgnn::attention {

constexpr int kRowThreads = 64;

template <typename T>
struct RowParams {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Scoring<A> scoring;
  End<A> at_row;     // the rows' numbers
  End<A> at_column;  // the columns' numbers,
  const A* table;    // and the same by heads, [heads, columns] or with kSenders [heads, columns, 4]
  const T* x;        // [columns, width], what is gathered
  const T* own;      // [rows, width], what the sums' dot products are with
  T* out;            // [rows, width], or null
  A* log_sum;        // [rows, heads, 2], forward
  A* partials;       // [parts, partials_stride]: sums, and forward a reference and a total a head
  A* dots;           // [rows + parts, heads * slices_per_head]
  int* sides;        // [rows, heads], with kReceivers: 1 where the edges of slope 1 are the fewer
  int64_t partials_stride;
  int64_t width;
  int head_width;
  unsigned row_bytes;  // from a row of x to the next
  // How the features are cut: a slice has several heads, or a head has several slices.
  int lanes_per_head;  // in a slice
  int heads_per_slice;
  int slices_per_head;
};

// A lane's features.
struct Place {
  int head;
  int slice;  // of the head
  int local;  // place among the lanes of the head
  int feature;
  bool active;
};

template <int V, int kLanes, typename P>
__device__ inline Place place_of(const P& p, int lane) {
  Place place;
  const int slice = slice_number();
  place.slice = slice % p.slices_per_head;
  place.local = lane % p.lanes_per_head;
  const int at = (place.slice * kLanes + place.local) * V;
  place.head = slice / p.slices_per_head * p.heads_per_slice + lane / p.lanes_per_head;
  place.active = lane / p.lanes_per_head < p.heads_per_slice && place.head < p.scoring.heads &&
                 at < p.head_width;
  if (!place.active) place.head = 0;
  place.feature = place.active ? place.head * p.head_width + at : 0;
  return place;
}

// Where a row's, or a part's, dot product of a slice goes.
template <typename P>
__device__ inline auto* dot_place(const P& p, const Work& work, const Place& place) {
  const int64_t at = work.part >= 0 ? p.rows.num_rows + work.part : work.row;
  const int64_t stride = int64_t(p.scoring.heads) * p.slices_per_head;
  return p.dots + at * stride + place.head * p.slices_per_head + place.slice;
}

// The sums of the row, or of its part.
template <typename T, Pass kPass, int V, typename A>
__device__ inline void store_sums(const RowParams<T>& p, const Work& work, const Place& place,
                                  const Softmax<A>& softmax, A (&acc)[V]) {
  const bool first = kPass == Pass::kForward && place.slice == 0 && place.local == 0;
  const int heads = p.scoring.heads;
  if (work.part >= 0) {
    A* partial = p.partials + work.part * p.partials_stride;
#pragma unroll
    for (int i = 0; i < V; ++i) partial[place.feature + i] = acc[i];
    if (first) {
      partial[p.width + place.head] = softmax.largest;
      partial[p.width + heads + place.head] = softmax.total;
    }
    return;
  }
  if constexpr (kPass == Pass::kForward) {
    const A scale = softmax.scale();
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] *= scale;
    if (first) softmax.store_log_sum(p.log_sum + 2 * (work.row * heads + place.head));
  }
  store_vector<T, V, A>(p.out + work.row * p.width + place.feature, acc);
}

// Whether only the row's edges of slope 1 are summed, or only the others; and what the difference
// is multiplied by.
template <typename P>
__device__ inline bool takes_positive(const P& p, int64_t row, int head) {
  return p.sides[row * p.scoring.heads + head] != 0;
}
template <typename A>
__device__ inline A side_factor(const Scoring<A>& s, bool positive) {
  return positive ? A(1) - s.slope : s.slope - A(1);
}

}  // namespace jaxgnn::attention
