// MaxK's products over windows of 64 receivers.
//
// A block holds a window's 64 rows in shared memory and walks its entries: a sender and the mask
// of the receivers that it has edges to. A group of lanes takes an entry, four of the record's
// values and columns a lane. Forward: the record is read once, and added to each receiver's row at
// its columns. Backward: the rows' values at its columns are added in registers, and reduced into
// the sender's record once. Entries come in order of falling number of edges, so that the groups
// of a warp take equally long.
#include <type_traits>

#include "cbsr.cuh"
#include "fixed_point.cuh"
#include "maxk_windows.h"
#include "reduce_to.cuh"

namespace jaxgnn {
namespace {

constexpr int kThreads = 512;

template <typename T>
struct Params {
  Windows windows;
  const void* row_offsets;
  bool wide_offsets;
  bool mean;
  const T* values;
  const uint32_t* words;
  const uint8_t* columns;
  T* dense;
  float* partials;
  const uint32_t* range;
  const float* sizes;
  uint32_t* flags;
  void* sums;
  int64_t num_edges;
  int width;
  int k;
};

template <typename T>
__device__ inline int64_t degree_of(const Params<T>& p, int row) {
  if (p.wide_offsets) {
    const int64_t* offsets = static_cast<const int64_t*>(p.row_offsets);
    return offsets[row + 1] - offsets[row];
  }
  const int32_t* offsets = static_cast<const int32_t*>(p.row_offsets);
  return offsets[row + 1] - offsets[row];
}

// The receivers of an entry's mask, one after the other. The mask is not empty.
class Receivers {
 public:
  __device__ explicit Receivers(uint2 mask)
      : word_(mask.x != 0 ? mask.x : mask.y),
        rest_(mask.x != 0 ? mask.y : 0),
        first_(mask.x != 0 ? 0 : 32) {}
  __device__ int receiver() const { return first_ + __ffs(word_) - 1; }
  // To the next one; false after the last.
  __device__ bool next() {
    word_ &= word_ - 1;
    if (word_ == 0) {
      word_ = rest_;
      rest_ = 0;
      first_ = 32;
    }
    return word_ != 0;
  }

 private:
  unsigned word_;  // receivers first_ to first_ + 31
  unsigned rest_;  // the others, while they are to come
  int first_;
};

// Calls f(receiver) for each.
template <typename F>
__device__ inline void over_receivers(uint2 mask, F f) {
  if ((mask.x | mask.y) == 0) return;
  Receivers receivers(mask);
  do {
    f(receivers.receiver());
  } while (receivers.next());
}

// A 32-bit address in shared memory, computed once: of a generic pointer, and without the empty
// statement, the compiler computes it anew at each use.
__device__ inline unsigned shared_address(const void* pointer) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
  asm volatile("" : "+r"(address));
  return address;
}
__device__ inline void add_shared(unsigned address, int term) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(address), "r"(term) : "memory");
}
template <typename T>
__device__ inline T load_shared(unsigned address) {
  if constexpr (sizeof(T) == 4) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
    return value;
  } else {
    unsigned short bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
    return *reinterpret_cast<T*>(&bits);
  }
}

// A window, or a part of one that has many entries.
struct Part {
  int window;
  int begin;  // of its entries
  int end;
  int place;  // among the partial results; -1: the window's only part
};

__device__ inline Part load_part(const Windows& windows, int i) {
  const int4 part = windows.parts[i];
  return {part.x, part.y, part.z, part.w};
}

// Walks the entries of a part that fall to this thread's group: load(sender) gives a record, and
// visit(record, sender, mask, entry) takes it. Senders and masks are loaded ahead of their records,
// and records ahead of the visits. (A loop of its own for entries with a single edge was slower.)
template <typename Record, int kGroups, typename Load, typename Visit>
__device__ inline void walk(const Windows& windows, const Part& part, int group, Load load,
                            Visit visit) {
  struct Head {
    int sender;
    uint2 mask;
  };
  const auto head = [&](int e) {
    return e < part.end ? Head{__ldcs(windows.senders + e), __ldcs(windows.masks + e)} : Head{};
  };
  Head now = head(part.begin + group);
  Head next = head(part.begin + group + kGroups);
  Record record = load(now.sender);
  for (int e = part.begin + group; e < part.end; e += kGroups) {
    const Record next_record = load(next.sender);
    const Head after = head(e + 2 * kGroups);
    visit(record, now.sender, now.mask, e);
    now = next;
    next = after;
    record = next_record;
  }
}

