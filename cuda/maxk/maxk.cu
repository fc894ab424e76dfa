// The k largest values of each row, held in registers: a search for a pivot that exactly k values
// reach. The first pivot assumes a normal distribution of the row's mean and variance, the next by
// Newton's rule; between a bound below and one above, by linear interpolation of their counts; and
// once one or a few values are missing, at the next lower value. Common rows need four or five
// counts. If the search does not converge (NaN, infinities, extreme distributions), bisection of
// order-preserving integer keys does.
//
// Where k is small, counts over whole rows are what takes the time. So the first pivot is set a
// little low, and what reaches it, the candidates, are put together in shared memory: a few for
// each lane, among which the search costs little.
//
// A bias and dropout are applied to the values as they are loaded, by variants of the kernels, and
// after a normalization by others, once the whole row is in registers.
#include <algorithm>
#include <cmath>

#include "common/philox.h"
#include "cuda/maxk/maxk.h"
#include "cuda/maxk/normalize.cuh"

namespace jaxgnn::maxk {
namespace {

// What is done to a row before the choice.
enum class Before { kNothing, kTransform, kNormalize };

template <typename T, typename I>
struct Params {
  const T* x;
  T* values;
  I* columns;
  int64_t num_rows;
  int width;
  int k;
  // Of the standard normal distribution: what a share k / width exceeds, and the distance there
  // from one of `width` values to the next.
  float quantile;
  float distance;
  float inverse_width;
  // The same for the candidates: more than k of them are aimed at.
  float candidate_quantile;
  float candidate_distance;
  int row_bytes;  // of shared memory, for candidates or results
  // Of the variants with bias and dropout; see MaxkArgs. Distances are between two examples'.
  const float* bias;
  const uint32_t* keys;
  int bias_distance;
  int key_distance;
  int64_t rows_per_example;
  uint64_t reciprocal;  // 2^64 / rows_per_example
  uint32_t drop_below;
  float keep_scale;
  // Of those with normalization.
  const float* scale;
  int scale_distance;
  float epsilon;
};

// A row's bias, and its number and key for dropout; null: none. Its scale, if it is normalized.
struct RowTransform {
  const float* bias;
  const uint32_t* key;
  int64_t number;
  const float* scale;
};

template <typename T, typename I>
__device__ inline RowTransform transform_of(const Params<T, I>& p, int64_t row) {
  // A division would be a call that costs registers; this quotient is at most one too small.
  int64_t example = static_cast<int64_t>(__umul64hi(static_cast<uint64_t>(row), p.reciprocal));
  int64_t number = row - example * p.rows_per_example;
  if (number >= p.rows_per_example) {
    number -= p.rows_per_example;
    ++example;
  }
  return {p.bias == nullptr ? nullptr : p.bias + example * p.bias_distance,
          p.keys == nullptr ? nullptr : p.keys + example * p.key_distance, number,
          p.scale + example * p.scale_distance};
}

// Applies it to V values from column f on, and rounds them to T.
template <int V, typename T, typename I>
__device__ inline void apply(const Params<T, I>& p, const RowTransform& row, int f, float* v) {
  if (row.bias != nullptr) {
    if constexpr (V == 1) {
      v[0] = __fadd_rn(v[0], __ldg(row.bias + f));
    } else {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        const float4 bias = __ldg(reinterpret_cast<const float4*>(row.bias + f + i));
        v[i] = __fadd_rn(v[i], bias.x);
        v[i + 1] = __fadd_rn(v[i + 1], bias.y);
        v[i + 2] = __fadd_rn(v[i + 2], bias.z);
        v[i + 3] = __fadd_rn(v[i + 3], bias.w);
      }
    }
  }
  if (row.key != nullptr) {
    constexpr int kBlock = static_cast<int>(kColumnsPerBlock);
    const auto low = static_cast<uint32_t>(row.number);
    const auto high = static_cast<uint32_t>(row.number >> 32);
    const uint32_t key0 = __ldg(row.key), key1 = __ldg(row.key + 1);
#pragma unroll
    for (int first = 0; first < V; first += kBlock) {
      const auto block = static_cast<uint32_t>(f + first) / kColumnsPerBlock;
      const PhiloxWords drawn = dropout_block(low, high, block, key0, key1);
#pragma unroll
      for (int i = 0; i < min(V, kBlock); ++i) {
        uint32_t word = drawn.words[i];
        if constexpr (V == 1) {  // by masks: from comparisons nvcc makes an array in memory
          const uint32_t odd = 0u - static_cast<uint32_t>(f & 1);
          const uint32_t upper = 0u - static_cast<uint32_t>(f >> 1 & 1);
          const uint32_t first_two = drawn.words[0] ^ ((drawn.words[0] ^ drawn.words[1]) & odd);
          const uint32_t last_two = drawn.words[2] ^ ((drawn.words[2] ^ drawn.words[3]) & odd);
          word = first_two ^ ((first_two ^ last_two) & upper);
        }
        float& value = v[first + i];
        value = word >= p.drop_below ? __fmul_rn(value, p.keep_scale) : 0.0f;
      }
    }
  }
  if constexpr (sizeof(T) < sizeof(float)) {
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = widen(narrow<T, float>(v[i]));
  }
}

// V floats, of which four are aligned if V is more than one.
template <int V>
__device__ inline void load_floats(const float* from, float (&to)[V]) {
  if constexpr (V == 1) {
    to[0] = __ldg(from);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
  }
}

// Chooses among candidates, at most kSlots for each lane, and writes the row. False, with nothing
// written, if no pivot was found that at least k and at most 32 kSlots candidates reach.
template <int kSlots, int V, int kVectors, typename T, typename I>
__device__ bool select_candidates(const Params<T, I>& p, const Team<1>& team, int64_t row,
                                  const float (&value)[kVectors * V], float mean, float deviation,
                                  float* values, I* columns) {
  constexpr int kMost = 32 * kSlots;
  constexpr int kTries = 4;
  float pivot = mean + p.candidate_quantile * deviation;
  const float step = p.candidate_distance * deviation;
  const auto keep = [&](int i) { return value[i] >= pivot; };
  Places<kVectors> places;
  int total;
  for (int n = 0;; ++n) {
    places = find_places<V, kVectors>(team, keep);
    total = places.total();
    if (total >= p.k && total <= kMost) break;
    if (n == kTries) return false;
    pivot += static_cast<float>(total - (p.k + kMost) / 2) * step;
  }
  emit_kept<V, kVectors>(places, keep, [&](int i, int place) {
    values[place] = value[i];
    columns[place] = static_cast<I>(column_of<V, 32>(i, team.rank));
  });
  __syncwarp();
  float candidate[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int at = s * 32 + team.rank;
    candidate[s] = at < total ? values[at] : -INFINITY;
  }
  Choice choice{0, 0, 0};
  if (total == p.k) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      choice.above |= static_cast<unsigned>(s * 32 + team.rank < total) << s;
    }
  } else if (!choose_by_value(team, candidate, pivot, total,
                              pivot + static_cast<float>(total - p.k) * step, step, p.k, choice)) {
    return false;
  }
  if (choice.spare > 0) settle_ties<1, kSlots>(team, choice);
  int place = 0;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const bool kept = (choice.above >> s & 1) != 0;
    const unsigned all = __ballot_sync(kFullWarp, kept);
    if (kept) {
      const int64_t to = row * p.k + place + __popc(all & ((1u << team.rank) - 1));
      p.values[to] = narrow<T, float>(candidate[s]);
      p.columns[to] = columns[s * 32 + team.rank];
    }
    place += __popc(all);
  }
  return true;
}

