// The forward product over windows: CBSR rows, and their sums in fixed point.
#pragma once

#include "cuda/core/shared.cuh"
#include "cuda/maxk/windows.cuh"

namespace jaxgnn::maxk {

// A lane's share of a CBSR row as stored in memory, which occupies few registers while in flight.
template <typename T, typename I, int kPer>
struct Values {
  Vector<T, kPer> values;
  Vector<I, kPer> columns;

  static __device__ Values load(const WindowParams<T, I>& p, int sender, int c) {
    const unsigned at = entry_at(p, sender, c);
    return {load_vector<T, kPer>(p.values + at), load_vector<I, kPer>(p.columns + at)};
  }
  __device__ float value(int i) const { return unpack(values, i); }
  __device__ unsigned column(int i) const { return column_of(columns, i); }
};

// The same of words that hold a value, widened to float32, and its column each.
template <typename I>
struct Words {
  static constexpr unsigned kColumn = (1u << kColumnBits<I>)-1;
  Vector<float, 4> words;

  template <typename T>
  static __device__ Words load(const WindowParams<T, I>& p, int sender, int c) {
    return {
        load_vector<float, 4>(reinterpret_cast<const float*>(p.words) + entry_at(p, sender, c))};
  }
  __device__ float value(int i) const { return __uint_as_float(words.bits[i] & ~kColumn); }
  __device__ unsigned column(int i) const { return words.bits[i] & kColumn; }
};

// Whether there are kernels that read words, with the share S: of 16-bit values and columns only
// for short CBSR rows. Other kernels read the values and columns beside them.
template <typename T, typename I, typename S>
constexpr bool kReadsWords = S::kPer == 4 && (sizeof(I) == 1 || sizeof(T) == 4 || S::kSpan <= 16);

// Stores four finished features of a row of `dense`, divided by its degree for a mean.
template <typename T, typename I, typename D>
__device__ inline void finish(const WindowParams<T, I>& p, D* dense, int row, int f,
                              float (&result)[4]) {
  if (p.mean) divide_by_degree(p, row, result);
  store_vector<D, 4, float>(dense + int64_t(row) * p.width + f, result);
}

// Sums of small CBSR rows are added to results, which only float32 keeps exactly enough; rows of
// other types that have any are flagged.
template <typename T>
constexpr bool kListsSmall = kTypeOf<T> == Type::kF32;

// Of a part's rows, where CBSR rows differ in size: a bound on the sums, from the sizes in fixed
// point and rounded up, and the bits of the smallest size that is not 0.
struct Bounds {
  int sum[kWindowRows];
  unsigned smallest[kWindowRows];

  __device__ void clear(int r) {
    sum[r] = 0;
    smallest[r] = kNoSize;
  }
};

static_assert(sizeof(Bounds) <= kLeastWindowBytes);

// Entries with a CBSR row that is small for one of its rows.
constexpr int kMostSmall = 1024;
struct SmallEntries {
  int count;  // more than kMostSmall: not all are listed, and all entries are looked through
  int entry[kMostSmall];
  bool in_row[kWindowRows];
};

// The unit of the bounds: the sum of all of a part's CBSR rows is at most 2^30 and one for each.
template <typename T, typename I>
__device__ inline float bound_unit(const WindowParams<T, I>& p, const Part& part) {
  const float most = 0x1p30f / static_cast<float>(part.end - part.begin);
  return __uint_as_float(p.range[kRangeLargest]) / most;
}

// Adds an entry to the bounds of its rows r for which takes(r, size).
template <typename T, typename I, typename Takes>
__device__ inline void add_bounds(const WindowParams<T, I>& p, int entry, float unit,
                                  Bounds& bounds, Takes takes) {
  const float size = p.sizes[p.windows.senders[entry]];
  if (size == 0.0f) return;
  const int bound = __float2int_ru(size * (1.0f / unit));
  over_receivers(p.windows.masks[entry], [&](int r) {
    if (!takes(r, size)) return;
    atomicAdd(bounds.sum + r, bound);
    atomicMin(bounds.smallest + r, __float_as_uint(size));
  });
}

// What is added of a lane's share of a CBSR row, and where: addresses in the first receiver's row.
template <int kPer>
struct Terms {
  float value[kPer];
  unsigned address[kPer];

