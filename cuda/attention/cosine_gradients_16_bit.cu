// The gradient of attention by cosines for rows of 16-bit values, with its dot products on tensor
// cores: cosine_attention_gradients.cu has the equations and joins the chunks of long rows.
//
// A warp takes a row, or a chunk of one, and a head. Its groups of eight lanes load an edge's rows
// of x and of dy each, 16 edges an iteration. Of the two rows that a dot product is with, x_i and
// dy_i, even groups hold the one and odd groups the other, so that one product of edges' x gives
// both <x_j, x_i> and <x_j, dy_i> (cuda/core/edge_dots.cuh), and one of edges' dy <dy_j, x_i>. Two
// lanes have the terms of an edge: the even one those of the edge that starts at i, the odd one
// those of the edge that ends there.
#include "cuda/attention/cosine_gradients.cuh"
#include "cuda/core/edge_dots.cuh"
#include "cuda/tiles/place.cuh"

namespace jaxgnn::attention {
namespace {

using tiles::add_groups;
using Rows16 = tiles::Lane<__half>;  // the same for both types

constexpr int kWarps = 2;  // of a block, a row each
constexpr int kSteps = 4;  // edges that a group has in flight
constexpr int kEdgesAtOnce = 16;
constexpr int kFeatures = 8;  // of a lane

// The columns of a row's edges, or of a chunk of them, in their order. Behind the last may come the
// row itself, as a self-loop; then the graph's count for nothing.
struct Columns {
  const int32_t* first;
  int count;
  int row;
  int skipped;  // the row where the graph's self-loops are skipped, else none
  bool loop;

  __device__ int length() const { return count + (loop ? 1 : 0); }
  // The column at a place; past the last edge that one's again, whose rows may be read.
  __device__ int at(int i) const { return __ldg(first + min(i, count - 1)); }
};

// A lane's place in an iteration. It loads 16 bytes of the rows of four edges: step u of group q
// loads those of edge 4 u + q. It has the column and the terms of one edge, as its neighbor does.
struct EdgeLane {
  int side;   // of the features: the first half or the second
  int pair;   // of steps, of which the edge is the first (side 0) or the second
  bool ends;  // whether it has the terms of the edge that ends at the row
  int edge;

  __device__ explicit EdgeLane(int lane)
      : side(lane / 4 % 2),
        pair(lane % 4 / 2),
        ends(lane % 2 != 0),
        edge(4 * (2 * pair + side) + lane / 8) {}
  // The first of the two lanes of a group that have the edge of step u.
  __device__ static int of_step(int u) { return 4 * (u % 2) + 2 * (u / 2); }
};

// What a row's edges are summed with.
template <typename T>
struct Own {
  Vector<T, kFeatures> features;  // of x, in odd groups of dy if edges end at the row
  NodeTerms<float> terms;
  float scale;  // beta over the norm

