// How the feature axis is cut: into slices of a compile-time number of vectors held in registers.
//
// The last vector of a slice that is no multiple of the vector overlaps the one before it: both
// compute the same values there, so no lane needs a mask.
#pragma once

#include <cstdint>

#include "cpu/core/simd.h"

namespace jaxgnn {
namespace {

// Which weight feature f of an edge takes.
enum class Weighting {
  shared,       // one for the whole slice
  per_vector,   // one for each vector: heads narrower than a slice
  per_feature,  // one for each feature
};

// float64 is there for checks, and few registers are those of old processors: both take the
// features in more passes.
template <class T>
constexpr bool kManyVectors = sizeof(Accumulator<T>) == sizeof(float) && kRegisters >= 16;

// The most vectors of fewer lanes than a full one, or with several weights, that kernels are
// compiled for,
template <class T>
constexpr int kNarrowVectors = kManyVectors<T> ? 4 : 2;

// and the most full ones.
template <class T>
constexpr int most_vectors(int max_vectors) {
  return kManyVectors<T> ? max_vectors : kNarrowVectors<T>;
}

// The vector counts that kernels are compiled for: 1, 2, 4, 6, 8, 12 and 16. Other slices use the
// next count, with the last vectors clamped to the end of the slice (they overlap).
constexpr int next_vectors(int vectors) {
  return vectors < 2 ? vectors + 1 : vectors < 8 ? vectors + 2 : vectors + 4;
}

// The offset of vector k in a slice of this many features. The first vectors are full in every
// slice of this count: their offsets are constants.
template <int N, int kVectors>
JAXGNN_INLINE int64_t vector_begin(int k, int64_t width) {
  constexpr int kSpare = kVectors > 8 ? 4 : 2;
  return k < kVectors - kSpare ? int64_t{k} * N : min_of(int64_t{k} * N, width - N);
}

struct Slice {
  int64_t feature;  // the first
  int64_t width;
  int vectors;
  int64_t head;  // of the first feature
};

struct Slices {
  Weighting weighting;
  int lanes;
  int64_t group;          // features of a group, cut alike: a head, or all
  int64_t group_vectors;  // vectors that cover a group
  int64_t group_slices;
  int64_t head_width;
  int64_t count;