// The fewest blocks of a multiprocessor: a bound that keeps ptxas from spilling registers to make
// room for more of them.
template <Before kBefore, int kCount>
constexpr int kLeastBlocks = kCount < 32 || kBefore == Before::kNothing ? 0
                             : kBefore == Before::kTransform            ? 4
                                                                        : 3;

// Each thread holds kVectors vectors of V consecutive values. With kSlots there are candidates.
template <typename T, typename I, Before kBefore, int V, int kVectors, int kWarps, int kSlots>
__global__ void __launch_bounds__(kThreads, (kLeastBlocks<kBefore, kVectors * V>))
    select(const Params<T, I> p) {
  constexpr int kTeam = 32 * kWarps;
  constexpr int kRows = kThreads / kTeam;  // rows of a block
  constexpr int kCount = kVectors * V;
  constexpr bool kTransformed = kBefore != Before::kNothing;
  extern __shared__ int4 shared[];
  char* const own = reinterpret_cast<char*>(shared) + threadIdx.x / kTeam * p.row_bytes;
  __shared__ float2 scratch[kWarps];
  const Team<kWarps> team{reinterpret_cast<int*>(scratch), static_cast<int>(threadIdx.x % kTeam)};
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / kTeam;
  if (row >= p.num_rows) return;  // a whole team
  const T* x = p.x + row * p.width;

  RowTransform transform;
  if constexpr (kTransformed) transform = transform_of(p, row);
  float value[kCount];
  unsigned present = 0;
  float2 sums = {};  // of the values and of their squares
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    const int f = (c * kTeam + team.rank) * V;
    if (f < p.width) {  // then the whole vector is: V divides the width
      const Vector<T, V> vector = load_vector<T, V>(x + f);
      present |= ((1u << V) - 1) << (c * V);
#pragma unroll
      for (int i = 0; i < V; ++i) value[c * V + i] = unpack(vector, i);
      if constexpr (kBefore == Before::kTransform) apply<V>(p, transform, f, value + c * V);
      if constexpr (kBefore != Before::kNormalize) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const float v = value[c * V + i];
          sums.x += v;
          sums.y += v * v;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) value[c * V + i] = -INFINITY;
    }
  }
  if constexpr (kBefore == Before::kNormalize) {
    const float inverse_deviation =
        center<V, kVectors>(team, p.width, p.inverse_width, p.epsilon, value);
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      const int f = (c * kTeam + team.rank) * V;
      if (f >= p.width) continue;
      float scale[V];
      load_floats<V>(transform.scale + f, scale);
#pragma unroll
      for (int i = 0; i < V; ++i) value[c * V + i] *= inverse_deviation * scale[i];
      apply<V>(p, transform, f, value + c * V);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float v = value[c * V + i];
        sums.x += v;
        sums.y += v * v;
      }
    }
  }
  Choice choice{present, 0, 0};
  bool by_key = p.k == p.width;
  if (p.k < p.width) {
    sums = team.sum(sums);
    const float mean = sums.x * p.inverse_width;
    const float variance = sums.y * p.inverse_width - mean * mean;
    const float deviation = variance * rsqrtf(variance);
    // False with NaN and infinities: then the keys decide.
    const bool regular = deviation > 0.0f && deviation < INFINITY;
    bool chosen = false;
    if constexpr (kTransformed) {
      if (regular && p.keys != nullptr) chosen = choose_at_zero(team, value, p.k, choice);
    }
    if constexpr (kSlots > 0) {
      float* values = reinterpret_cast<float*>(own);
      if (!chosen && regular &&
          select_candidates<kSlots, V, kVectors>(p, team, row, value, mean, deviation, values,
                                                 reinterpret_cast<I*>(values + kSlots * 32))) {
        return;
      }
      __syncwarp();
    }
    if (!chosen &&
        (!regular || !choose_by_value(team, value, -INFINITY, 0, mean + p.quantile * deviation,
                                      p.distance * deviation, p.k, choice))) {
      int key[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        key[i] = (present >> i & 1) != 0 ? key_of(value[i]) : kAbsent;
      }
      choice = choose_by_key(team, key, p.k);
      by_key = true;
    }
  }
  if (choice.spare > 0) settle_ties<V, kVectors>(team, choice);

  T* values = reinterpret_cast<T*>(own);
  I* columns = reinterpret_cast<I*>(values + p.k);
  const auto keep = [&](int i) { return (choice.above >> i & 1) != 0; };
  emit_kept<V, kVectors>(find_places<V, kVectors>(team, keep), keep, [&](int i, int place) {
    const int f = column_of<V, kTeam>(i, team.rank);
    // Conversions would change the bits of a NaN.
    values[place] = by_key && !kTransformed ? x[f] : narrow<T, float>(value[i]);
    columns[place] = static_cast<I>(f);
  });
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  for (int c = team.rank; c < p.k; c += kTeam) {
    p.values[row * p.k + c] = values[c];
    p.columns[row * p.k + c] = columns[c];
  }
}

