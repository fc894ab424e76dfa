// The gradient of attention by cosines for rows of 16-bit values, with its dot products on tensor
// cores: cosine_attention_gradients.cu has the equations and joins the chunks of long rows.
//
// A warp takes a row, or a chunk of one, and a head. Its groups of eight lanes load an edge's rows
// of x and of dy each, 16 edges an iteration.
//
// What a lane has loaded of a row, 16 bytes, is its share of an A operand as it is: the row of
// group q has the rows 2 q and 2 q + 1 of A, a half of it each, for the even ones of its words of
// two features, and 8 rows on for the odd ones. The columns of B are the same four parts of x_i and
// of dy_i. So one product has <x_j, x_i> and <x_j, dy_i> of four edges, as the sums of four of its
// values each, and one of dy_j has <dy_j, x_i>.
#include "cuda/attention/cosine_gradients.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/tiles/place.cuh"

namespace jaxgnn::attention {
namespace {

using tiles::add_groups;

constexpr int kThreads = 32;  // a warp is a block, so that all of it is known to be uniform
constexpr int kSteps = 4;     // edges that a group has in flight at most
constexpr int kFeatures = 8;  // of a lane

// The columns of a row's edges, or of a chunk of them, in their order. Behind the last may come the
// row itself, as a self-loop; then the graph's count for nothing.
struct Columns {
  const int32_t* first;
  int count;
  int row;
  int skipped;  // the row where the graph's self-loops are skipped, else none
  int loop;     // the self-loop's place, or none

  __device__ int length() const { return max(count, loop + 1); }
  // The column at a place; past the last edge that one's again, whose rows may be read.
  __device__ int at(int i) const {
    if (count == 0) return row;
    const int column = __ldg(first + min(i, count - 1));
    return i == loop ? row : column;
  }
  __device__ bool has(int i, int column) const { return i < count ? column != skipped : i == loop; }
};

// A lane's place in an iteration. It loads 16 bytes of the rows of four edges: step u of group q
// loads those of edge 4 u + q. It has the column and the terms of one edge, and so has the lane two
// from it: one has the terms of the edge as it ends at the row, the other as it starts there.
struct EdgeLane {
  bool side;   // which half of the features it loads
  bool ends;   // whether it has the terms of the edge that ends at the row
  bool moved;  // whether its edge's dot products arrive at its neighbor
  int edge;

  __device__ explicit EdgeLane(int lane)
      : side(lane / 4 % 2 != 0),
        ends(lane / 2 % 2 != 0),
        moved(lane % 2 != lane / 4 % 2),
        edge(4 * ((side ? 1 : 0) + (moved ? 2 : 0)) + lane / 8) {}
  // The lane of a group that has the edge of step u.
  __device__ static constexpr int of_step(int u, bool ends) {
    return 4 * (u % 2) + (ends ? 2 : 0) + (u / 2 != u % 2 ? 1 : 0);
  }
};

// What a row's edges are summed with. Lane 8 q + 4 w + t has of B's column 2 q + w two words: from
// vector 4 (q % 2) + t of the row of x, or for q > 1 of dy if edges end at the row, words w and
// w + 2.
struct Own {
  uint32_t words[2];
  float scale;  // beta over the norm
  float log_sum;
  float delta;
};

template <Edges kEdges, typename T>
__device__ inline Own load_own(const CosineParams<T>& p, int lane, int64_t row, int head) {
  const bool of_cotangent = kEdges != Edges::kStarting && lane >= 16;
  const int vector = 4 * (lane / 8 % 2) + lane % 4;
  Own own{};
  if (vector * kFeatures < p.F) {
    const T* from = of_cotangent ? p.cotangent : p.x;
    const uint32_t* words =
        reinterpret_cast<const uint32_t*>(from + (row * p.heads + head) * p.F) + 4 * vector;
    own.words[0] = __ldg(words + lane / 4 % 2);
    own.words[1] = __ldg(words + lane / 4 % 2 + 2);
  }
  const NodeTerms<float> terms = load_node_terms(p, row, head);
  own.scale = __ldg(p.beta + head) * terms.reciprocal;
  own.log_sum = terms.log_sum;
  own.delta = terms.delta;
  return own;
}

// The half of a dot product that lanes 4 side + t of a group have, if t % 2 is their side: with x_i
// for t < 2, else with dy_i.
template <typename T>
__device__ inline float half_dot(const Vector<T, kFeatures>& row, const Own& own) {
  float products[4] = {};
  multiply(products, row.bits, own.words[0], own.words[1], Tag<T>{});
  return products[0] + products[3];
}

// The dot product of the lane's edge, from the halves of the group's.
template <int kCount>
__device__ inline float join_halves(const EdgeLane& lane, const float (&halves)[kCount]) {
  float dots[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float keep = lane.side ? halves[2 * i + 1] : halves[2 * i];
    const float give = lane.side ? halves[2 * i] : halves[2 * i + 1];
    dots[i] = keep + __shfl_xor_sync(kFullWarp, give, 5);
  }
  if constexpr (kCount == 2) return dots[0];
  const float second = __shfl_xor_sync(kFullWarp, dots[kCount / 2 - 1], 1);
  return lane.moved ? second : dots[0];
}

// Where the lane's shares of nodes' rows and their terms are.
template <typename T>
struct Sources {
  const T* x;
  const T* cotangent;
  const float4* terms;
  unsigned row_bytes;
  unsigned term_bytes;
};

// One iteration: `kCount` edges of each group. The lane's has this column, and counts if it is
// `there`; lanes of others have any column that the row has.
template <Edges kEdges, int kCount, typename T>
__device__ inline void add_iteration(const Sources<T>& from, const Own& own, const EdgeLane& lane,
                                     int column, bool there, float (&us)[kFeatures],
                                     float (&vs)[kFeatures]) {
  constexpr bool kEnding = kEdges != Edges::kStarting, kStarting = kEdges != Edges::kEnding;
  const float4 terms = __ldg(row_of(from.terms, column, from.term_bytes));
  Vector<T, kFeatures> rows[kCount], cotangents[kCount];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const int c = __shfl_sync(kFullWarp, column, EdgeLane::of_step(u, false), 8);
    rows[u] = load_vector<T, kFeatures>(row_of(from.x, c, from.row_bytes));
    if constexpr (kStarting) {
      cotangents[u] = load_vector<T, kFeatures>(row_of(from.cotangent, c, from.row_bytes));
    }
  }
  float of_x[kCount] = {}, of_cotangent[kCount] = {};
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    of_x[u] = half_dot(rows[u], own);
    if constexpr (kStarting) of_cotangent[u] = half_dot(cotangents[u], own);
  }
  // <x_j, x_i>, or in lanes of edges that end here <x_j, dy_i>.
  float change = join_halves(lane, of_x);
  const float dot = __shfl_sync(kFullWarp, change, threadIdx.x & ~2u);
  const float score = dot * own.scale * terms.z;
  const bool ends = kEdges == Edges::kEither ? lane.ends : kEnding;
  if constexpr (kStarting) {
    const float starting = join_halves(lane, of_cotangent);  // <dy_j, x_i>
    if (!ends) change = starting;
  }
  const float reference = ends ? own.log_sum : terms.x, delta = ends ? own.delta : terms.y;
  const float alpha = there ? exponential(score - reference) : 0.0f;
  float ds = alpha * (change - delta);
  if constexpr (kEdges == Edges::kEither) ds += __shfl_xor_sync(kFullWarp, ds, 2);
  const float pull = ds * terms.z;
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const int holder = EdgeLane::of_step(u, !kStarting);
    add_scaled(__shfl_sync(kFullWarp, pull, holder, 8), rows[u], us);
    if constexpr (kStarting) {
      add_scaled(__shfl_sync(kFullWarp, alpha, holder, 8), cotangents[u], vs);
    }
  }
}