// The place of a record's entry c. There are fewer than 2^32 of them (maxk_windows.h): addresses of
// 64 bits, computed from the start, take registers that the loops do not have.
template <typename T>
__device__ inline unsigned entry_at(const Params<T>& p, int sender, int c) {
  return static_cast<unsigned>(sender) * static_cast<unsigned>(p.k) + static_cast<unsigned>(c);
}

// A lane's share of a record as it lies in memory: it waits its turn in few registers so.
template <typename T, int kPer>
struct Values {
  Pack<T, kPer> values;
  Pack<uint8_t, kPer> columns;

  static __device__ Values load(const Params<T>& p, int sender, int c) {
    const unsigned at = entry_at(p, sender, c);
    return {load_pack<T, kPer>(p.values + at), load_pack<uint8_t, kPer>(p.columns + at)};
  }
  __device__ float value(int i) const { return unpack(values, i); }
  __device__ unsigned column(int i) const { return columns.word >> 8 * i & 0xffu; }
};

// The same of words that hold a value, widened to float32, and its column each.
struct Words {
  Pack<float, 4> words;

  template <typename T>
  static __device__ Words load(const Params<T>& p, int sender, int c) {
    return {load_pack<float, 4>(reinterpret_cast<const float*>(p.words) + entry_at(p, sender, c))};
  }
  __device__ float value(int i) const { return __uint_as_float(words.bits[i] & ~0xffu); }
  __device__ unsigned column(int i) const { return words.bits[i] & 0xffu; }
};

// Stores four finished features of a row, divided by its degree for a mean.
template <typename T>
__device__ inline void finish(const Params<T>& p, int row, int f, float (&result)[4]) {
  if (p.mean) {
    const float degree = static_cast<float>(max(degree_of(p, row), int64_t(1)));
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] = result[i] / degree;
  }
  store_pack<T, 4, float>(p.dense + int64_t(row) * p.width + f, result);
}

// Sums of small records are added to results, which only float32 keeps exactly enough; rows of
// other types that have any are flagged.
template <typename T>
constexpr bool kListsSmall = kTypeOf<T> == Type::kF32;

// Of a part's rows, where records differ in size: a bound on the sums, from the sizes in fixed
// point and rounded up, and the bits of the smallest size that is not 0.
struct Bounds {
  int sum[kWindowRows];
  unsigned smallest[kWindowRows];

  __device__ void clear(int r) {
    sum[r] = 0;
    smallest[r] = kNoSize;
  }
};

// Entries with a record that is small for one of its rows.
constexpr int kMostSmall = 1024;
struct SmallEntries {
  int count;  // more than kMostSmall: not all are listed, and all entries are looked through
  int entry[kMostSmall];
  bool in_row[kWindowRows];
};

// The unit of the bounds: the sum of all of a part's records is at most 2^30 and one for each.
template <typename T>
__device__ inline float bound_unit(const Params<T>& p, const Part& part) {
  const float most = 0x1p30f / static_cast<float>(part.end - part.begin);
  return __uint_as_float(p.range[kRangeLargest]) / most;
}

// Adds an entry to the bounds of its rows r for which takes(r, size). kSmallest: also finds theirs.
template <bool kSmallest, typename T, typename Takes>
__device__ inline void add_bounds(const Params<T>& p, int entry, float unit, Bounds& bounds,
                                  Takes takes) {
  const float size = p.sizes[p.windows.senders[entry]];
  if (size == 0.0f) return;
  const int bound = __float2int_ru(size * (1.0f / unit));
  over_receivers(p.windows.masks[entry], [&](int r) {
    if (!takes(r, size)) return;
    atomicAdd(bounds.sum + r, bound);
    if (kSmallest) atomicMin(bounds.smallest + r, __float_as_uint(size));
  });
}