  template <typename CbsrRow>
  __device__ Terms(const CbsrRow& cbsr_row, unsigned sums) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      value[i] = cbsr_row.value(i);
      address[i] = sums + cbsr_row.column(i) * unsigned(sizeof(int));
    }
  }
  // To a receiver's row, `offset` bytes from the first.
  __device__ void add(unsigned offset, float scale) const {
    int term[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) term[i] = __float2int_rn(value[i] * scale);
#pragma unroll
    for (int i = 0; i < kPer; ++i) add_shared(address[i] + offset, term[i]);
  }
};

// The scales of a part's rows, in shared memory.
struct Scales {
  float scale[kWindowRows];
  int most[kWindowRows / 32];  // terms of a row
};

// What else is known of rows whose small CBSR rows are listed.
struct Listed {
  float least[kWindowRows];  // size of a CBSR row that is not small
  int terms[kWindowRows];    // at most
  SmallEntries small;

  __device__ void clear(int r, float least_of_row, int terms_of_row) {
    least[r] = least_of_row;
    terms[r] = terms_of_row;
    small.in_row[r] = false;
    if (r == 0) small.count = 0;
  }
};

// Of a window's rows, [rows, stride].
__device__ inline void clear_sums(int2* sums, int rows, int stride) {
  for (int i = threadIdx.x; i < rows * stride / 2; i += kWindowThreads) sums[i] = make_int2(0, 0);
}

// Four of a row's, from feature f on.
__device__ inline int4 load_sums(const int2* sums, int stride, int r, int f) {
  const int at = (r * stride + f) / 2;
  const int2 low = sums[at], high = sums[at + 1];
  return make_int4(low.x, low.y, high.x, high.y);
}

// A part's r-th row; -1: none.
template <typename T, typename I>
__device__ inline int receiver_of(const WindowParams<T, I>& p, const Part& part, int r) {
  return p.windows.rows[part.window * p.rows() + r];
}

// The same for each of the 64 rows that a window may have.
template <typename T, typename I>
__device__ inline int receiver_if_any(const WindowParams<T, I>& p, const Part& part, int r) {
  if constexpr (sizeof(I) > 1) {
    if (r >= p.rows()) return -1;
  }
  return receiver_of(p, part, r);
}

// Whether rows whose CBSR rows are alike have one scale, that of the row with most terms: a term is
// then converted once an entry instead of once an edge. A row of one term keeps 19 bits of the
// largest CBSR row, for parts of rows have at most 2^12 terms: enough for 16-bit results alone.
template <typename T>
constexpr bool kOneScale = kTypeOf<T> != Type::kF32;

// A bound on the sums of a part in this thread's row, of `terms` at most; negative if a CBSR row is
// small for it. Called by all threads together; 0 beyond the rows.
template <typename T, typename I>
__device__ inline float bound_of_part(const WindowParams<T, I>& p, const Part& part, int terms,
                                      Bounds& bounds) {
  const int r = threadIdx.x;
  if (r < kWindowRows) bounds.clear(r);
  __syncthreads();
  const float unit = bound_unit(p, part);
  for (int e = part.begin + r; e < part.end; e += kWindowThreads) {
    add_bounds(p, e, unit, bounds, [](int, float) { return true; });
  }
  __syncthreads();
  if (r >= kWindowRows || terms == 0) return 0.0f;
  const float bound = static_cast<float>(bounds.sum[r]) * unit;
  const bool has_small = __uint_as_float(bounds.smallest[r]) < least_size<T>(bound, terms);
  return has_small ? -bound : bound;
}

