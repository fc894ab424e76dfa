// What the kernels over compressed balanced sparse rows share: how a warp's lanes are dealt out,
// and the edges of a row one after the other.
#pragma once

#include "cuda/attention/edge_weights.cuh"
#include "cuda/core/slices.cuh"
#include "cuda/maxk/cbsr.cuh"

namespace jaxgnn::attention {

constexpr int kSparseThreads = 64;
constexpr int kSparseWarps = kSparseThreads / 32;

// kLanes adjacent lanes are a group: each weighs an edge of its own for the group's head, and
// together they read the CBSR rows of these edges. Adjacent groups have adjacent heads, up to
// `heads`, a power of two; then come groups for other edges.
template <int kLanes>
struct Deal {
  static constexpr int kGroups = 32 / kLanes;
  int heads, streams;
  int lane, local, group;
  int own;  // head of the group, among the warp's
  int stream;

  __device__ explicit Deal(int heads)
      : heads(heads),
        streams(kGroups / heads),
        lane(threadIdx.x % 32),
        local(lane % kLanes),
        group(lane / kLanes),
        own(group % heads),
        stream(group / heads) {}
  // The edges that the warp weighs at a time, and the lane's place among them.
  __device__ int tile() const { return streams * kLanes; }
  __device__ int place() const { return stream * kLanes + local; }

  // combine(value of another lane) for all lanes of the same head.
  template <typename F>
  __device__ void over_head(const F& combine) const {
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) combine(offset);
    for (int offset = kLanes * heads; offset < 32; offset *= 2) combine(offset);
  }
  __device__ float sum_over_head(float v) const {
    over_head([&](int offset) { v += __shfl_xor_sync(kFullWarp, v, offset); });
    return v;
  }
  // NaN wins.
  __device__ float max_over_head(float v) const {
    over_head([&](int offset) {
      const float other = __shfl_xor_sync(kFullWarp, v, offset);
      if (other > v || other != other) v = other;
    });
    return v;
  }
};

// The heads of a warp: those there are, rounded up, if the lanes suffice.
inline int heads_of_warp(int64_t heads, int lanes, int64_t most = 8) {
  int count = 1;
  while (count < heads && 2 * count * lanes <= 32 && 2 * count <= most) count *= 2;
  return count;
}

constexpr int kNoEdge = -1, kSkipped = -2;

// The edges of a row or chunk by their places; the one after the last is the added self-loop.
struct Edges {
  const Rows& rows;
  const Work& work;
  bool self_loops;
  bool loop;

  template <typename A>
  __device__ Edges(const Rows& rows, const Scoring<A>& s, const Work& work)
      : rows(rows), work(work), self_loops(s.self_loops), loop(has_loop(s, rows, work)) {}
  __device__ int total() const { return work.count + (loop ? 1 : 0); }
  __device__ bool is_loop(int i) const { return i == work.count; }
  // The node at the edge's other end, or one of the constants above.
  __device__ int column(int i) const {
    if (i < work.count) {
      const int column = static_cast<int>(load_column(rows, work.begin + i));
      return self_loops && column == work.row ? kSkipped : column;
    }
    return loop && i == work.count ? static_cast<int>(work.row) : kNoEdge;
  }
  // The bias of an edge that there is, and the number that dropout counts by.
  template <typename A>
  __device__ void load_terms(const Scoring<A>& s, int i, int head, Gathered<A>& terms) const {
    if (is_loop(i)) {
      terms.number = s.num_edges + work.row;
      terms.bias = loop_bias(s, work.row, head);
    } else {
      terms.number = edge_number(s, work.begin + i);
      terms.bias = edge_bias(s, terms.number, head);
    }
  }
};

inline bool is_empty(const AttentionArgs& args, const maxk::Cbsr& cbsr) {
  return args.rows.num_rows == 0 || args.width == 0 || cbsr.num_rows == 0;
}

}  // namespace jaxgnn::attention
