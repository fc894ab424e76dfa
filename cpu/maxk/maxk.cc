#include "cpu/maxk/maxk.h"

#include <atomic>
#include <limits>
#include <type_traits>

#include "cpu/core/moments.h"
#include "cpu/maxk/cbsr.h"
#include "cpu/maxk/transform.h"

namespace jaxgnn::maxk {
namespace {

// The bits of a floating-point type: an integer of its size, and those of infinity.
template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = int32_t;
  static constexpr type kInfinity = 0x7f800000;
};
template <>
struct Bits<double> {
  using type = int64_t;
  static constexpr type kInfinity = 0x7ff0000000000000;
};
template <>
struct Bits<bfloat16> {
  using type = int16_t;
  static constexpr type kInfinity = 0x7f80;
};
template <>
struct Bits<float16> {
  using type = int16_t;
  static constexpr type kInfinity = 0x7c00;
};

template <class Key>
constexpr int kKeys = kVectorBytes / static_cast<int>(sizeof(Key));
template <class Key>
using Keys = Vector<Key, kKeys<Key>>;

constexpr int64_t kWord = 64;  // keys are padded to whole words of a mask

template <class Key>
JAXGNN_INLINE Keys<Key> load_keys(const Key* from) {
  Keys<Key> keys;
  std::memcpy(&keys, from, sizeof(keys));
  return keys;
}

// Integer keys in the order of the values: -0 as +0, and every NaN as the largest.
template <class T, class Key = typename Bits<T>::type>
JAXGNN_INLINE Keys<Key> keys_of(Keys<Key> bits) {
  constexpr Key kLargest = std::numeric_limits<Key>::max();
  const Keys<Key> magnitude = bits & kLargest;
  const Keys<Key> keys = bits < 0 ? -magnitude : magnitude;
  return magnitude > Bits<T>::kInfinity ? Keys<Key>{} + kLargest : keys;
}

// How many keys are at least `threshold`. A count is as wide as a key, so that comparisons are
// subtracted from it as they are; 4,096 fit into any.
template <class Key>
JAXGNN_INLINE int64_t count_from(const Key* keys, int64_t size, Key threshold) {
  Keys<Key> counts = {};
  for (int64_t f = 0; f < size; f += kWord) {
    JAXGNN_UNROLL
    for (int i = 0; i < kWord; i += kKeys<Key>) counts -= load_keys(keys + f + i) >= threshold;
  }
  int64_t count = 0;
  JAXGNN_UNROLL
  for (int lane = 0; lane < kKeys<Key>; ++lane) count += counts[lane];
  return count;
}

// Bit i says whether key i of 64 is at least `threshold`.
template <class Key>
JAXGNN_INLINE uint64_t mask_from(const Key* keys, Key threshold) {
  uint64_t mask = 0;
#if defined(__AVX512F__)
  JAXGNN_UNROLL
  for (int i = 0; i < kWord; i += kKeys<Key>) {
    const __m512i own = (__m512i)load_keys(keys + i);
    uint64_t bits;
    if constexpr (sizeof(Key) == 2) {
      bits = _mm512_cmpge_epi16_mask(own, _mm512_set1_epi16(threshold));
    } else if constexpr (sizeof(Key) == 4) {
      bits = _mm512_cmpge_epi32_mask(own, _mm512_set1_epi32(threshold));
    } else {
      bits = _mm512_cmpge_epi64_mask(own, _mm512_set1_epi64(threshold));
    }
    mask |= bits << i;
  }
#else
  for (int i = 0; i < kWord; ++i) mask |= uint64_t{keys[i] >= threshold} << i;
#endif
  return mask;
}

// The lowest `count` bits that are set.
JAXGNN_INLINE uint64_t lowest_bits(uint64_t mask, int64_t count) {
  if (count >= __builtin_popcountll(mask)) return mask;
  uint64_t rest = mask;
  for (; count > 0; --count) rest &= rest - 1;
  return mask & ~rest;
}

// The k largest of one row, by a bisection over the keys that ends as soon as exactly k are above.
// With `zeros` there may be many, of which no bound parts k: then 0 is tried first.
template <class T, class Index>
void select_row(const T* x, int64_t width, int64_t k, bool zeros, T* values, Index* indices) {
  using Key = typename Bits<T>::type;
  using Unsigned = std::make_unsigned_t<Key>;
  constexpr Key kLeast = std::numeric_limits<Key>::min();  // the key of no number
  constexpr int N = kKeys<Key>;
  alignas(64) Key keys[kMaxWidth];
  Keys<Key> least = {}, most = {};
  for (int64_t f = 0; f < width; f += N) {
    Keys<Key> bits = {};
    std::memcpy(&bits, x + f, sizeof(Key) * min_of(N, width - f));
    const Keys<Key> own = keys_of<T>(bits);
    least = own < least ? own : least;
    most = own > most ? own : most;
    std::memcpy(keys + f, &own, sizeof(own));
  }
  const int64_t size = (width + kWord - 1) / kWord * kWord;
  for (int64_t f = width; f < size; ++f) keys[f] = kLeast;
  Key low = 0, high = 0;
  JAXGNN_UNROLL
  for (int lane = 0; lane < N; ++lane) {
    low = least[lane] < low ? least[lane] : low;
    high = most[lane] > high ? most[lane] : high;
  }

  // At least k keys reach `low`, and fewer reach what is above `high`.
  if (zeros) {
    if (count_from(keys, size, Key{1}) >= k) {
      low = 1;
    } else if (count_from(keys, size, Key{0}) >= k) {
      low = high = 0;
    } else {
      high = -1;
    }
  }
  bool exactly = false;
  while (low < high && !exactly) {
    const Unsigned distance = static_cast<Unsigned>(high) - static_cast<Unsigned>(low);
    const Key middle =
        static_cast<Key>(static_cast<Unsigned>(high) - static_cast<Unsigned>(distance / 2));
    const int64_t count = count_from(keys, size, middle);
    exactly = count == k;
    if (count >= k) {
      low = middle;
    } else {
      high = static_cast<Key>(middle - 1);
    }
  }

  // All keys above `low`, and of those that equal it the first.
  const bool largest = low == std::numeric_limits<Key>::max();
  const Key next = static_cast<Key>(largest ? low : low + 1);
  int64_t room = exactly ? k : k - (largest ? 0 : count_from(keys, size, next));
  int64_t kept = 0;
  for (int64_t f = 0; f < width; f += kWord) {
    uint64_t mask = mask_from(keys + f, low);
    if (!exactly) {
      const uint64_t above = largest ? 0 : mask_from(keys + f, next);
      const uint64_t equal = lowest_bits(mask & ~above, room);
      room -= __builtin_popcountll(equal);
      mask = above | equal;
    }
    for (; mask != 0; mask &= mask - 1, ++kept) {
      const int64_t feature = f + __builtin_ctzll(mask);
      values[kept] = x[feature];
      indices[kept] = static_cast<Index>(feature);
    }
  }
}

// One row with its normalization, bias and dropout.
template <class T>
void transform_row(const MaxkArgs& args, int64_t row, T* out) {
  using A = Accumulator<T>;
  constexpr int N = kLanes<T>;
  using Mask = Vector<std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>, N>;
  alignas(64) uint32_t words[kMaxWidth + kDrawn];
  const int64_t example = row / args.rows_per_example;
  const T* x = static_cast<const T*>(args.x) + row * args.width;
  const A* scale = static_cast<const A*>(args.scale);
  const A* bias = static_cast<const A*>(args.bias);
  if (scale != nullptr && args.scale_of_each) scale += example * args.width;
  if (bias != nullptr && args.bias_of_each) bias += example * args.width;
  Moments<A> moments{};
  if (scale != nullptr) moments = moments_of(x, args.width, args.epsilon);
  if (args.keys != nullptr) {
    const uint32_t* key = args.keys + (args.key_of_each ? 2 * example : 0);
    draw_words(static_cast<uint64_t>(row - example * args.rows_per_example), key, args.width,
               words);
  }
  const A keep = static_cast<A>(keep_scale(args.drop_below));
  // `count` values from column f on; known when compiled, but for the last.
  const auto transform = [&](int64_t f, auto count) {
    const size_t size = static_cast<size_t>(static_cast<int64_t>(count));
    const auto parameters = [&](const A* from) {
      Sum<T, N> loaded = {};
      std::memcpy(&loaded, from + f, size * sizeof(A));
      return loaded;
    };
    Stored<T, N> stored = {};
    std::memcpy(&stored, x + f, size * sizeof(T));
    Sum<T, N> v = Convert<T, N>::widen(stored);
    if (scale != nullptr) v = (v - moments.mean) * moments.inverse_deviation * parameters(scale);
    if (bias != nullptr) v += parameters(bias);
    if (args.keys != nullptr) {
      Vector<uint32_t, N> drawn;
      std::memcpy(&drawn, words + f, sizeof(drawn));
      const Mask below = Mask{} + args.drop_below;
      v = __builtin_convertvector(drawn, Mask) >= below ? v * keep : Sum<T, N>{};
    }
    stored = Convert<T, N>::round(v);
    std::memcpy(static_cast<void*>(out + f), &stored, size * sizeof(T));
  };
  int64_t f = 0;
  for (; f + N <= args.width; f += N) transform(f, std::integral_constant<int64_t, N>{});
  if (f < args.width) transform(f, args.width - f);
}

template <class T, class Index>
void select_rows(const MaxkArgs& args, const Executor& executor) {
  const int64_t bytes = args.width * static_cast<int64_t>(sizeof(T));
  over_blocks(executor, args.num_rows, bytes, [&](int64_t first, int64_t last) {
    alignas(64) T transformed[kMaxWidth];
    for (int64_t row = first; row < last; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.width;
      if (args.scale != nullptr || args.bias != nullptr || args.keys != nullptr) {
        transform_row(args, row, transformed);
        x = transformed;
      }
      select_row(x, args.width, args.k, args.keys != nullptr,
                 static_cast<T*>(args.values) + row * args.k,
                 static_cast<Index*>(args.indices) + row * args.k);
    }
  });
}

template <class T, class Index>
void scatter_rows(const CbsrScatterArgs& args, const Executor& executor) {
  const Cbsr& cbsr = args.cbsr;
  const int64_t bytes = cbsr.width * static_cast<int64_t>(sizeof(T));
  over_blocks(executor, cbsr.num_rows, bytes, [&](int64_t first, int64_t last) {
    T* out = static_cast<T*>(args.out) + first * cbsr.width;
    for (int64_t row = first; row < last; ++row, out += cbsr.width) {
      const T* values = values_of<T>(cbsr, row);
      const Index* indices = indices_of<Index>(cbsr, row);
      std::memset(static_cast<void*>(out), 0, static_cast<size_t>(bytes));
      for (int64_t c = 0; c < cbsr.k; ++c) out[indices[c]] = values[c];
    }
  });
}

template <class Index>
bool in_range(const Cbsr& cbsr, const Executor& executor) {
  if (cbsr.width > std::numeric_limits<Index>::max()) return true;
  constexpr int N = kKeys<Index>;
  const Index bound = static_cast<Index>(cbsr.width);
  const Index* indices = static_cast<const Index*>(cbsr.indices);
  std::atomic<bool> fits{true};
  const int64_t size = cbsr.num_rows * cbsr.k;
  over_blocks(executor, size, sizeof(Index), [&](int64_t first, int64_t last) {
    Keys<Index> largest = {};
    for (int64_t i = first; i + N <= last; i += N) {
      const Keys<Index> own = load_keys(indices + i);
      largest = own > largest ? own : largest;
    }
    bool below = true;
    for (int lane = 0; lane < N; ++lane) below = below && largest[lane] < bound;
    for (int64_t i = max_of(first, last - N); i < last; ++i) below = below && indices[i] < bound;
    if (!below) fits.store(false, std::memory_order_relaxed);
  });
  return fits.load(std::memory_order_relaxed);
}

}  // namespace

namespace JAXGNN_ISA {

void maxk(const MaxkArgs& args, const Executor& executor) {
  if (args.num_rows == 0) return;
  with_type(args.type, [&](auto type) {
    with_index(args.width > 256,
               [&](auto index) { select_rows<decltype(type), decltype(index)>(args, executor); });
  });
}

void cbsr_scatter(const CbsrScatterArgs& args, const Executor& executor) {
  if (args.cbsr.num_rows == 0) return;
  with_type(args.type, [&](auto type) {
    with_index(args.cbsr.width > 256,
               [&](auto index) { scatter_rows<decltype(type), decltype(index)>(args, executor); });
  });
}

bool cbsr_in_range(const Cbsr& cbsr, const Executor& executor) {
  bool fits = true;
  with_index(cbsr.width > 256,
             [&](auto index) { fits = in_range<decltype(index)>(cbsr, executor); });
  return fits;
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::maxk
