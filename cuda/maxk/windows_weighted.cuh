// The edges of a window's entries with their weights.
#pragma once

#include "cuda/maxk/windows.cuh"

namespace jaxgnn::maxk {

// Where a window's entries of n edges lie, for each n. Entries are sorted by n, so that those of
// one n are evenly spaced.
struct Slots {
  unsigned first[kWindowRows + 1];

  // By all threads together; a barrier follows.
  __device__ void load(const Windows& windows, const Part& part, int rows) {
    for (int n = threadIdx.x; n <= rows; n += kWindowThreads) {
      first[n] = windows.slots[part.window * (rows + 1) + n];
    }
  }
  // The slot of an entry's first edge; its others follow.
  __device__ unsigned slot(uint2 mask, int e) const {
    const int n = __popc(mask.x) + __popc(mask.y);
    return first[n] + static_cast<unsigned>(n) * static_cast<unsigned>(e);
  }
  // The weight there; a mask without edges has none.
  __device__ float weight(uint2 mask, int e, const float* weights) const {
    return (mask.x | mask.y) != 0 ? __ldg(weights + slot(mask, e)) : 0.0f;
  }
};

// Calls f(receiver, weight) for each edge of an entry, of which the first one's weight has been
// loaded. The others are loaded one receiver ahead.
template <typename F>
__device__ inline void over_edges(const Slots& slots, const float* weights, uint2 mask, int e,
                                  float weight, F f) {
  if ((mask.x | mask.y) == 0) return;
  Receivers receivers(mask);
  unsigned slot = slots.slot(mask, e);
  while (true) {
    const int r = receivers.receiver();
    const bool more = receivers.next();
    float next = 0.0f;
    if (more) next = __ldg(weights + ++slot);
    f(r, weight);
    if (!more) return;
    weight = next;
  }
}

// `walk` with weights: visit(cbsr_row, sender, mask, entry, its first weight). Masks are loaded two
// visits ahead, as the senders are, since the first weight's slot follows from them.
template <typename CbsrRow, int kGroups, typename Load, typename Visit>
__device__ inline void walk_weighted(const Windows& windows, const Slots& slots,
                                     const float* weights, const Part& part, int group, Load load,
                                     Visit visit) {
  struct Entry {
    CbsrRow cbsr_row;
    int sender;
    uint2 mask;
    float weight;
  };
  const auto sender_at = [&](int e) { return e < part.end ? __ldcs(windows.senders + e) : 0; };
  const auto mask_at = [&](int e) { return e < part.end ? __ldcs(windows.masks + e) : uint2{}; };
  int e = part.begin + group;
  if (e >= part.end) return;
  int next = sender_at(e);
  uint2 next_mask = mask_at(e);
  const auto load_next = [&](int e) {
    const Entry entry{load(next), next, next_mask, slots.weight(next_mask, e, weights)};
    next = sender_at(e + kGroups);
    next_mask = mask_at(e + kGroups);
    return entry;
  };
  Entry even = load_next(e);
  while (true) {
    const Entry odd = load_next(e + kGroups);
    visit(even.cbsr_row, even.sender, even.mask, e, even.weight);
    e += kGroups;
    if (e >= part.end) return;
    even = load_next(e + kGroups);
    visit(odd.cbsr_row, odd.sender, odd.mask, e, odd.weight);
    e += kGroups;
    if (e >= part.end) return;
  }
}

}  // namespace jaxgnn::maxk
