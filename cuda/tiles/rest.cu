// The rows of a product over tiles: what their window's tiles made, and the edges in no tile.
//
// A mask's 0 times infinity is NaN, so one value that is not finite makes its feature of all 64
// rows not finite. Where that is so, and where a sum in a tile overflows, the row is summed again
// over all of its edges: what is not finite reaches its own receivers alone. Weighted sums have no
// masks.
#include "cuda/core/dispatch.cuh"
#include "cuda/tiles/place.cuh"

namespace jaxgnn::tiles {
namespace {

constexpr int kWarps = 2;  // of a block, a row each

template <typename T>
struct Params {
  TilesSpmmArgs a;
  const T* x;
  T* out;
};

// Adds the rows of x that columns[begin, end) name, each group every fourth; times the weights of
// the other edges [begin, end).
template <bool kWeighted, typename T, int V = Lane<T>::V>
__device__ inline void add_edges(const Params<T>& p, const Lane<T>& at, const int32_t* columns,
                                 int begin, int end, float (&sums)[V]) {
  const unsigned row_bytes = static_cast<unsigned>(p.a.width * sizeof(T));
  const T* x = p.x + (at.inside ? at.feature : 0);
  const bool one_head = p.a.heads == 1;
  const int64_t head = kWeighted && at.inside ? at.feature / (p.a.width / p.a.heads) : 0;
  const auto column_of = [&](int e) { return e < end ? __ldg(columns + e) : -1; };
  const auto edge_of = [&](int e) { return kWeighted && e < end ? __ldg(p.a.rest_edges + e) : -1; };
  int column = column_of(begin + at.lane), edge = edge_of(begin + at.lane);
  for (int e = begin; e < end; e += 32) {
    const int now = column, now_edge = edge;
    column = column_of(e + 32 + at.lane);
    edge = edge_of(e + 32 + at.lane);
    float weight = 0;
    if (kWeighted && one_head && now_edge >= 0) weight = __ldg(p.a.weights + now_edge);
    Vector<T, V> rows[32 / kGroups];
    float scale[32 / kGroups];
#pragma unroll
    for (int u = 0; u < 32 / kGroups; ++u) {
      const int c = __shfl_sync(kFullWarp, now, kGroups * u + at.group);
      rows[u].word = {};
      if (c >= 0 && at.inside) {
        rows[u] = load_vector<T, V>(row_of(x, static_cast<unsigned>(c), row_bytes));
      }
      scale[u] = 1;
      if (kWeighted && !one_head) {
        const int64_t from = __shfl_sync(kFullWarp, now_edge, kGroups * u + at.group);
        scale[u] = c >= 0 ? __ldg(p.a.weights + from * p.a.heads + head) : 0.0f;
      }
    }
#pragma unroll
    for (int u = 0; u < 32 / kGroups; ++u) {
      if (kWeighted && one_head) {
        scale[u] = __shfl_sync(kFullWarp, weight, kGroups * u + at.group);
      }
      add_scaled<T, V, float>(scale[u], rows[u], sums);
    }
  }
}

// The partial sums of chunks of places with many other edges, a warp each.
template <typename T, bool kWeighted>
__global__ void __launch_bounds__(32) sum_chunks(Params<T> p) {
  constexpr int V = Lane<T>::V;
  const RowPart chunk = p.a.tiles.chunks[blockIdx.x];
  if (chunk.row < 0) return;
  const Lane<T> at(static_cast<int>(blockIdx.y) * 8 * Lane<T>::V, p.a.width);
  const int begin = p.a.tiles.rest_offsets[chunk.row] + chunk.part * p.a.tiles.chunk_length;
  const int last = p.a.tiles.rest_offsets[chunk.row + 1];
  const int end = begin + min(p.a.tiles.chunk_length, last - begin);
  float sums[V] = {};
  add_edges<kWeighted>(p, at, p.a.tiles.rest_columns, begin, end, sums);
  add_groups(sums);
  if (at.group != 0 || !at.inside) return;
  float* to = p.a.partials + blockIdx.x * p.a.width + at.feature;
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = sums[v];
}

template <typename T, bool kWeighted>
__global__ void __launch_bounds__(32 * kWarps, kWeighted ? 12 : 16) sum_rows(Params<T> p) {
  constexpr int V = Lane<T>::V;
  const int place = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  if (place >= p.a.tiles.num_rows) return;
  const Lane<T> at(static_cast<int>(blockIdx.y) * 8 * Lane<T>::V, p.a.width);
  float sums[V] = {};
  const int begin = p.a.tiles.rest_offsets[place], end = p.a.tiles.rest_offsets[place + 1];
  if (end - begin <= p.a.tiles.chunk_length) {
    add_edges<kWeighted>(p, at, p.a.tiles.rest_columns, begin, end, sums);
  } else if (at.inside) {
    const int chunks = (end - begin - 1) / p.a.tiles.chunk_length + 1;
    const float* from = p.a.partials + first_chunk(p.a.tiles, place) * p.a.width + at.feature;
    add_rows(from, p.a.width, chunks, at.group, sums);
  }

  const int row = p.a.tiles.rows[place];
  const int first_slot = p.a.tiles.slot_offsets[place / kWindowRows];
  const int slots = p.a.tiles.slot_offsets[place / kWindowRows + 1] - first_slot;
  float shared[V] = {};
  if (at.inside) {
    const int64_t stride = p.a.width * kWindowRows;
    const float* from =
        p.a.slots + first_slot * stride + place % kWindowRows * p.a.width + at.feature;
    add_rows(from, stride, slots, at.group, shared);
  }
  bool finite = true;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    finite = finite && isfinite(shared[v]);
    sums[v] += shared[v];
  }
  const int all_begin = p.a.tiles.row_offsets[row], all_end = p.a.tiles.row_offsets[row + 1];
  if (!kWeighted && !__all_sync(kFullWarp, finite)) {
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] = 0;
    add_edges<false>(p, at, p.a.tiles.row_columns, all_begin, all_end, sums);
  }
  add_groups(sums);
  if (at.group != 0 || !at.inside) return;
  if (p.a.mean) {
    const float degree = static_cast<float>(max(all_end - all_begin, 1));
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] /= degree;
  }
  store_vector(p.out + int64_t{row} * p.a.width + at.feature, sums);
}

template <typename T, bool kWeighted>
cudaError_t launch_sums(const TilesSpmmArgs& args, const Launch& launch) {
  const Params<T> p{args, static_cast<const T*>(args.x), static_cast<T*>(args.out)};
  const unsigned slices = num_slices(args);
  if (launch.load || args.tiles.num_chunks > 0) {
    const dim3 grid(static_cast<unsigned>(args.tiles.num_chunks), slices);
    JAXGNN_TRY((launch_kernel(launch, sum_chunks<T, kWeighted>, grid, dim3(32), 0, p)));
  }
  const dim3 grid(blocks_of(args.tiles.num_rows, kWarps), slices);
  return launch_kernel(launch, sum_rows<T, kWeighted>, grid, dim3(32 * kWarps), 0, p);
}

}  // namespace

cudaError_t launch_rest(const TilesSpmmArgs& args, const Launch& launch) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool weighted = args.weights != nullptr;
    if (launch.load || weighted) JAXGNN_TRY((launch_sums<T, true>(args, launch)));
    if (launch.load || !weighted) JAXGNN_TRY((launch_sums<T, false>(args, launch)));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::tiles
