// The edges of a window's entries with their weights.
#pragma once

#include "cuda/maxk/windows.cuh"

namespace jaxgnn::maxk {

// Fewer than without weights, for 48 registers each instead of 40.
constexpr int kWeightedThreads = 640;

// Where a window's entries of n edges lie, for each n. Entries are sorted by n, so that those of
// one n are evenly spaced.
struct Slots {
  unsigned first[kWindowRows + 1];

  // By all threads together; a barrier follows.
  __device__ void load(const Windows& windows, const Part& part) {
    for (int n = threadIdx.x; n <= kWindowRows; n += blockDim.x) {
      first[n] = windows.slots[part.window * (kWindowRows + 1) + n];
    }
  }
  // The slot of an entry's first edge; its others follow.
  __device__ unsigned slot(uint2 mask, int e) const {
    const int n = __popc(mask.x) + __popc(mask.y);
    return first[n] + static_cast<unsigned>(n) * static_cast<unsigned>(e);
  }
};

// The edges by slot, and their weights.
struct EdgeWeights {
  const int32_t* edges;
  const float* weights;

  // Loads that stay where they are written. Without `wanted` what they return is not used. The edge
  // in a slot;
  __device__ int edge(unsigned slot, bool wanted) const {
    int edge;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.s32 %0, [%1]; }"
                 : "=r"(edge)
                 : "l"(edges + slot), "r"(static_cast<unsigned>(wanted)));
    return edge;
  }
  // and the weight of an edge.
  __device__ float weight(int edge, bool wanted) const {
    float weight;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.f32 %0, [%1]; }"
                 : "=f"(weight)
                 : "l"(weights + edge), "r"(static_cast<unsigned>(wanted)));
    return weight;
  }
  __device__ float weight(int edge) const { return __ldg(weights + edge); }
  // The first edge of an entry; without edges 0, whose weight is not used.
  __device__ int first_edge(const Slots& slots, uint2 mask, int e) const {
    return (mask.x | mask.y) != 0 ? __ldg(edges + slots.slot(mask, e)) : 0;
  }
};

template <typename T>
__device__ inline EdgeWeights edge_weights(const WindowParams<T>& p) {
  return {p.windows.edges, p.weights};
}

// Calls f(receiver, weight) for each edge of an entry, of which the first one's weight has been
// loaded. The others' are loaded two receivers ahead, the edges three: ptxas moves these loads
// behind the additions of f. Unrolled by two, as `walk` is: a copy would wait for its load.
template <typename F>
__device__ inline void over_edges(const Slots& slots, const EdgeWeights& from, uint2 mask, int e,
                                  float first, F f) {
  const unsigned n = __popc(mask.x) + __popc(mask.y);
  if (n == 0) return;
  unsigned slot = slots.slot(mask, e);
  const unsigned end = slot + n;
  Receivers receivers(mask);
  float even = first, odd = 0.0f;
  ++slot;
  int edge = from.edge(slot, slot < end);
  odd = from.weight(edge, slot < end);
  ++slot;
  edge = from.edge(slot, slot < end);
  while (true) {
    f(receivers.receiver(), even);
    if (!receivers.next()) return;
    even = from.weight(edge, slot < end);
    ++slot;
    edge = from.edge(slot, slot < end);
    f(receivers.receiver(), odd);
    if (!receivers.next()) return;
    odd = from.weight(edge, slot < end);
    ++slot;
    edge = from.edge(slot, slot < end);
  }
}

// `walk` with weights: visit(cbsr_row, sender, mask, entry, its first weight). Masks are loaded two
// visits ahead, as the senders are, since the first edge's slot follows from them; the edge one
// visit ahead; and its weight before what the next visit needs.
template <typename CbsrRow, int kGroups, typename Load, typename Visit>
__device__ inline void walk_weighted(const Windows& windows, const Slots& slots,
                                     const EdgeWeights& from, const Part& part, int group,
                                     Load load, Visit visit) {
  struct Entry {
    CbsrRow cbsr_row;
    int sender;
    uint2 mask;
    int edge;
  };
  const auto sender_at = [&](int e) { return e < part.end ? __ldcs(windows.senders + e) : 0; };
  const auto mask_at = [&](int e) { return e < part.end ? __ldcs(windows.masks + e) : uint2{}; };
  int e = part.begin + group;
  if (e >= part.end) return;
  int next = sender_at(e);
  uint2 next_mask = mask_at(e);
  const auto load_next = [&](int e) {
    const Entry entry{load(next), next, next_mask, from.first_edge(slots, next_mask, e)};
    next = sender_at(e + kGroups);
    next_mask = mask_at(e + kGroups);
    return entry;
  };
  Entry even = load_next(e);
  while (true) {
    const float even_weight = from.weight(even.edge);
    const Entry odd = load_next(e + kGroups);
    visit(even.cbsr_row, even.sender, even.mask, e, even_weight);
    e += kGroups;
    if (e >= part.end) return;
    const float odd_weight = from.weight(odd.edge);
    even = load_next(e + kGroups);
    visit(odd.cbsr_row, odd.sender, odd.mask, e, odd_weight);
    e += kGroups;
    if (e >= part.end) return;
  }
}

}  // namespace jaxgnn::maxk