template <Edges kEdges, typename T>
__device__ inline void add_edges(const Sources<T>& from, const Own& own, const EdgeLane& lane,
                                 const Columns& columns, float (&us)[kFeatures],
                                 float (&vs)[kFeatures]) {
  int i = lane.edge, column = columns.at(i);
  int left = columns.length();
#pragma unroll 1
  for (; left > 8; left -= 4 * kSteps) {
    const bool there = columns.has(i, column);
    const int now = column;
    i += 4 * kSteps;
    column = columns.at(i);
    add_iteration<kEdges, kSteps>(from, own, lane, now, there, us, vs);
  }
  if (left > 0) {
    add_iteration<kEdges, kSteps / 2>(from, own, lane, column, columns.has(i, column), us, vs);
  }
}

template <typename T, Edges kEdges>
__global__ void __launch_bounds__(kThreads, 20) tensor_core_walk(const CosineParams<T> p) {
  constexpr bool kStarting = kEdges != Edges::kEnding;
  const int head = static_cast<int>(blockIdx.y);
  const Work work = find_work(p.rows, blockIdx.x);
  if (work.row < 0) return;
  const tiles::Lane<T> at(head * p.F, (head + 1) * p.F);
  const Own own = load_own<kEdges>(p, at.lane, work.row, head);
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
                          p.scoring.self_loops ? row : -1,
                          has_loop(p.scoring, p.rows, work) ? work.count : -1};
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
    Vector<T, kFeatures> x;
    x.word = {};
    if (at.inside) x = load_vector<T, kFeatures>(p.x + place);
    float dot = 0;  // <x, U>
#pragma unroll
    for (int v = 0; v < kFeatures; ++v) {
      if (kEdges == Edges::kStarting && at.inside) us[v] += p.carried[place + v];
      dot += unpack(x, v) * us[v];
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) dot += __shfl_xor_sync(kFullWarp, dot, offset);
    const NodeTerms<float> terms = load_node_terms(p, work.row, head);
    if (at.lane == 0) p.dots[work.row * p.heads + head] = terms.reciprocal * dot;
    if (!stores) return;
    const float beta = __ldg(p.beta + head);
#pragma unroll
    for (int v = 0; v < kFeatures; ++v) {
      vs[v] = gradient(beta, terms, dot, unpack(x, v), us[v], vs[v]);
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
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const dim3 grid(static_cast<unsigned>(workers), static_cast<unsigned>(p.heads));
  const auto kernel = tensor_core_walk<T, kEdges>;
  return launch_kernel(launch, kernel, grid, dim3(kThreads), 0, p);
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