// What is added of a lane's share of a record, and where: addresses in the first receiver's row.
template <int kPer>
struct Terms {
  float value[kPer];
  unsigned address[kPer];

  template <typename Record>
  __device__ Terms(const Record& record, unsigned sums) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      value[i] = record.value(i);
      address[i] = sums + record.column(i) * unsigned(sizeof(int));
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

// A part's sums in shared memory, and what is known of its rows.
struct Sums {
  int* sum;  // [64, width]
  float scale[kWindowRows];
  float least[kWindowRows];    // size of a record that is not small; 0 where all are alike
  int terms[kWindowRows];      // at most
  int most[kWindowRows / 32];  // of the terms
  int row[kWindowRows];        // -1: none

  __device__ void clear(int width) {
    for (int i = threadIdx.x; i < kWindowRows * width / 4; i += kThreads) {
      reinterpret_cast<int4*>(sum)[i] = make_int4(0, 0, 0, 0);
    }
  }
};

// Whether rows whose records are alike have one scale, that of the row with most terms: a term is
// then converted once an entry instead of once an edge. A row of one term keeps 19 bits of the
// largest record, for parts of rows have at most 2^12 terms: enough for 16-bit results alone.
template <typename T>
constexpr bool kOneScale = kTypeOf<T> != Type::kF32;

// Sets the scales of rows whose records differ, and which size is small. Left by all threads
// together.
template <typename T>
__device__ inline void bound_rows(const Params<T>& p, const Part& part, Bounds& bounds,
                                  Sums& sums) {
  const float unit = bound_unit(p, part);
  for (int e = part.begin + static_cast<int>(threadIdx.x); e < part.end; e += kThreads) {
    add_bounds<!kListsSmall<T>>(p, e, unit, bounds, [](int, float) { return true; });
  }
  __syncthreads();
  if (const int r = threadIdx.x; r < kWindowRows && sums.terms[r] > 0) {
    const float bound = static_cast<float>(bounds.sum[r]) * unit;
    sums.scale[r] = fixed_scale(bound, sums.terms[r]);
    sums.least[r] = least_size<T>(bound, sums.terms[r]);
    const bool has_small = __uint_as_float(bounds.smallest[r]) < sums.least[r];  // if looked for
    if (!kListsSmall<T> && has_small) p.flags[sums.row[r]] = 1;
  }
  __syncthreads();
}

// Adds the sums of the small records to the results.
template <typename T, typename S, typename Record>
__device__ inline void add_small(const Params<T>& p, const Part& part, Bounds& bounds,
                                 const SmallEntries& small, Sums& sums) {
  const bool listed = small.count <= kMostSmall;
  const int count = listed ? small.count : part.end - part.begin;
  const auto entry = [&](int i) { return listed ? small.entry[i] : part.begin + i; };
  const auto is_small = [&](int r, float size) { return size < sums.least[r]; };
  __syncthreads();
  sums.clear(p.width);
  if (threadIdx.x < kWindowRows) bounds.clear(threadIdx.x);
  __syncthreads();
  const float unit = bound_unit(p, part);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    add_bounds<true>(p, entry(i), unit, bounds, is_small);
  }
  __syncthreads();
  if (const int r = threadIdx.x; r < kWindowRows && small.in_row[r]) {
    const float bound = static_cast<float>(bounds.sum[r]) * unit;
    sums.scale[r] = fixed_scale(bound, sums.terms[r]);
    if (__uint_as_float(bounds.smallest[r]) < least_size<T>(bound, sums.terms[r])) {
      p.flags[sums.row[r]] = 1;
    }
  }
  __syncthreads();
  const unsigned base = shared_address(sums.sum), row_bytes = p.width * unsigned(sizeof(int));
  for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
    for (int i = threadIdx.x / S::kLanes; i < count; i += kThreads / S::kLanes) {
      const int e = entry(i);
      const int sender = p.windows.senders[e];
      const Terms<S::kPer> terms(Record::load(p, sender, c), base);
      const float size = p.sizes[sender];
      over_receivers(p.windows.masks[e], [&](int r) {
        if (is_small(r, size)) terms.add(r * row_bytes, sums.scale[r]);
      });
    }
  }
  __syncthreads();
  for (int r = threadIdx.x / 32; r < kWindowRows; r += kThreads / 32) {
    if (!small.in_row[r]) continue;
    const float unit_of_row = 1.0f / sums.scale[r];
    const bool whole = part.place < 0;
    const float factor =
        p.mean && whole ? unit_of_row / static_cast<float>(degree_of(p, sums.row[r])) : unit_of_row;
    // The thread that stored a result here adds to it.
    float* target = whole ? reinterpret_cast<float*>(p.dense) + int64_t(sums.row[r]) * p.width
                          : p.partials + (int64_t(part.place) * kWindowRows + r) * p.width;
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const int4 sum = reinterpret_cast<const int4*>(sums.sum)[(r * p.width + f) / 4];
      float4 result = *reinterpret_cast<float4*>(target + f);
      result.x += sum.x * factor, result.y += sum.y * factor;
      result.z += sum.z * factor, result.w += sum.w * factor;
      *reinterpret_cast<float4*>(target + f) = result;
    }
  }
}

