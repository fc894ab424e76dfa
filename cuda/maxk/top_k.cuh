// How the threads of a row find its k largest values, held in their registers: see maxk.cu.
#pragma once

#include <climits>

#include "cuda/maxk/cbsr.cuh"

namespace jaxgnn::maxk {
namespace {

constexpr int kThreads = 128;
constexpr int kPivots = 16;       // tried before the keys are bisected
constexpr int kRow = 4;           // values missing, from which on the next lower one is tried;
constexpr int kPatience = 4;      // in the first rounds if one is missing
constexpr int kAbsent = INT_MIN;  // below every key

// Integers in the order of the values: NaN highest, -0 = +0.
__device__ inline int key_of(float v) {
  if (v != v) return INT_MAX - 1;
  const int bits = __float_as_int(v + 0.0f);
  return bits < 0 ? bits ^ INT_MAX : bits;
}
__device__ inline float value_of(int key) { return __int_as_float(key < 0 ? key ^ INT_MAX : key); }

// The threads of a row: kWarps warps (one, or the whole block).
template <int kWarps>
struct Team {
  int* scratch;  // [2 kWarps] of shared memory
  int rank;      // of this thread

  __device__ int sum(int v) const {
    v = __reduce_add_sync(kFullWarp, v);
    if constexpr (kWarps == 1) return v;
    if (rank % 32 == 0) scratch[rank / 32] = v;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += scratch[w];
    __syncthreads();
    return total;
  }
  __device__ float2 sum(float2 v) const {
    // The warp's upper half goes on with one of them, the lower with the other.
    const bool upper = rank % 32 >= 16;
    float half = upper ? v.y : v.x;
    half += __shfl_xor_sync(kFullWarp, upper ? v.x : v.y, 16);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) half += __shfl_xor_sync(kFullWarp, half, offset);
    v = {__shfl_sync(kFullWarp, half, 0), __shfl_sync(kFullWarp, half, 16)};
    if constexpr (kWarps == 1) return v;
    float2* pairs = reinterpret_cast<float2*>(scratch);
    if (rank % 32 == 0) pairs[rank / 32] = v;
    __syncthreads();
    float2 total = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total = {total.x + pairs[w].x, total.y + pairs[w].y};
    __syncthreads();
    return total;
  }
  __device__ int largest(int v) const {
    v = __reduce_max_sync(kFullWarp, v);
    if constexpr (kWarps == 1) return v;
    if (rank % 32 == 0) scratch[rank / 32] = v;
    __syncthreads();
    int result = scratch[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) result = max(result, scratch[w]);
    __syncthreads();
    return result;
  }
  // The sum over the threads before this one; `total` over all.
  __device__ int before(int v, int& total) const {
    int inclusive = v;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kFullWarp, inclusive, offset);
      if (rank % 32 >= offset) inclusive += other;
    }
    if constexpr (kWarps == 1) {
      total = __shfl_sync(kFullWarp, inclusive, 31);
      return inclusive - v;
    }
    if (rank % 32 == 31) scratch[rank / 32] = inclusive;
    __syncthreads();
    int earlier = 0;
    total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < rank / 32) earlier += scratch[w];
      total += scratch[w];
    }
    __syncthreads();
    return earlier + inclusive - v;
  }
};

// The bit mask of a thread's selected values: all of `above`, and the first `spare` of the row's
// `equal`, from the left.
struct Choice {
  unsigned above;
  unsigned equal;
  int spare;
};

// The next pivot between `low`, which `below` values reach, and `high`, which `above` do.
__device__ inline float interpolate(float low, int below, float high, int above, int k) {
  const float share = __fdividef(static_cast<float>(below - k), static_cast<float>(below - above));
  return low + (high - low) * share;
}

// By a search among the values, `below` of which are known to reach `low`. False if it does not
// end.
template <int kWarps, int kCount>
__device__ bool choose_by_value(const Team<kWarps>& team, const float (&value)[kCount], float low,
                                int below, float pivot, float step, int k, Choice& choice) {
  float high = INFINITY;
  int above = 0;      // how many are >= high
  bool next = false;  // whether the pivot is the largest value below high
  for (int n = 0; n < kPivots; ++n) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) count += value[i] >= pivot;
    count = team.sum(count);
    if (count == k || (count > k && next)) {
      choice = {0, 0, count > k ? k - above : 0};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        choice.above |= static_cast<unsigned>(value[i] >= pivot) << i;
      }
      if (count > k) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          choice.equal |= static_cast<unsigned>(value[i] == pivot) << i;
        }
        choice.above &= ~choice.equal;
      }
      return true;
    }
    if (count > k) {
      low = pivot;
      below = count;
    } else {
      high = pivot;
      above = count;
    }
    next = count < k && k - count <= (n < kPatience ? 1 : kRow);
    if (next) {
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (value[i] < pivot) largest = fmaxf(largest, value[i]);
      }
      pivot = value_of(team.largest(key_of(largest)));
    } else if (low > -INFINITY && high < INFINITY) {
      const float between = interpolate(low, below, high, above, k);
      pivot = n % 4 != 3 && between > low && between < high ? between : 0.5f * low + 0.5f * high;
    } else {
      pivot += static_cast<float>(count - k) * step;
    }
  }
  return false;
}

