// Vectors of a compile-time number of lanes, and the conversions between storage and arithmetic.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)  // with F16C, as it is compiled here
#include <immintrin.h>
#endif

#if defined(__clang__)
#define JAXGNN_UNROLL _Pragma("unroll")
#else
#define JAXGNN_UNROLL _Pragma("GCC unroll 16")
#endif
#define JAXGNN_INLINE inline __attribute__((always_inline))
// One copy for all that call it: kernels are compiled for many shapes, whose loops over rows are
// all that has to differ.
#define JAXGNN_OUTLINE __attribute__((noinline))

namespace jaxgnn {
namespace {

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// The type that products are summed in.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

template <class E, int N>
struct VectorOf {
  typedef E type __attribute__((vector_size(N * sizeof(E))));
};
template <class E, int N>
using Vector = typename VectorOf<E, N>::type;

template <class T, int N>
using Sum = Vector<Accumulator<T>, N>;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRegisters = 32;
#else  // that of old processors: it need not be fast
constexpr int kVectorBytes = 16, kRegisters = 8;
#endif

// Lanes of a full vector of sums.
template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Accumulator<T>));

template <class To, class From>
JAXGNN_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// What T is stored as.
template <class T>
struct StorageOf {
  using type = T;
};
template <>
struct StorageOf<bfloat16> {
  using type = uint16_t;
};
template <>
struct StorageOf<float16> {
  using type = uint16_t;
};
template <class T, int N>
using Stored = Vector<typename StorageOf<T>::type, N>;

// Storage to sums (widen) and back (round; `rounded` widens again), to nearest, ties to even. NaN
// stays NaN.
template <class T, int N>
struct Convert {  // float and double
  static JAXGNN_INLINE Sum<T, N> widen(Stored<T, N> v) { return v; }
  static JAXGNN_INLINE Stored<T, N> round(Sum<T, N> v) { return v; }
  static JAXGNN_INLINE Sum<T, N> rounded(Sum<T, N> v) { return v; }
};

template <int N>
struct Convert<bfloat16, N> {
  static JAXGNN_INLINE Vector<float, N> widen(Vector<uint16_t, N> v) {
    // Spelt out where GCC would convert by halves.
#if defined(__AVX512F__)
    if constexpr (N == 16) {
      const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);
      return (Vector<float, N>)_mm512_maskz_slli_epi32(0xffff, wide, 16);
    }
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
      return (Vector<float, N>)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)v), 16);
    }
#endif
    return bit_cast<Vector<float, N>>(__builtin_convertvector(v, Vector<uint32_t, N>) << 16);
  }
  static JAXGNN_INLINE Vector<uint16_t, N> round(Vector<float, N> v) {
    return __builtin_convertvector(bit_cast<Vector<uint32_t, N>>(rounded(v)) >> 16,
                                   Vector<uint16_t, N>);
  }
  static JAXGNN_INLINE Vector<float, N> rounded(Vector<float, N> v) {
    using U = Vector<uint32_t, N>;
    const U bits = bit_cast<U>(v);
    const U nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const U quiet = (bits & 0xffff0000u) | 0x400000u;
    return bit_cast<Vector<float, N>>(v == v ? nearest : quiet);
  }
};

template <int N>
struct Convert<float16, N> {
  static JAXGNN_INLINE Vector<float, N> widen(Vector<uint16_t, N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return (Vector<float, N>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)v);
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) return (Vector<float, N>)_mm256_cvtph_ps((__m128i)v);
    if constexpr (N <= 4) {
      __m128i half = _mm_setzero_si128();
      std::memcpy(&half, &v, sizeof(v));
      const __m128 wide = _mm_cvtph_ps(half);
      Vector<float, N> result;
      std::memcpy(&result, &wide, sizeof(result));
      return result;
    }
#endif
    using U = Vector<uint32_t, N>;
    const U half = __builtin_convertvector(v, U);
    const U exponent = half & 0x7c00u;
    // Subnormals go through an integer conversion: as float32 bits they may be flushed to zero.
    const U subnormal = bit_cast<U>(
        __builtin_convertvector(bit_cast<Vector<int32_t, N>>(half & 0x3ffu), Vector<float, N>) *
        0x1p-24f);
    const U rebias = U{} + (112u << 23);
    const U normal = ((half & 0x7fffu) << 13) + rebias;
    const U finite = exponent == 0u ? subnormal : normal;
    const U bits = exponent == 0x7c00u ? normal + rebias : finite;
    return bit_cast<Vector<float, N>>(bits | ((half & 0x8000u) << 16));
  }
  static JAXGNN_INLINE Vector<uint16_t, N> round(Vector<float, N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 16) {
      return (Vector<uint16_t, N>)_mm512_maskz_cvtps_ph(0xffff, (__m512)v,
                                                        _MM_FROUND_TO_NEAREST_INT);
    }
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
      return (Vector<uint16_t, N>)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
    }
    if constexpr (N <= 4) {
      __m128 wide = _mm_setzero_ps();
      std::memcpy(&wide, &v, sizeof(v));
      const __m128i half = _mm_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
      Vector<uint16_t, N> result;
      std::memcpy(&result, &half, sizeof(result));
      return result;
    }
#endif
    using U = Vector<uint32_t, N>;
    const U bits = bit_cast<U>(v);
    const U magnitude = bits & 0x7fffffffu;
    const U sign = (bits >> 16) & 0x8000u;
    const U normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14: adding one half leaves the subnormal's mantissa, rounded, in the last bits.
    const U subnormal =
        bit_cast<U>(bit_cast<Vector<float, N>>(magnitude) + 0.5f) - bit_cast<uint32_t>(0.5f);
    const U finite = magnitude < 0x38800000u ? subnormal : normal;
    const U infinite = magnitude > 0x7f800000u ? U{} + 0x7e00u : U{} + 0x7c00u;
    const U half = magnitude >= 0x477ff000u ? infinite : finite;
    return __builtin_convertvector(half | sign, Vector<uint16_t, N>);
  }
  static JAXGNN_INLINE Vector<float, N> rounded(Vector<float, N> v) { return widen(round(v)); }
};

template <int N, class T>
JAXGNN_INLINE Sum<T, N> load(const T* from) {
  Stored<T, N> stored;
  std::memcpy(&stored, from, sizeof(stored));
  return Convert<T, N>::widen(stored);
}

template <int N, class T>
JAXGNN_INLINE void store(T* to, Sum<T, N> v) {
  const Stored<T, N> stored = Convert<T, N>::round(v);
  std::memcpy(to, &stored, sizeof(stored));
}

// Rounds a row of sums to T.
template <class T>
void store_row(T* to, const Accumulator<T>* from, int64_t width) {
  int64_t f = 0;
  for (; f + kLanes<T> <= width; f += kLanes<T>)
    store<kLanes<T>>(to + f, load<kLanes<T>>(from + f));
  for (; f < width; ++f) store<1>(to + f, load<1>(from + f));
}

// The larger; NaN if either is.
template <class V>
JAXGNN_INLINE V maximum(V a, V b) {
  if constexpr (!std::is_arithmetic_v<V>) {
    // GCC selects between vectors of one lane by branches.
    if constexpr (sizeof(V) == sizeof(a[0])) return V{maximum(a[0], b[0])};
  }
  const V larger = a > b ? a : b;
  return a == a ? larger : a;
}
JAXGNN_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
JAXGNN_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace
}  // namespace jaxgnn
