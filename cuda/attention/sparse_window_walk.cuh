// The walk over a window's entries: what a lane reads of the next entry is copied while it works on
// this one.
#pragma once

#include "cuda/attention/sparse_window_heads.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/shared.cuh"

namespace jaxgnn::attention {

// An entry's part in a lane: what it reads of the sender, and the mask of the receivers.
template <typename T>
struct WindowEntry {
  int sender;
  uint2 mask;
  uint2 numbers;     // the sender's, for the head
  unsigned columns;  // four
  Vector<T, 4> values;
};

// Where a lane finds a sender's numbers and CBSR row, and the bytes from a sender to the next.
template <typename T>
struct WindowSenders {
  const int* places;    // see find_places; null without self-loops
  const void* numbers;  // 8 bytes a head
  const uint8_t* columns;
  const T* values;
  unsigned number_bytes, column_bytes, value_bytes;

  __device__ WindowSenders(const int* places, const void* numbers, const uint8_t* columns,
                           const T* values, int heads, int k, const WindowLane& lane)
      : places(places),
        numbers(static_cast<const uint2*>(numbers) + lane.head),
        columns(columns + lane.head * k + lane.entry),
        values(values + lane.head * k + lane.entry),
        number_bytes(heads * 8),
        column_bytes(heads * k),
        value_bytes(heads * k * unsigned(sizeof(T))) {}
};

// Bytes that a block's walk takes of shared memory.
__host__ __device__ constexpr int window_slots(int threads, bool loops) {
  return 2 * (loops ? 48 : 40) * threads;
}

// Walks a part's entries as maxk::walk does, but each lane copies what it reads of the next entry
// into slots of its own in shared memory. Loads into registers the compiler puts behind the loop
// over an entry's receivers, where they are waited for. With kLoops the graph's self-loops are
// skipped.
template <typename T, int kThreads, bool kLoops>
class WindowWalk {
 public:
  // `memory` has window_slots(kThreads, kLoops) bytes, at a multiple of 16.
  __device__ WindowWalk(const maxk::Windows& windows, const maxk::Part& part,
                        const WindowSenders<T>& from, void* memory)
      : windows_(windows),
        window_(part.window),
        end_(part.end),
        from_(from),
        wide_(maxk::shared_address(memory) + threadIdx.x * 16),
        mask_(maxk::shared_address(memory) + kThreads * 32 + threadIdx.x * 8) {}

  // visit(entry) for the group's entries of the block's part, which begins at `begin`, and with
  // kLoops for its self-loops, of which a window's first part has all. `rows` are the window's.
  template <typename Visit>
  __device__ void run_part(int begin, int group, int groups, const int* rows, int num_senders,
                           Visit visit) const {
    run(begin + group, groups, visit);
    if constexpr (kLoops) {
      const bool first_part =
          blockIdx.x == 0 || maxk::load_part(windows_, blockIdx.x - 1).window != window_;
      if (first_part) run_loops(rows, num_senders, group, groups, visit);
    }
  }

 private:
  // visit(entry) for each `stride`th entry from e on.
  template <typename Visit>
  __device__ void run(int e, int stride, Visit visit) const {
    if (e >= end_) return;
    WindowEntry<T> entry;
    entry.sender = __ldg(windows_.senders + e);
    unsigned slot = 0;
    copy(entry.sender, e, e + stride, slot);
    while (true) {
      wait_for_all();
      const int next = e + stride;
      const uint4 numbers = load_shared16(wide_ + slot + kNumbers);
      entry.numbers = {numbers.x, numbers.y};
      entry.columns = numbers.z;
      if (next < end_) copy(numbers.w, next, next + stride, slot ^ kSecond);
      const uint4 values = load_shared16(wide_ + slot);
      if constexpr (sizeof(T) == 4) {
        entry.values.word = values;
      } else {
        entry.values.word = {values.x, values.y};
      }
      entry.mask = load_shared8(mask_ + slot);
      if constexpr (kLoops) {
        const int place = static_cast<int>(load_shared8(mask_ + slot + kThreads * 8).x);
        const unsigned bit = 1u << (place & 31);
        if (place >> 6 == window_) {
          if (place & 32) {
            entry.mask.y &= ~bit;
          } else {
            entry.mask.x &= ~bit;
          }
        }
      }
      visit(entry);
      if (next >= end_) return;
      e = next;
      slot ^= kSecond;
      entry.sender = numbers.w;
    }
  }

  // The added self-loops of the window's receivers, each by one group.
  template <typename Visit>
  __device__ void run_loops(const int* rows, int num_senders, int group, int groups,
                            Visit visit) const {
    for (int r = group; r < maxk::kWindowRows; r += groups) {
      const int row = rows[r];
      if (row < 0 || row >= num_senders) continue;
      WindowEntry<T> entry;
      entry.sender = row;
      entry.mask = {r < 32 ? 1u << r : 0u, r < 32 ? 0u : 1u << (r - 32)};
      entry.numbers = *reinterpret_cast<const uint2*>(
          row_of(static_cast<const char*>(from_.numbers), row, from_.number_bytes));
      entry.columns =
          *reinterpret_cast<const unsigned*>(row_of(from_.columns, row, from_.column_bytes));
      entry.values = load_vector<T, 4>(row_of(from_.values, row, from_.value_bytes));
      visit(entry);
    }
  }

  static constexpr unsigned kSecond = window_slots(kThreads, kLoops) / 2;
  static constexpr unsigned kNumbers = kThreads * 16;  // behind the values

  // Of entry e, and the sender of the entry after it.
  __device__ void copy(int sender, int e, int after, unsigned slot) const {
    if constexpr (sizeof(T) == 4) {
      copy16(wide_ + slot, row_of(from_.values, sender, from_.value_bytes));
    } else {
      copy8(wide_ + slot, row_of(from_.values, sender, from_.value_bytes));
    }
    copy8(wide_ + slot + kNumbers,
          row_of(static_cast<const char*>(from_.numbers), sender, from_.number_bytes));
    copy4(wide_ + slot + kNumbers + 8, row_of(from_.columns, sender, from_.column_bytes));
    if (after < end_) copy4(wide_ + slot + kNumbers + 12, windows_.senders + after);
    copy8(mask_ + slot, windows_.masks + e);
    if constexpr (kLoops) copy4(mask_ + slot + kThreads * 8, from_.places + sender);
    commit();
  }

  const maxk::Windows& windows_;
  int window_;
  int end_;
  const WindowSenders<T>& from_;
  unsigned wide_;  // addresses of the lane's first slot
  unsigned mask_;
};

}  // namespace jaxgnn::attention