// The value that a standard normal variable exceeds with this probability, by bisection.
double upper_quantile(double probability) {
  double low = -40.0, high = 40.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > probability ? low : high) = middle;
  }
  return low;
}

// The standard normal distribution at what it exceeds with a probability.
struct Normal {
  double quantile;
  double density;
};

Normal normal_at(double probability) {
  const double quantile = upper_quantile(probability);
  return {quantile, std::exp(-0.5 * quantile * quantile) / std::sqrt(2.0 * M_PI)};
}

// How many candidates a lane has (0: none are used), and how many a row has at first.
struct Candidates {
  int slots;
  double aim;
};

// Of a distribution without tails, such as a uniform one, hardly a value is beyond the point that a
// normal one exceeds with this share: fewer candidates than that are not aimed at.
constexpr double kLeastShare = 0.08;

Candidates candidates_of(int64_t k, int64_t width) {
  const double share = static_cast<double>(k) / static_cast<double>(width);
  double spread = std::sqrt(static_cast<double>(k) * (1.0 - share));
  double aim = static_cast<double>(k) + 1.5 * spread;
  if (const double least = kLeastShare * static_cast<double>(width); aim < least) {
    aim = least;
    spread = std::sqrt(aim);
  }
  for (int slots : {2, 4}) {
    if (aim + 3.0 * spread <= 32 * slots && 64 * slots <= width) return {slots, aim};
  }
  return {0, static_cast<double>(k)};
}