template <typename T, typename S, bool kWords>
__global__ void __launch_bounds__(kThreads, 3) forward(const Params<T> p) {
  if (!has_scale(p.range)) return;
  extern __shared__ int4 shared[];
  __shared__ Sums sums;
  __shared__ Bounds bounds;
  __shared__ SmallEntries small;
  const Part part = load_part(p.windows, blockIdx.x);
  const bool alike = records_alike<T>(p.range);
  if (const int r = threadIdx.x; r < kWindowRows) {
    const int row = p.windows.rows[part.window * kWindowRows + r];
    const int64_t degree = row < 0 ? 0 : degree_of(p, row);
    const int n = static_cast<int>(min(degree, int64_t(part.end - part.begin)));
    sums.row[r] = row;
    sums.terms[r] = n;
    sums.scale[r] = fixed_scale(alike ? common_bound(p.range, n) : 0.0f, n);
    const int most = __reduce_max_sync(kFullWarp, n);
    if (r % 32 == 0) sums.most[r / 32] = most;
    sums.least[r] = 0.0f;
    bounds.clear(r);
    small.in_row[r] = false;
  }
  int* const sum = reinterpret_cast<int*>(shared);
  if (threadIdx.x == 0) {
    sums.sum = sum;
    small.count = 0;
  }
  for (int i = threadIdx.x; i < kWindowRows * p.width / 4; i += kThreads) {
    shared[i] = make_int4(0, 0, 0, 0);
  }
  __syncthreads();
  if (!alike) bound_rows(p, part, bounds, sums);

  using Record = std::conditional_t<kWords, Words, Values<T, S::kPer>>;
  const unsigned base = shared_address(sum), row_bytes = p.width * unsigned(sizeof(int));
  // Walks all entries, for as many times as a record is longer than its lanes' span. Lanes beyond
  // its end have nothing to do.
  const auto over_entries = [&](auto load, auto visit) {
    for (int c = threadIdx.x % S::kLanes * S::kPer; c < p.k; c += S::kSpan) {
      const auto load_here = [&](int sender) { return load(sender, c); };
      const auto visit_here = [&](const auto& record, int, uint2 mask, int e) {
        visit(record, mask, e, c);
      };
      walk<decltype(load(0, c)), kThreads / S::kLanes>(p.windows, part, threadIdx.x / S::kLanes,
                                                       load_here, visit_here);
    }
  };
  const auto load = [&](int sender, int c) { return Record::load(p, sender, c); };
  // Adds all records to their rows, in the scale of all rows.
  const auto add_alike = [&](float scale) {
    over_entries(load, [&](const Record& record, uint2 mask, int, int) {
      const Terms<S::kPer> terms(record, base);
      int term[S::kPer];
#pragma unroll
      for (int i = 0; i < S::kPer; ++i) term[i] = __float2int_rn(terms.value[i] * scale);
      over_receivers(mask, [&](int r) {
        const unsigned offset = r * row_bytes;
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) add_shared(terms.address[i] + offset, term[i]);
      });
    });
  };
  // Adds all records to their rows.
  const auto add_all = [&] {
    over_entries(load, [&](const Record& record, uint2 mask, int, int) {
      const Terms<S::kPer> terms(record, base);
      over_receivers(mask, [&](int r) { terms.add(r * row_bytes, sums.scale[r]); });
    });
  };
  // Adds those that are not small, and lists those that are.
  const auto add_large = [&] {
    struct Sized {
      Record record;
      float size;
    };
    const auto load_sized = [&](int sender, int c) {
      return Sized{Record::load(p, sender, c), p.sizes[sender]};
    };
    over_entries(load_sized, [&](const Sized& sized, uint2 mask, int e, int c) {
      const Terms<S::kPer> terms(sized.record, base);
      bool found = false;
      over_receivers(mask, [&](int r) {
        if (sized.size >= sums.least[r]) {
          terms.add(r * row_bytes, sums.scale[r]);
        } else if (sized.size > 0.0f) {
          small.in_row[r] = true;
          found = true;
        }
      });
      if (found && c == 0) {  // one of the record's lanes, once
        const int place = atomicAdd(&small.count, 1);
        if (place < kMostSmall) small.entry[place] = e;
      }
    });
  };
  if (kOneScale<T> && alike) {
    const int n = max(sums.most[0], sums.most[1]);
    const float scale = fixed_scale(common_bound(p.range, n), n);
    if (threadIdx.x < kWindowRows) sums.scale[threadIdx.x] = scale;
    add_alike(scale);
  } else if (kListsSmall<T> && !alike) {
    add_large();
  } else {
    add_all();
  }
  __syncthreads();

  for (int r = threadIdx.x / 32; r < kWindowRows; r += kThreads / 32) {
    if (sums.row[r] < 0) continue;
    const float unit = 1.0f / sums.scale[r];
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const int4 v = shared[(r * p.width + f) / 4];
      float result[4] = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
      if (part.place >= 0) {
        float* partial = p.partials + (int64_t(part.place) * kWindowRows + r) * p.width;
        store_pack<float, 4, float>(partial + f, result);
      } else {
        finish(p, sums.row[r], f, result);
      }
    }
  }
  if constexpr (kListsSmall<T>) {
    if (small.count > 0) add_small<T, S, Record>(p, part, bounds, small, sums);
  }
}

