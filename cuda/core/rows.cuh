// Device-side helpers of the row-wise kernels: which edges a worker takes, loads, conversions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/rows.h"

namespace jaxgnn {

constexpr unsigned kFullWarp = 0xffffffffu;

// Accumulation type: float32 for the 16- and 32-bit types, float64 for float64.
template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};

__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float widen(__half v) { return __half2float(v); }

template <typename T, typename A>
__device__ inline T narrow(A v);
template <>
__device__ inline float narrow<float, float>(float v) {
  return v;
}
template <>
__device__ inline double narrow<double, double>(double v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16, float>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline __half narrow<__half, float>(float v) {
  return __float2half_rn(v);
}

// V values as one access of at most 16 bytes, kept as words: the compiler keeps arrays of 16-bit
// floats apart, one register each.
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

template <typename T, int V>
union Vector {
  typename Word<sizeof(T) * V>::type word;
  unsigned int bits[sizeof(T) * V >= 4 ? sizeof(T) * V / 4 : 1];
};

template <typename T, int V>
__device__ inline Vector<T, V> load_vector(const T* address) {
  Vector<T, V> vector;
  vector.word = __ldg(reinterpret_cast<const decltype(vector.word)*>(address));
  return vector;
}

// x + row * row_bytes. In C++ a loop would widen row_bytes once, and multiply 64 bits by 64.
template <typename T>
__device__ inline const T* row_of(const T* x, unsigned row, unsigned row_bytes) {
  uint64_t address;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(row_bytes), "l"(x));
  return reinterpret_cast<const T*>(address);
}

// Value i of a vector, in the accumulation type; i is a compile-time constant after unrolling.
template <int V>
__device__ inline float unpack(const Vector<float, V>& vector, int i) {
  return __uint_as_float(vector.bits[i]);
}
template <int V>
__device__ inline double unpack(const Vector<double, V>& vector, int i) {
  return __hiloint2double(vector.bits[2 * i + 1], vector.bits[2 * i]);
}
template <int V>
__device__ inline float unpack(const Vector<__nv_bfloat16, V>& vector, int i) {
  if constexpr (V == 1) return __uint_as_float(static_cast<unsigned>(vector.word) << 16);
  return __uint_as_float(i % 2 == 0 ? vector.bits[i / 2] << 16 : vector.bits[i / 2] & 0xffff0000u);
}
template <int V>
__device__ inline float unpack(const Vector<__half, V>& vector, int i) {
  if constexpr (V == 1) return __half2float(__ushort_as_half(vector.word));
  const unsigned word = vector.bits[i / 2];
  return __half2float(
      __ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? word : word >> 16)));
}

// The values rounded to T, as the word of a vector.
template <typename T, int V, typename A>
__device__ inline typename Word<sizeof(T) * V>::type pack(const A (&values)[V]) {
  union {
    typename Word<sizeof(T) * V>::type word;
    T v[V];
  } vector;
#pragma unroll
  for (int i = 0; i < V; ++i) vector.v[i] = narrow<T, A>(values[i]);
  return vector.word;
}

// To global memory.
template <typename T, int V, typename A>
__device__ inline void store_vector(T* address, const A (&values)[V]) {
  __stcs(reinterpret_cast<typename Word<sizeof(T) * V>::type*>(address), pack<T>(values));
}

// A range of edges for one worker (a warp, or a group of its lanes): a whole short row, or one
// chunk of a long row. Workers 0 .. num_chunks - 1 process the chunks, so that long rows start
// first.
struct Work {
  int64_t row;   // -1: nothing to do
  int64_t part;  // place among the partial results, or -1 for a whole row
  int64_t begin;
  int count;  // at most the chunk length
  int64_t degree;
};

__device__ inline int64_t load_offset(const Rows& rows, int64_t i) {
  return rows.wide_offsets ? static_cast<const int64_t*>(rows.offsets)[i]
                           : static_cast<const int32_t*>(rows.offsets)[i];
}

__device__ inline int64_t load_column(const Rows& rows, int64_t e) {
  if (rows.columns == nullptr) return e;
  return rows.wide_columns ? static_cast<const int64_t*>(rows.columns)[e]
                           : static_cast<const int32_t*>(rows.columns)[e];
}

// The graph's edge at a place of the rows; `p` has an `order`, or null.
template <typename P>
__device__ inline int64_t edge_number(const P& p, int64_t place) {
  if (p.order == nullptr) return place;
  return p.wide_order ? static_cast<const int64_t*>(p.order)[place]
                      : static_cast<const int32_t*>(p.order)[place];
}

// With a `row_limit` only the first so many edges of a row count, and there are no chunks.
__device__ inline Work find_work(const Rows& rows, int64_t worker, int64_t row_limit = INT64_MAX) {
  Work work{-1, -1, 0, 0, 0};
  int64_t part_start = 0;
  int64_t row = worker - rows.num_chunks;
  if (row < 0) {
    const RowPart chunk = rows.chunks[worker];
    if (chunk.row < 0) return work;
    row = chunk.row;
    part_start = chunk.part * rows.chunk_length;
    work.part = worker;
  }
  if (row >= rows.num_rows) return work;
  if (work.part < 0 && rows.order != nullptr) row = rows.order[row];
  const int64_t first = load_offset(rows, row);
  const int64_t degree = load_offset(rows, row + 1) - first;
  work.degree = degree < row_limit ? degree : row_limit;
  if (work.part < 0 && work.degree > rows.chunk_length) return work;  // its parts do it
  work.row = row;
  work.begin = first + part_start;
  const int64_t left = work.degree - part_start;
  work.count = static_cast<int>(left < rows.chunk_length ? left : rows.chunk_length);
  return work;
}

}  // namespace jaxgnn
