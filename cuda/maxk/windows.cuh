// What MaxK's products over windows of 64 receivers share.
//
// A block holds a window's 64 rows in shared memory and walks its entries: a sender and the mask of
// the receivers that it has edges to. A group of lanes processes an entry, with four values and
// columns of the CBSR row a lane. Entries are sorted by descending number of edges, which balances
// the groups of a warp.
#pragma once

#include "cuda/maxk/cbsr.cuh"
#include "cuda/maxk/fixed_point.cuh"
#include "cuda/maxk/windows.h"

namespace jaxgnn::maxk {

// Two blocks a multiprocessor, not three of 512 threads: every CBSR row in flight occupies lines of
// the L1 cache, the part that shared memory leaves.
constexpr int kWindowThreads = 768;
constexpr int kWindowBlocks = 2;

template <typename T>
struct WindowParams {
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
  const float* weights;
  const float* weight_sums;
  float* wide;
};

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

// Walks the entries of a part that fall to this thread's group: load(sender) returns a packed CBSR
// row, and visit(cbsr_row, sender, mask, entry) consumes it. CBSR rows and masks are loaded one
// visit ahead, senders two. The loop is unrolled by two to avoid copies between iterations, which
// would wait for the latest loads. (A separate loop for entries with a single edge was slower.)
template <typename CbsrRow, int kGroups, typename Load, typename Visit>
__device__ inline void walk(const Windows& windows, const Part& part, int group, Load load,
                            Visit visit) {
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
    next = sender_at(e + kGroups);
    return entry;
  };
  Entry even = load_next(e);
  while (true) {
    const Entry odd = load_next(e + kGroups);
    visit(even.cbsr_row, even.sender, even.mask, e);
    e += kGroups;
    if (e >= part.end) return;
    even = load_next(e + kGroups);
    visit(odd.cbsr_row, odd.sender, odd.mask, e);
    e += kGroups;
    if (e >= part.end) return;
  }
}

// The place of a CBSR row's entry c. There are fewer than 2^32 of them (windows.h): addresses of 64
// bits, computed from the start, take registers that the loops do not have.
template <typename T>
__device__ inline unsigned entry_at(const WindowParams<T>& p, int sender, int c) {
  return static_cast<unsigned>(sender) * static_cast<unsigned>(p.k) + static_cast<unsigned>(c);
}

template <typename T>
WindowParams<T> params(const MaxkWindowsArgs& args) {
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
          static_cast<int>(args.k),
          args.weights,
          args.weight_sums,
          args.wide};
}

}  // namespace jaxgnn::maxk