// Adds the parts of each window that has several, in their order; a block a part, of which the
// first of each window does the work.
template <typename T>
__global__ void __launch_bounds__(kThreads) join(const Params<T> p) {
  if (!has_scale(p.range)) return;
  const Part part = load_part(p.windows, blockIdx.x);
  const auto window = [&](int i) { return load_part(p.windows, i).window; };
  const int first = blockIdx.x;
  if (part.place < 0 || (first > 0 && window(first - 1) == part.window)) return;
  int count = 1;
  while (first + count < p.windows.num_parts && window(first + count) == part.window) ++count;
  const int64_t size = int64_t(kWindowRows) * p.width;
  for (int r = threadIdx.x / 32; r < kWindowRows; r += kThreads / 32) {
    const int row = p.windows.rows[part.window * kWindowRows + r];
    if (row < 0) continue;
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const float* partial = p.partials + part.place * size + int64_t(r) * p.width + f;
      float result[4] = {};
      for (int i = 0; i < count; ++i) {
        const float4 more = *reinterpret_cast<const float4*>(partial + i * size);
        result[0] += more.x, result[1] += more.y, result[2] += more.z, result[3] += more.w;
      }
      finish(p, row, f, result);
    }
  }
}

// In float, or with kExact in 64-bit fixed point; then a lane's columns lie kLanes apart, so that
// 8-byte reductions of neighbouring lanes are neighbours too.
template <typename T, typename S, bool kExact>
__global__ void __launch_bounds__(kThreads, 3) backward(const Params<T> p) {
  if (kExact && !use_wide_fixed(p.range, p.num_edges)) return;
  extern __shared__ int4 shared[];
  T* dense = reinterpret_cast<T*>(shared);  // [64, width]
  const Part part = load_part(p.windows, blockIdx.x);
  float quantum;
  const float scale = kExact ? wide_scale(p.range, p.num_edges, quantum) : 1.0f;
  for (int r = threadIdx.x / 32; r < kWindowRows; r += kThreads / 32) {
    const int row = p.windows.rows[part.window * kWindowRows + r];
    if (row < 0) continue;
    for (int f = threadIdx.x % 32 * 4; f < p.width; f += 128) {
      const Pack<T, 4> pack = load_pack<T, 4>(p.dense + int64_t(row) * p.width + f);
      *reinterpret_cast<decltype(Pack<T, 4>::word)*>(dense + r * p.width + f) = pack.word;
    }
  }
  __syncthreads();

  constexpr int kStride = kExact ? S::kLanes : 1;  // between a lane's columns
  struct Record {
    Pack<uint8_t, kExact ? 1 : S::kPer> columns[kExact ? S::kPer : 1];
    __device__ unsigned column(int i) const {
      return kExact ? columns[kExact ? i : 0].word : columns[0].word >> 8 * i & 0xffu;
    }
  };
  const unsigned base = shared_address(dense), row_bytes = p.width * unsigned(sizeof(T));
  for (int first = 0; first < p.k; first += S::kSpan) {
    const int c = first + threadIdx.x % S::kLanes * (kExact ? 1 : S::kPer);
    if (c >= p.k) break;
    const auto load = [&](int sender) {
      const uint8_t* columns = p.columns + entry_at(p, sender, c);
      Record record;
      if constexpr (kExact) {
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) {
          record.columns[i].word = c + i * kStride < p.k ? __ldg(columns + i * kStride) : 0;
        }
      } else {
        record.columns[0] = load_pack<uint8_t, S::kPer>(columns);
      }
      return record;
    };
    const auto gather = [&](const Record& record, int sender, uint2 mask, int) {
      float sum[S::kPer] = {};
      unsigned address[S::kPer];
#pragma unroll
      for (int i = 0; i < S::kPer; ++i) {
        address[i] = base + record.column(i) * unsigned(sizeof(T));
      }
      over_receivers(mask, [&](int r) {
        const unsigned offset = r * row_bytes;
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) sum[i] += widen(load_shared<T>(address[i] + offset));
      });
      const int64_t at = int64_t(sender) * p.k + c;
      if constexpr (kExact) {
#pragma unroll
        for (int i = 0; i < S::kPer; ++i) {
          if (c + i * kStride < p.k) {
            atomicAdd(static_cast<unsigned long long*>(p.sums) + at + i * kStride,
                      static_cast<unsigned long long>(__float2ll_rn(sum[i] * scale)));
          }
        }
      } else {
        reduce_to<S::kPer>(static_cast<float*>(p.sums) + at, sum);
      }
    };
    walk<Record, kThreads / S::kLanes>(p.windows, part, threadIdx.x / S::kLanes, load, gather);
  }
}