  template <Edges kEdges>
  __device__ static Own of(const CosineParams<T>& p, const Rows16& at, int64_t row, int head) {
    Own own;
    own.features.word = {};
    const bool of_cotangent = kEdges != Edges::kStarting && at.group % 2 != 0;
    const T* from = of_cotangent ? p.cotangent : p.x;
    if (at.inside) {
      own.features = load_vector<T, kFeatures>(from + row * p.heads * p.F + at.feature);
    }
    own.terms = load_node_terms(p, row, head);
    own.scale = __ldg(p.beta + head) * own.terms.reciprocal;
    return own;
  }
};

// Where the lane's shares of nodes' rows and their terms are.
template <typename T>
struct Sources {
  const T* x;
  const T* cotangent;
  const float4* terms;
  unsigned row_bytes;
  unsigned term_bytes;
};

// One iteration: 16 edges, or with kWhole = false the `left` that are left, of which this lane's
// has this column and counts if it is `there`.
template <Edges kEdges, bool kWhole, typename T>
__device__ inline void add_16(const Sources<T>& from, const Own<T>& own, const EdgeLane& lane,
                              int column, bool there, int left, float (&us)[kFeatures],
                              float (&vs)[kFeatures]) {
  constexpr bool kEnding = kEdges != Edges::kStarting, kStarting = kEdges != Edges::kEnding;
  const float4 terms = __ldg(row_of(from.terms, column, from.term_bytes));
  Vector<T, kFeatures> rows[kSteps], cotangents[kSteps];
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
    if (!kWhole && u % 2 == 0 && 4 * u >= left) break;
    const int c = __shfl_sync(kFullWarp, column, EdgeLane::of_step(u), 8);
    rows[u] = load_vector<T, kFeatures>(row_of(from.x, c, from.row_bytes));
    if constexpr (kStarting) {
      cotangents[u] = load_vector<T, kFeatures>(row_of(from.cotangent, c, from.row_bytes));
    }
  }
  // Of the lane's edge: in even groups' columns <x_j, x_i> and <dy_j, x_i>, in odd ones
  // <x_j, dy_i>.
  float of_x = 0, of_cotangent = 0;
#pragma unroll
  for (int u = 0; u < kSteps; u += 2) {
    if (!kWhole && 4 * u >= left) break;
    const bool mine = lane.pair == u / 2;
    const float dot = edge_dots(rows[u], rows[u + 1], own.features, lane.side);
    if (mine) of_x = dot;
    if constexpr (kStarting) {
      const float other = edge_dots(cotangents[u], cotangents[u + 1], own.features, lane.side);
      if (mine) of_cotangent = other;
    }
  }
  const float cosine = __shfl_sync(kFullWarp, of_x, threadIdx.x & ~1u);
  const float score = cosine * own.scale * terms.z;
  // As an edge that ends at the row, or one that starts.
  const bool ends = kEdges == Edges::kEither ? lane.ends : kEnding;
  const float reference = ends ? own.terms.log_sum : terms.x;
  const float delta = ends ? own.terms.delta : terms.y;
  const float alpha = there ? exponential(score - reference) : 0.0f;
  float ds = alpha * ((ends ? of_x : of_cotangent) - delta);
  if constexpr (kEdges == Edges::kEither) ds += __shfl_xor_sync(kFullWarp, ds, 1);
  const float pull = ds * terms.z;
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
    if (!kWhole && u % 2 == 0 && 4 * u >= left) break;
    const int holder = EdgeLane::of_step(u) + (kStarting ? 0 : 1);
    add_scaled(__shfl_sync(kFullWarp, pull, holder, 8), rows[u], us);
    if constexpr (kStarting) {
      add_scaled(__shfl_sync(kFullWarp, alpha, holder, 8), cotangents[u], vs);
    }
  }
}

template <Edges kEdges, typename T>
__device__ inline void add_edges(const Sources<T>& from, const Own<T>& own, const EdgeLane& lane,
                                 const Columns& columns, float (&us)[kFeatures],
                                 float (&vs)[kFeatures]) {
  const int length = columns.length();
  if (length == 0) return;
  int column = columns.count > 0 ? columns.at(lane.edge) : columns.row, e = 0;
#pragma unroll 1
  for (; e + kEdgesAtOnce <= columns.count; e += kEdgesAtOnce) {
    const int now = column;
    column = columns.at(e + kEdgesAtOnce + lane.edge);
    add_16<kEdges, true>(from, own, lane, now, now != columns.skipped, kEdgesAtOnce, us, vs);
  }
  if (e == length) return;
  const int i = e + lane.edge;
  bool there = i < columns.count && column != columns.skipped;
  if (columns.loop && i >= columns.count) {
    column = columns.row;
    there = i == columns.count;
  }
  add_16<kEdges, false>(from, own, lane, column, there, length - e, us, vs);
}