// Adds the sums of the small CBSR rows to the results.
template <typename S, typename CbsrRow, typename T, typename I>
__device__ inline void add_small(const WindowParams<T, I>& p, const Part& part, int2* sums,
                                 const Listed& rows, Bounds& bounds, Scales& scales) {
  const SmallEntries& small = rows.small;
  const bool listed = small.count <= kMostSmall;
  const int count = listed ? small.count : part.end - part.begin;
  const auto entry = [&](int i) { return listed ? small.entry[i] : part.begin + i; };
  const auto is_small = [&](int r, float size) { return size < rows.least[r]; };
  __syncthreads();
  clear_sums(sums, p.rows(), p.stride);
  if (threadIdx.x < kWindowRows) bounds.clear(threadIdx.x);
  __syncthreads();
  const float unit = bound_unit(p, part);
  for (int i = threadIdx.x; i < count; i += kWindowThreads) {
    add_bounds(p, entry(i), unit, bounds, is_small);
  }
  __syncthreads();
  if (const int r = threadIdx.x; r < kWindowRows && small.in_row[r]) {
    const float bound = static_cast<float>(bounds.sum[r]) * unit;
    scales.scale[r] = fixed_scale(bound, rows.terms[r]);
    if (__uint_as_float(bounds.smallest[r]) < least_size<T>(bound, rows.terms[r])) {
      p.flags[receiver_of(p, part, r)] = 1;
    }
  }
  __syncthreads();
  const unsigned base = shared_address(sums), row_bytes = p.stride * unsigned(sizeof(int));
  for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
    for (int i = threadIdx.x / S::kLanes; i < count; i += kWindowThreads / S::kLanes) {
      const int e = entry(i);
      const int sender = p.windows.senders[e];
      const Terms<S::kPer> terms(CbsrRow::load(p, sender, c), base);
      const float size = p.sizes[sender];
      over_receivers(p.windows.masks[e], [&](int r) {
        if (is_small(r, size)) terms.add(r * row_bytes, scales.scale[r]);
      });
    }
  }
  __syncthreads();
  for (int r = threadIdx.x / 32; r < p.rows(); r += kWindowThreads / 32) {
    if (!small.in_row[r]) continue;
    const int row = receiver_of(p, part, r);
    const float unit_of_row = 1.0f / scales.scale[r];
    const bool whole = part.place < 0;
    const float factor =
        p.mean && whole ? unit_of_row / static_cast<float>(degree_of(p, row)) : unit_of_row;
    // The thread that stored a result here adds to it.
    float* target = whole ? reinterpret_cast<float*>(p.dense) + int64_t(row) * p.width
                          : p.partials + (int64_t(part.place) * p.rows() + r) * p.width;
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const int4 sum = load_sums(sums, p.stride, r, f);
      float4 result = *reinterpret_cast<float4*>(target + f);
      result.x += sum.x * factor, result.y += sum.y * factor;
      result.z += sum.z * factor, result.w += sum.w * factor;
      *reinterpret_cast<float4*>(target + f) = result;
    }
  }
}

// How many parts of a window follow this block's in a direction; the same in all lanes of a warp.
template <typename T, typename I>
__device__ inline int more_parts(const WindowParams<T, I>& p, int window, int step) {
  for (int count = 0;; count += 32) {
    const int i = int(blockIdx.x) + step * (count + 1 + int(threadIdx.x % 32));
    const bool same = i >= 0 && i < p.windows.num_parts && load_part(p.windows, i).window == window;
    const unsigned others = ~__ballot_sync(kFullWarp, same);
    if (others != 0) return count + __ffs(others) - 1;
  }
}

// Adds the parts of each split window in order. One block a part: those of a window share its rows,
// 128 features of one for each warp at a time, as a window may have many parts.
template <typename T, typename I, typename D>
__global__ void __launch_bounds__(kWindowThreads) join(const WindowParams<T, I> p, D* dense) {
  if (!has_scale(p.range)) return;
  const Part part = load_part(p.windows, blockIdx.x);
  if (part.place < 0) return;
  const int before = more_parts(p, part.window, -1);
  const int count = before + 1 + more_parts(p, part.window, 1);
  const int64_t size = int64_t(p.rows()) * p.width;
  const float* const partials = p.partials + (part.place - before) * size;
  constexpr int kWarps = kWindowThreads / 32;
  const int shares = (p.width + 127) / 128;  // of a row
  for (int i = before * kWarps + threadIdx.x / 32; i < p.rows() * shares; i += count * kWarps) {
    const int r = i / shares, f = i % shares * 128 + threadIdx.x % 32 * 4;
    const int row = receiver_of(p, part, r);
    if (row < 0 || f >= p.width) continue;
    const float* partial = partials + int64_t(r) * p.width + f;
    float result[4] = {};
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const float4 more = *reinterpret_cast<const float4*>(partial + k * size);
      result[0] += more.x, result[1] += more.y, result[2] += more.z, result[3] += more.w;
    }
    finish(p, dense, row, f, result);
  }
}

}  // namespace jaxgnn::maxk