// Where the k-th largest is 0: dropout leaves many zeros, which no search for a pivot is quick to
// find among other values. Not for NaN.
template <int kWarps, int kCount>
__device__ bool choose_at_zero(const Team<kWarps>& team, const float (&value)[kCount], int k,
                               Choice& choice) {
  int counts = 0;  // of positive values, and in the upper half of zeros
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (value[i] >= 0.0f) counts += value[i] > 0.0f ? 1 : 1 << 16;
  }
  counts = team.sum(counts);
  const int positive = counts & 0xffff;
  if (positive >= k || positive + (counts >> 16) < k) return false;
  choice = {0, 0, k - positive};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    choice.above |= static_cast<unsigned>(value[i] > 0.0f) << i;
    choice.equal |= static_cast<unsigned>(value[i] == 0.0f) << i;
  }
  return true;
}

// By bisection of the keys, which ends at the k-th largest.
template <int kWarps, int kCount>
__device__ Choice choose_by_key(const Team<kWarps>& team, const int (&key)[kCount], int k) {
  int high = kAbsent, low = INT_MAX;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    high = max(high, key[i]);
    if (key[i] != kAbsent) low = min(low, key[i]);
  }
  const auto reach = [&](int bound) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) count += key[i] >= bound;
    return team.sum(count);
  };
  // At least k keys are >= low, fewer than k are >= high.
  high = team.largest(high) + 1;
  low = -team.largest(-low);
  while (high - 1 != low) {
    const unsigned distance = static_cast<unsigned>(high) - static_cast<unsigned>(low);
    const int middle = low + static_cast<int>(distance / 2);
    (reach(middle) >= k ? low : high) = middle;
  }
  Choice choice{0, 0, k - reach(high)};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    choice.above |= static_cast<unsigned>(key[i] > low) << i;
    choice.equal |= static_cast<unsigned>(key[i] == low) << i;
  }
  return choice;
}

// Settles which of equal values are kept: those to the left, of kVectors vectors of V a thread.
template <int V, int kVectors, int kWarps>
__device__ inline void settle_ties(const Team<kWarps>& team, Choice& choice) {
  constexpr unsigned kPackBits = V == 32 ? ~0u : (1u << V % 32) - 1;
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    unsigned equal = choice.equal & (kPackBits << (c * V));
    int all;
    int left = choice.spare - team.before(__popc(equal), all);
    choice.spare -= all;
    for (; equal != 0 && left > 0; --left) {
      choice.above |= equal & -equal;
      equal &= equal - 1;
    }
  }
}

// Where a thread's kept values go, of kVectors vectors of V: counts of two vectors in the halves of
// a word, before this thread's and of the whole row.
template <int kVectors>
struct Places {
  static constexpr int kPairs = (kVectors + 1) / 2;
  int before[kPairs];
  int all[kPairs];

  __device__ int total() const {
    int sum = 0;
#pragma unroll
    for (int c = 0; c < kPairs; ++c) sum += (all[c] & 0xffff) + (all[c] >> 16);
    return sum;
  }
};

// The places of the values with keep(i).
template <int V, int kVectors, int kWarps, typename Keep>
__device__ inline Places<kVectors> find_places(const Team<kWarps>& team, Keep keep) {
  Places<kVectors> places;
#pragma unroll
  for (int c = 0; c < kVectors; c += 2) {
    int kept = 0;
#pragma unroll
    for (int i = c * V; i < min(c + 2, kVectors) * V; ++i) {
      if (keep(i)) kept += i < (c + 1) * V ? 1 : 1 << 16;
    }
    places.before[c / 2] = team.before(kept, places.all[c / 2]);
  }
  return places;
}

// Calls emit(i, place) for each of them; `place` counts the row's kept values from the left.
template <int V, int kVectors, typename Keep, typename Emit>
__device__ inline void emit_kept(const Places<kVectors>& places, Keep keep, Emit emit) {
  int place = 0;
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    const int shift = c % 2 * 16;
    int to = place + (places.before[c / 2] >> shift & 0xffff);
    place += places.all[c / 2] >> shift & 0xffff;
#pragma unroll
    for (int i = c * V; i < (c + 1) * V; ++i) {
      if (keep(i)) emit(i, to++);
    }
  }
}

// The column of a thread's i-th value.
template <int V, int kTeam>
__device__ inline int column_of(int i, int rank) {
  return (i / V * kTeam + rank) * V + i % V;
}

}  // namespace
}  // namespace jaxgnn::maxk