template <typename T>
__global__ void __launch_bounds__(256) round_exact(const long long* sums, const uint32_t* range,
                                                   int64_t num_edges, T* out, int64_t size) {
  if (!use_wide_fixed(range, num_edges)) return;
  float quantum;
  wide_scale(range, num_edges, quantum);
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) out[i] = narrow<T, float>(__ll2float_rn(sums[i]) * quantum);
}

template <typename T>
cudaError_t launch_kernel(void (*kernel)(Params<T>), const Params<T>& p, int bytes,
                          cudaStream_t stream) {
  kernel<<<p.windows.num_parts, kThreads, bytes, stream>>>(p);
  return cudaGetLastError();
}

template <typename T>
Params<T> params(const MaxkWindowsArgs& args) {
  return {args.windows,
          args.row_offsets,
          args.wide_offsets,
          args.mean,
          static_cast<const T*>(args.values),
          args.words,
          args.columns,
          static_cast<T*>(args.dense),
          args.partials,
          args.range,
          args.sizes,
          args.flags,
          args.sums,
          args.num_edges,
          static_cast<int>(args.width),
          static_cast<int>(args.k)};
}

// More shared memory than 48 KB a block must be asked for, once a context.
template <typename T>
cudaError_t allow(void (*kernel)(Params<T>)) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kWindowRows * kWindowWidth * sizeof(float));
}

