// What MaxK's products over windows of receivers share.
//
// A block holds a window's rows in shared memory and walks its entries: a sender and the mask of
// the receivers that it has edges to. A group of lanes processes an entry, with four values and
// columns of the CBSR row a lane. Entries are sorted by descending number of edges, which balances
// the groups of a warp.
#pragma once

#include <algorithm>

#include "cuda/maxk/cbsr.cuh"
#include "cuda/maxk/fixed_point.cuh"
#include "cuda/maxk/windows.h"

namespace jaxgnn::maxk {

// Two blocks a multiprocessor, not three of 512 threads: every CBSR row in flight occupies lines of
// the L1 cache, the part that shared memory leaves.
constexpr int kWindowThreads = 768;
constexpr int kWindowBlocks = 2;

// The receivers of a window: 64 with columns I of 8 bits, else what the windows have.
template <typename I>
struct WindowSize {
  static __device__ constexpr int rows() { return kWindowRows; }
};
template <>
struct WindowSize<uint16_t> {
  int num_rows;
  __device__ int rows() const { return num_rows; }
};

template <typename T, typename I>
struct WindowParams : WindowSize<I> {
  Windows windows;
  const void* row_offsets;
  bool wide_offsets;
  bool mean;
  const T* values;
  const uint32_t* words;
  const I* columns;
  T* dense;
  float* partials;
  uint32_t* range;
  const float* sizes;
  uint32_t* flags;
  void* sums;
  int64_t num_edges;
  int width;
  int stride;  // from a row to the next in shared memory
  int k;
  const float* weights;
  const float* weight_sums;
  float* wide;
  const float* row_bounds;
};

template <typename T, typename I>
__device__ inline int64_t degree_of(const WindowParams<T, I>& p, int row) {
  if (p.wide_offsets) {
    const int64_t* offsets = static_cast<const int64_t*>(p.row_offsets);
    return offsets[row + 1] - offsets[row];
  }
  const int32_t* offsets = static_cast<const int32_t*>(p.row_offsets);
  return offsets[row + 1] - offsets[row];
}

// Divides features of a row by the number of its edges.
template <typename T, typename I, int V>
__device__ inline void divide_by_degree(const WindowParams<T, I>& p, int row,
                                        float (&features)[V]) {
  const float degree = static_cast<float>(max(degree_of(p, row), int64_t(1)));
#pragma unroll
  for (int i = 0; i < V; ++i) features[i] = features[i] / degree;
}

// Iterates over the receivers of an entry's mask. The mask is not empty.
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
// statement, the compiler recomputes it at each use.
__device__ inline unsigned shared_address(const void* pointer) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
  asm volatile("" : "+r"(address));
  return address;
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

// Walks the entries of a part that fall to this thread's group of the block's: load(sender) returns
// a packed CBSR row, and visit(cbsr_row, sender, mask, entry) consumes it. CBSR rows and masks are
// loaded one visit ahead, senders two. The loop is unrolled by two to avoid copies between
// iterations, which would wait for the latest loads. (A separate loop for entries with a single
// edge was slower.)
template <typename CbsrRow, typename Load, typename Visit>
__device__ inline void walk(const Windows& windows, const Part& part, int group, int groups,
                            Load load, Visit visit) {
  struct Entry {
    CbsrRow cbsr_row;
    int sender;
    uint2 mask;
  };
  const auto sender_at = [&](int e) { return e < part.end ? __ldcs(windows.senders + e) : 0; };
  int e = part.begin + group;
  if (e >= part.end) return;
  int next = sender_at(e);
  const auto load_next = [&](int e) {
    const Entry entry{load(next), next, e < part.end ? __ldcs(windows.masks + e) : uint2{}};
    next = sender_at(e + groups);
    return entry;
  };
  Entry even = load_next(e);
  while (true) {
    const Entry odd = load_next(e + groups);
    visit(even.cbsr_row, even.sender, even.mask, e);
    e += groups;
    if (e >= part.end) return;
    even = load_next(e + groups);
    visit(odd.cbsr_row, odd.sender, odd.mask, e);
    e += groups;
    if (e >= part.end) return;
  }
}

// Column i of those that a lane has loaded.
template <typename I, int kPer>
__device__ inline unsigned column_of(const Vector<I, kPer>& columns, int i) {
  if constexpr (sizeof(I) == 1) {
    return columns.word >> 8 * i & 0xffu;
  } else if constexpr (kPer == 1) {
    return columns.word;
  } else {
    return columns.bits[i / 2] >> 16 * (i % 2) & 0xffffu;
  }
}

// The place of a CBSR row's entry c. There are fewer than 2^32 of them (windows.h): addresses of 64
// bits, computed from the start, take registers that the loops do not have.
template <typename T, typename I>
__device__ inline unsigned entry_at(const WindowParams<T, I>& p, int sender, int c) {
  return static_cast<unsigned>(sender) * static_cast<unsigned>(p.k) + static_cast<unsigned>(c);
}

template <typename I>
WindowSize<I> size_of_windows(const MaxkWindowsArgs& args) {
  if constexpr (sizeof(I) == 1) {
    return {};
  } else {
    return {static_cast<int>(args.window_rows)};
  }
}

template <typename T, typename I>
WindowParams<T, I> params(const MaxkWindowsArgs& args) {
  return {size_of_windows<I>(args),
          args.windows,
          args.row_offsets,
          args.wide_offsets,
          args.mean,
          static_cast<const T*>(args.values),
          args.words,
          static_cast<const I*>(args.columns),
          static_cast<T*>(args.dense),
          args.partials,
          args.range,
          args.sizes,
          args.flags,
          args.sums,
          args.num_edges,
          static_cast<int>(args.width),
          0,
          static_cast<int>(args.k),
          args.weights,
          args.weight_sums,
          args.wide,
          args.row_bounds};
}

// f(Tag<T>{}, Tag<I>{}) for the type and the columns, or to load for all of them.
template <typename F>
cudaError_t with_windows(const Launch& launch, const MaxkWindowsArgs& args, F f) {
  const bool wide = args.window_rows < kWindowRows;
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    if (launch.load || !wide) JAXGNN_TRY(f(tag, Tag<uint8_t>{}));
    if (launch.load || wide) JAXGNN_TRY(f(tag, Tag<uint16_t>{}));
    return cudaSuccess;
  });
}

// Calls f(Share<...>{}) for the CBSR rows, or to load for all shares that there are: rows of 16-bit
// columns are read four entries at a time.
template <typename I, typename F>
cudaError_t with_window_share(const Launch& launch, int64_t k, F f) {
  return with_share(launch, k, k % 4 == 0, [&](auto share) {
    if constexpr (sizeof(I) == 1 || decltype(share)::kPer == 4) return f(share);
    return cudaSuccess;
  });
}

// Launches a kernel whose blocks have a window's rows in shared memory, values of `size` bytes.
template <typename T, typename I>
cudaError_t launch_windows(const Launch& launch, void (*kernel)(WindowParams<T, I>),
                           const MaxkWindowsArgs& args, int size) {
  WindowParams<T, I> p = params<T, I>(args);
  p.stride = row_stride(p.width, size, kRowsApart);
  const int64_t bytes = std::max(args.window_rows * p.stride * size, kLeastWindowBytes);
  return launch_large_kernel<kMostWindowBytes>(launch, kernel, args.windows.num_parts,
                                               kWindowThreads, bytes, p);
}

}  // namespace jaxgnn::maxk