  Slice operator[](int64_t i) const {
    const int64_t first = (i / group_slices) * group;
    const int64_t s = i % group_slices;
    const int64_t begin = group_vectors * s / group_slices;
    const int64_t end = group_vectors * (s + 1) / group_slices;
    const int64_t feature = first + begin * lanes;
    const int64_t last = first + min_of(end * lanes, group);
    return {feature, last - feature, static_cast<int>(end - begin), feature / head_width};
  }
};

// The features cut for one way of weighting; the arguments are those of cut_features.
template <class T>
Slices cut_for(Weighting weighting, int64_t width, int64_t head_width, int max_vectors) {
  Slices cut{};
  cut.weighting = weighting;
  cut.head_width = head_width;
  cut.group = weighting == Weighting::shared ? head_width : width;
  cut.lanes = kLanes<T>;
  if (weighting == Weighting::per_vector) {
    while (head_width % cut.lanes != 0) cut.lanes /= 2;
  }
  while (cut.lanes > cut.group) cut.lanes /= 2;
  if (cut.lanes < kLanes<T> || weighting != Weighting::shared) {
    max_vectors = min_of(max_vectors, kNarrowVectors<T>);
  }
  cut.group_vectors = (cut.group + cut.lanes - 1) / cut.lanes;
  cut.group_slices = (cut.group_vectors + max_vectors - 1) / max_vectors;
  cut.count = width / cut.group * cut.group_slices;
  return cut;
}

// `width` and `heads` are positive; `max_vectors` is one of the compiled counts, >= 2.
template <class T>
Slices cut_features(int64_t width, int64_t heads, bool weighted, int max_vectors) {
  max_vectors = most_vectors<T>(max_vectors);
  if (!weighted) heads = 1;
  const int64_t head_width = width / heads;
  const auto cut = [&](Weighting weighting) {
    return cut_for<T>(weighting, width, head_width, max_vectors);
  };
  if (heads > 1 && head_width == 1) return cut(Weighting::per_feature);
  const Slices shared = cut(Weighting::shared);
  if (heads == 1 || head_width % 4 != 0) return shared;
  // Every slice is one more walk over the edges; heads of 20 or 52 have vectors of four lanes.
  const Slices per_vector = cut(Weighting::per_vector);
  return per_vector.count < shared.count ? per_vector : shared;
}

template <int kLaneCount, int kMaxVectors, int kVectors, class F>
JAXGNN_INLINE void with_vectors(int vectors, const F& f) {
  if (vectors <= kVectors) {
    f(Constant<kLaneCount>{}, Constant<kVectors>{});
  } else if constexpr (kVectors < kMaxVectors) {
    with_vectors<kLaneCount, kMaxVectors, next_vectors(kVectors)>(vectors, f);
  }
}

// Calls f(Constant<lanes>, Constant<vectors>) for the run-time counts of cut_features.
template <Weighting kWeighting, int kLaneCount, int kMaxVectors, class F>
JAXGNN_INLINE void with_shape(int lanes, int vectors, const F& f) {
  // There are two heads at least, of four features at least.
  constexpr bool kHeads = kWeighting == Weighting::per_vector;
  constexpr int kLeast = kHeads ? 4 : 1;
  // A narrow shared group is narrower than a full vector: one vector, or two that overlap; of one
  // lane, one.
  constexpr int kNarrow = kHeads ? kMaxVectors : kLaneCount == 2 ? 1 : 2;
  if (lanes == kLaneCount) {
    with_vectors<kLaneCount, kMaxVectors, kHeads ? 2 : 1>(vectors, f);
  } else if constexpr (kLaneCount > kLeast) {
    with_shape<kWeighting, kLaneCount / 2, kNarrow>(lanes, vectors, f);
  }
}

template <Weighting kValue>
struct WeightingConstant {
  static constexpr Weighting value = kValue;
};

// Calls f(Constant<lanes>, Constant<vectors>, WeightingConstant) for a slice of weighted sums, of
// up to kMaxVectors vectors where they are full and of one head.
template <class T, int kMaxVectors, class F>
JAXGNN_INLINE void with_slice(const Slices& cut, const Slice& slice, const F& f) {
  auto shaped = [&](auto weighting, auto most) {
    constexpr Weighting kWeighting = decltype(weighting)::value;
    with_shape<kWeighting, kLanes<T>, decltype(most)::value>(
        cut.lanes, slice.vectors, [&](auto lanes, auto vectors) { f(lanes, vectors, weighting); });
  };
  constexpr Constant<kNarrowVectors<T>> narrow{};
  switch (cut.weighting) {
    case Weighting::shared:
      return shaped(WeightingConstant<Weighting::shared>{},
                    Constant<most_vectors<T>(kMaxVectors)>{});
    case Weighting::per_vector:
      return shaped(WeightingConstant<Weighting::per_vector>{}, narrow);
    case Weighting::per_feature:
      return shaped(WeightingConstant<Weighting::per_feature>{}, narrow);
  }
}

// The offset of a vector's weight in an edge's row of weights, from the slice's first head on.
template <Weighting kWeighting>
JAXGNN_INLINE int64_t weight_at(const Slice& slice, int64_t feature, int64_t head_width) {
  if (kWeighting == Weighting::shared) return 0;
  if (kWeighting == Weighting::per_feature) return feature;
  return (slice.feature + feature) / head_width - slice.head;
}

// That weight: a vector if its lanes differ, else a scalar.
template <int kLaneCount, Weighting kWeighting, class A>
JAXGNN_INLINE auto load_weight(const A* weights) {
  if constexpr (kWeighting == Weighting::per_feature) {
    return load<kLaneCount>(weights);
  } else {
    return *weights;
  }
}

}  // namespace
}  // namespace jaxgnn
