// Device-side helpers of the kernels on compressed balanced sparse rows (CBSR).
#pragma once

#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/rows.cuh"

namespace jaxgnn::maxk {

// Enough blocks to fill a GPU: the grid of a kernel that walks all its work with any grid, and that
// is launched in case another one could not do it.
constexpr unsigned kFallbackBlocks = 2048;

// kPer column indices of a CBSR row of k, from entry c on; 0 from k on.
template <typename I, int kPer>
__device__ inline void load_columns(const I* columns, int c, int k, int (&column)[kPer]) {
  if constexpr (kPer == 4) {  // k is a multiple of 4
    union {
      typename Word<sizeof(I) * 4>::type word;
      I i[4];
    } vector;
    if (c < k) {
      vector.word = __ldg(reinterpret_cast<const decltype(vector.word)*>(columns + c));
    } else {
      vector.word = {};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) column[i] = vector.i[i];
  } else {
    column[0] = c < k ? __ldg(columns + c) : 0;
  }
}

// The values there, in float.
template <typename T, int kPer>
__device__ inline void load_values(const T* values, int c, int k, float (&value)[kPer]) {
  if constexpr (kPer == 4) {
    Vector<T, 4> vector;
    if (c < k) {
      vector = load_vector<T, 4>(values + c);
    } else {
      vector.word = {};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = unpack(vector, i);
  } else {
    value[0] = c < k ? widen(values[c]) : 0.0f;
  }
}

// Bits of a column in one word with its value, which loses as many of its mantissa: of columns that
// are bytes 8, of 16-bit ones, which are below 1024 there, 10.
template <typename I>
constexpr int kColumnBits = sizeof(I) == 1 ? 8 : 10;

template <typename I>
__device__ inline uint32_t to_word(float value, int column) {
  constexpr uint32_t kMask = (1u << kColumnBits<I>)-1;
  return (__float_as_uint(value) & ~kMask) | static_cast<uint32_t>(column);
}

// f(Tag<T>{}, Tag<I>{}) for the T of `type` and the I of the width (columns of widths to 256 are
// bytes), or to load for all of them.
template <typename F>
cudaError_t with_types(const Launch& launch, Type type, int64_t width, F f) {
  return with_type(NarrowTypes{}, launch, type, [&](auto tag) {
    if (launch.load || width <= 256) JAXGNN_TRY(f(tag, Tag<uint8_t>{}));
    if (launch.load || width > 256) JAXGNN_TRY(f(tag, Tag<uint16_t>{}));
    return cudaSuccess;
  });
}

// The mapping of CBSR rows to a warp: kPer consecutive entries a lane, kLanes lanes a CBSR row, and
// the other lanes on other CBSR rows. CBSR rows longer than a warp's span need several steps.
template <int kPerLane, int kLanesPerCbsrRow>
struct Share {
  static constexpr int kPer = kPerLane;
  static constexpr int kLanes = kLanesPerCbsrRow;
  static constexpr int kGroups = 32 / kLanes;
  static constexpr int kSpan = kPer * kLanes;
};

// Calls f(Share<...>{}) for CBSR rows of k entries; `four` says that four at a time are aligned. To
// load, calls it for every share.
template <typename F>
cudaError_t with_share(const Launch& launch, int64_t k, bool four, F f) {
  if (launch.load) {
    JAXGNN_TRY(f(Share<1, 8>{}));
    JAXGNN_TRY(f(Share<1, 32>{}));
    JAXGNN_TRY(f(Share<4, 2>{}));
    JAXGNN_TRY(f(Share<4, 4>{}));
    JAXGNN_TRY(f(Share<4, 8>{}));
    JAXGNN_TRY(f(Share<4, 16>{}));
    return f(Share<4, 32>{});
  }
  if (!four) return k <= 8 ? f(Share<1, 8>{}) : f(Share<1, 32>{});
  if (k <= 8) return f(Share<4, 2>{});
  if (k <= 16) return f(Share<4, 4>{});
  if (k <= 32) return f(Share<4, 8>{});
  if (k <= 64) return f(Share<4, 16>{});
  return f(Share<4, 32>{});
}

}  // namespace jaxgnn::maxk
