// The edges of a window's entries with their weights.
#pragma once

#include "cuda/maxk/windows.cuh"

namespace jaxgnn::maxk {

// An entry's edges: their receivers, and the slot from which on their weights lie. The first weight
// is loaded with the entry, the others one receiver ahead.
struct WeightedEdges {
  uint2 mask;
  unsigned slot;
  float first;
};

// Calls f(receiver, weight) for each.
template <typename F>
__device__ inline void over_edges(const WeightedEdges& edges, const float* weights, F f) {
  if ((edges.mask.x | edges.mask.y) == 0) return;
  Receivers receivers(edges.mask);
  unsigned slot = edges.slot;
  float weight = edges.first;
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

// Where a window's entries of n edges lie, for each n. Entries are sorted by n, so that those of
// one n are evenly spaced.
struct Slots {
  unsigned first[kWindowRows + 1];

  // By all threads together; a barrier follows.
  __device__ void load(const Windows& windows, const Part& part) {
    for (int n = threadIdx.x; n <= kWindowRows; n += kWindowThreads) {
      first[n] = windows.slots[part.window * (kWindowRows + 1) + n];
    }
  }
  // Those of entry e. A mask without edges has none.
  __device__ WeightedEdges edges(uint2 mask, int e, const float* weights) const {
    const int n = __popc(mask.x) + __popc(mask.y);
    const unsigned slot = first[n] + static_cast<unsigned>(n) * static_cast<unsigned>(e);
    float weight = 0.0f;
    if (n > 0) weight = __ldg(weights + slot);
    return {mask, slot, weight};
  }
};

// `walk` with weights: visit(cbsr_row, sender, edges, entry). Masks are loaded two visits ahead, as
// the senders are, since the first weight's slot follows from them.
template <typename CbsrRow, int kGroups, typename Load, typename Visit>
__device__ inline void walk_weighted(const Windows& windows, const Slots& slots,
                                     const float* weights, const Part& part, int group, Load load,
                                     Visit visit) {
  struct Entry {
    CbsrRow cbsr_row;
    int sender;
    WeightedEdges edges;
  };
  const auto sender_at = [&](int e) { return e < part.end ? __ldcs(windows.senders + e) : 0; };
  const auto mask_at = [&](int e) { return e < part.end ? __ldcs(windows.masks + e) : uint2{}; };
  int e = part.begin + group;
  if (e >= part.end) return;
  int next = sender_at(e);
  uint2 next_mask = mask_at(e);
  const auto load_next = [&](int e) {
    const Entry entry{load(next), next, slots.edges(next_mask, e, weights)};
    next = sender_at(e + kGroups);
    next_mask = mask_at(e + kGroups);
    return entry;
  };
  Entry even = load_next(e);
  while (true) {
    const Entry odd = load_next(e + kGroups);
    visit(even.cbsr_row, even.sender, even.edges, e);
    e += kGroups;
    if (e >= part.end) return;
    even = load_next(e + kGroups);
    visit(odd.cbsr_row, odd.sender, odd.edges, e);
    e += kGroups;
    if (e >= part.end) return;
  }
}

}  // namespace jaxgnn::maxk