// Calls f(kernel, rows of a block) with the kernel for a width that a warp holds in vectors, or to
// load with each of them.
template <typename T, typename I, Before kBefore, int kSlots, typename F>
cudaError_t with_vectors(const Launch& launch, int64_t width, F f) {
  constexpr int V = 16 / sizeof(T);
  constexpr bool kNarrow = sizeof(I) == 1;  // widths to 256
  constexpr int kFew = kNarrow ? 1 : 16 / V, kMany = kNarrow ? 8 / V : 32 / V;
  const bool few = width <= (kNarrow ? 32 * V : 512);
  if (launch.load || few) JAXGNN_TRY(f(select<T, I, kBefore, V, kFew, 1, kSlots>, 4));
  if (launch.load || !few) JAXGNN_TRY(f(select<T, I, kBefore, V, kMany, 1, kSlots>, 4));
  return cudaSuccess;
}

// The same for any width; `vectorized` says that 16 bytes are aligned.
template <typename T, typename I, Before kBefore, typename F>
cudaError_t with_select(const Launch& launch, int64_t width, bool vectorized, int slots, F f) {
  constexpr int V = 16 / sizeof(T);
  if constexpr (sizeof(I) == 1) {
    if (launch.load || !vectorized) JAXGNN_TRY(f(select<T, I, kBefore, 1, 8, 1, 0>, 4));
  } else {
    const bool wide = width > 1024;
    if (launch.load || (wide && vectorized)) {
      JAXGNN_TRY(f(select<T, I, kBefore, V, 32 / V, 4, 0>, 1));
    }
    if (launch.load || (wide && !vectorized)) {
      JAXGNN_TRY(f(select<T, I, kBefore, 1, 32, 4, 0>, 1));
    }
    if (launch.load || (!wide && !vectorized)) {
      JAXGNN_TRY(f(select<T, I, kBefore, 1, 32, 1, 0>, 4));
    }
    if (!launch.load && wide) return cudaSuccess;
  }
  if (!launch.load && !vectorized) return cudaSuccess;
  if (launch.load || slots == 2) {
    JAXGNN_TRY((with_vectors<T, I, kBefore, 2>(launch, width, f)));
  }
  if (launch.load || slots == 4) {
    JAXGNN_TRY((with_vectors<T, I, kBefore, 4>(launch, width, f)));
  }
  if (launch.load || slots == 0) {
    JAXGNN_TRY((with_vectors<T, I, kBefore, 0>(launch, width, f)));
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_maxk(const MaxkArgs& args, const Launch& launch) {
  if (!launch.load && args.num_rows == 0) return cudaSuccess;
  return with_types(launch, args.type, args.width, [&](auto tag, auto index) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index)::type;
    const auto aligned = [](const void* data) {
      return reinterpret_cast<uintptr_t>(data) % 16 == 0;
    };
    const bool vectorized = args.width % (16 / sizeof(T)) == 0 && aligned(args.x) &&
                            aligned(args.bias) && aligned(args.scale);
    Candidates candidates{0, 0.0};
    if (!launch.load && vectorized && args.width <= 1024)
      candidates = candidates_of(args.k, args.width);
    int64_t row_bytes = args.k * (sizeof(T) + sizeof(I));
    row_bytes = std::max<int64_t>(row_bytes, candidates.slots * 32 * (sizeof(float) + sizeof(I)));
    row_bytes = (row_bytes + 15) / 16 * 16;
    const double width = static_cast<double>(args.width);
    const Normal exact = normal_at(static_cast<double>(args.k) / width);
    const Normal low = normal_at(candidates.aim / width);
    const Params<T, I> p{
        static_cast<const T*>(args.x),
        static_cast<T*>(args.values),
        static_cast<I*>(args.indices),
        args.num_rows,
        static_cast<int>(args.width),
        static_cast<int>(args.k),
        static_cast<float>(exact.quantile),
        static_cast<float>(1.0 / (width * exact.density)),
        static_cast<float>(1.0 / width),
        static_cast<float>(low.quantile),
        static_cast<float>(1.0 / (width * low.density)),
        static_cast<int>(row_bytes),
        static_cast<const float*>(args.bias),
        args.keys,
        args.bias_of_each ? static_cast<int>(args.width) : 0,
        args.key_of_each ? 2 : 0,
        args.rows_per_example,
        ~uint64_t{0} / static_cast<uint64_t>(std::max<int64_t>(args.rows_per_example, 1)),
        args.drop_below,
        static_cast<float>(keep_scale(args.drop_below)),
        static_cast<const float*>(args.scale),
        args.scale_of_each ? static_cast<int>(args.width) : 0,
        static_cast<float>(args.epsilon)};
    const auto run = [&](auto kernel, int rows) {
      return launch_kernel(launch, kernel, blocks_of(args.num_rows, rows), kThreads,
                           rows * row_bytes, p);
    };
    const bool normalized = args.scale != nullptr;
    const bool plain = !normalized && args.bias == nullptr && args.keys == nullptr;
    const auto run_after = [&](auto before) {
      return with_select<T, I, decltype(before)::value>(launch, args.width, vectorized,
                                                        candidates.slots, run);
    };
    using std::integral_constant;
    if (launch.load || plain) {
      JAXGNN_TRY(run_after(integral_constant<Before, Before::kNothing>{}));
    }
    if (launch.load || (!plain && !normalized)) {
      JAXGNN_TRY(run_after(integral_constant<Before, Before::kTransform>{}));
    }
    if (launch.load || normalized) {
      JAXGNN_TRY(run_after(integral_constant<Before, Before::kNormalize>{}));
    }
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::maxk