// Calls f(kernel); words are read four at a time.
template <typename T, typename S, typename F>
cudaError_t with_forward(bool words, F f) {
  if constexpr (S::kPer == 4) {
    if (words) return f(forward<T, S, true>);
  }
  return f(forward<T, S, false>);
}

}  // namespace

cudaError_t launch_maxk_spmm_windows(const MaxkWindowsArgs& args, cudaStream_t stream) {
  if (args.windows.num_parts == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Params<T> p = params<T>(args);
    const int bytes = static_cast<int>(kWindowRows * args.width * sizeof(int));
    JAXGNN_TRY(with_share(args.k, args.k % 4 == 0, [&](auto share) {
      return with_forward<T, decltype(share)>(args.words != nullptr, [&](auto kernel) {
        return launch_kernel<T>(kernel, p, bytes, stream);
      });
    }));
    return args.partials == nullptr ? cudaSuccess : launch_kernel<T>(join<T>, p, 0, stream);
  });
}

namespace {

template <bool kExact>
cudaError_t launch_backward(const MaxkWindowsArgs& args, cudaStream_t stream) {
  const size_t size = args.num_senders * args.k * (kExact ? sizeof(int64_t) : sizeof(float));
  JAXGNN_TRY(cudaMemsetAsync(args.sums, 0, size, stream));
  if (args.windows.num_parts == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return with_share(args.k, args.k % 4 == 0, [&](auto share) {
      const int bytes = static_cast<int>(kWindowRows * args.width * sizeof(T));
      return launch_kernel<T>(backward<T, decltype(share), kExact>, params<T>(args), bytes, stream);
    });
  });
}

}  // namespace

cudaError_t launch_maxk_sspmm_windows(const MaxkWindowsArgs& args, cudaStream_t stream) {
  return launch_backward<false>(args, stream);
}

cudaError_t launch_maxk_sspmm_windows_exact(const MaxkWindowsArgs& args, void* out,
                                            cudaStream_t stream) {
  JAXGNN_TRY(launch_backward<true>(args, stream));
  const int64_t size = args.num_senders * args.k;
  if (size == 0) return cudaSuccess;
  return with_type(NarrowTypes{}, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    round_exact<T><<<static_cast<unsigned>((size + 255) / 256), 256, 0, stream>>>(
        static_cast<const long long*>(args.sums), args.range, args.num_edges, static_cast<T*>(out),
        size);
    return cudaGetLastError();
  });
}

cudaError_t load_maxk_windows() {
  return with_each_type(NarrowTypes{}, [](auto tag) {
    using T = typename decltype(tag)::type;
    JAXGNN_TRY(load_kernel(join<T>));
    JAXGNN_TRY(load_kernel(round_exact<T>));
    return with_each_share([](auto share) {
      using S = decltype(share);
      for (bool words : {false, true}) {
        JAXGNN_TRY((with_forward<T, S>(words, [](auto kernel) { return allow<T>(kernel); })));
      }
      JAXGNN_TRY((allow<T>(backward<T, S, false>)));
      return allow<T>(backward<T, S, true>);
    });
  });
}

}  // namespace jaxgnn