template <typename T, Edges kEdges>
__global__ void __launch_bounds__(32 * kWarps, 12) tensor_core_walk(const CosineParams<T> p) {
  constexpr bool kStarting = kEdges != Edges::kEnding;
  const int head = static_cast<int>(blockIdx.y);
  const Work work = find_work(p.rows, int64_t{blockIdx.x} * kWarps + threadIdx.x / 32);
  if (work.row < 0) return;
  const Rows16 at(head * p.F, (head + 1) * p.F);
  const Own<T> own = Own<T>::template of<kEdges>(p, at, work.row, head);
  float us[kFeatures] = {}, vs[kFeatures] = {};
  {
    // Past the head's end any of its features: what they are multiplied by is 0.
    const int feature = at.inside ? at.feature : head * p.F;
    const Sources<T> from{p.x + feature, p.cotangent + feature,
                          reinterpret_cast<const float4*>(p.node_terms) + head,
                          static_cast<unsigned>(p.heads * p.F * sizeof(T)),
                          static_cast<unsigned>(p.heads * sizeof(float4))};
    const int row = static_cast<int>(work.row);
    const Columns columns{static_cast<const int32_t*>(p.rows.columns) + work.begin, work.count, row,
                          p.scoring.self_loops ? row : -1, has_loop(p.scoring, p.rows, work)};
    add_edges<kEdges>(from, own, EdgeLane(at.lane), columns, us, vs);
  }
  add_groups(us);
  if constexpr (kStarting) add_groups(vs);
  const int64_t width = int64_t{p.heads} * p.F, place = work.row * width + at.feature;
  const bool stores = at.group == 0 && at.inside;
  if (work.part >= 0) {
    if (!stores) return;
    float* partial = p.partials + work.part * 2 * width + at.feature;
#pragma unroll
    for (int v = 0; v < kFeatures; ++v) {
      partial[v] = us[v];
      if constexpr (kStarting) partial[width + v] = vs[v];
    }
    return;
  }
  if constexpr (kStarting) {
    float dot = 0;  // <x, U>, in group 0, which holds x
#pragma unroll
    for (int v = 0; v < kFeatures; ++v) {
      if (kEdges == Edges::kStarting && at.inside) us[v] += p.carried[place + v];
      dot += unpack(own.features, v) * us[v];
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) dot += __shfl_xor_sync(kFullWarp, dot, offset);
    if (at.lane == 0) p.dots[work.row * p.heads + head] = own.terms.reciprocal * dot;
    if (!stores) return;
    const float beta = __ldg(p.beta + head);
#pragma unroll
    for (int v = 0; v < kFeatures; ++v) {
      vs[v] = gradient(beta, own.terms, dot, unpack(own.features, v), us[v], vs[v]);
    }
    store_vector(p.out + place, vs);
  } else if (stores) {
#pragma unroll
    for (int v = 0; v < kFeatures; ++v) p.carried[place + v] = us[v];
  }
}

}  // namespace

template <typename T, Edges kEdges>
cudaError_t launch_tensor_core_walk(const CosineParams<T>& p, const Launch& launch) {
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  const dim3 grid(blocks_of(workers, kWarps), static_cast<unsigned>(p.heads));
  const auto kernel = tensor_core_walk<T, kEdges>;
  return launch_kernel(launch, kernel, grid, dim3(32 * kWarps), 0, p);
}

#define JAXGNN_WALKS(T)                                                                     \
  template cudaError_t launch_tensor_core_walk<T, Edges::kEnding>(const CosineParams<T>&,   \
                                                                  const Launch&);           \
  template cudaError_t launch_tensor_core_walk<T, Edges::kStarting>(const CosineParams<T>&, \
                                                                    const Launch&);         \
  template cudaError_t launch_tensor_core_walk<T, Edges::kEither>(const CosineParams<T>&,   \
                                                                  const Launch&);
JAXGNN_WALKS(__nv_bfloat16)
JAXGNN_WALKS(__half)
#undef JAXGNN_WALKS

}  // namespace jaxgnn::attention
