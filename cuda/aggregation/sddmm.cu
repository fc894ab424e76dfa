// Dot products on edges. A warp walks a row (or a chunk of a long one). Each of its four groups of
// eight lanes processes an edge, so that the receiver's features stay in the L1 cache while the
// senders' features stream through, 16 bytes a lane. A matrix of wide rows that exceeds the L2
// cache is processed in slices of its features, which add to the result in sequence.
#include "cuda/aggregation/aggregation.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::aggregation {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 8;
constexpr int kGroups = 32 / kLanes;

template <typename T>
struct Params {
  using A = typename Accumulator<T>::type;
  Rows rows;
  const T* a;
  const T* b;
  A* out;
  int64_t heads;
  int64_t width;
  const T* x;
  const T* y;
  const A* weights;
};

// Whether the edge with this weight attained the extremum at a feature.
template <typename T, typename A>
__device__ inline bool attained(bool weighted, A weight, A x, A y) {
  return (weighted ? widen(narrow<T, A>(weight * x)) : x) == y;
}

template <typename T, int V, bool kPattern>
__global__ void __launch_bounds__(kThreads) edge_dots(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32);
  if (work.row < 0) return;
  const int lane = threadIdx.x % kLanes;
  const int group = threadIdx.x % 32 / kLanes;
  const unsigned mask = ((1u << kLanes) - 1) << (group * kLanes);
  const int64_t stride = p.heads * p.width;
  const T* a = p.a + work.row * stride;
  for (int i = group; i < work.count; i += kGroups) {
    const int64_t edge = work.begin + i;
    const int64_t column = load_column(p.rows, edge);
    const T* b = p.b + column * stride;
    for (int64_t h = 0; h < p.heads; ++h) {
      const bool weighted = kPattern && p.weights != nullptr;
      const A weight = weighted ? p.weights[edge * p.heads + h] : A(0);
      A sum = A(0);
#pragma unroll 4
      for (int64_t d = h * p.width + lane * V; d < (h + 1) * p.width; d += kLanes * V) {
        const Vector<T, V> left = load_vector<T, V>(a + d);
        const Vector<T, V> right = load_vector<T, V>(b + d);
        if constexpr (kPattern) {
          const Vector<T, V> x = load_vector<T, V>(p.x + column * stride + d);
          const Vector<T, V> y = load_vector<T, V>(p.y + work.row * stride + d);
#pragma unroll
          for (int k = 0; k < V; ++k) {
            if (attained<T, A>(weighted, weight, unpack(x, k), unpack(y, k))) {
              sum += unpack(left, k) * unpack(right, k);
            }
          }
        } else {
#pragma unroll
          for (int k = 0; k < V; ++k) sum += unpack(left, k) * unpack(right, k);
        }
      }
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(mask, sum, offset);
      }
      if (lane == 0) p.out[edge * p.heads + h] = sum;
    }
  }
}

// The features [first, first + kLanes V) of the dot products, added to what earlier slices left. A
// warp a row or part, in tiles of 32 edges; group g of eight lanes has the tile's edges from 8 g.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) edge_dots_of_slice(const Params<T> p, int64_t first) {
  using A = typename Accumulator<T>::type;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32);
  if (work.row < 0) return;
  const int lane = threadIdx.x % 32, local = lane % kLanes, group = lane / kLanes;
  const int64_t feature = first + local * V;
  const bool active = feature < p.width;
  const unsigned row_bytes = static_cast<unsigned>(p.width * sizeof(T));
  const T* b = p.b + (active ? feature : 0);
  Vector<T, V> own{};
  if (active) own = load_vector<T, V>(p.a + work.row * p.width + feature);
  const int32_t* columns = static_cast<const int32_t*>(p.rows.columns) + work.begin;
  int next = lane < work.count ? __ldg(columns + lane) : 0;
  for (int begin = 0; begin < work.count; begin += 32) {
    const int left = work.count - begin, column = next;
    next = lane + 32 < left ? __ldg(columns + begin + 32 + lane) : 0;
    A* out = p.out + work.begin + begin + lane;
    const A before = first > 0 && lane < left ? *out : A(0);
    Vector<T, V> vectors[kLanes];
#pragma unroll
    for (int u = 0; u < kLanes; ++u) {
      const unsigned from = __shfl_sync(kFullWarp, column, u, kLanes);
      vectors[u] = {};
      if (active && group * kLanes + u < left)
        vectors[u] = load_vector<T, V>(row_of(b, from, row_bytes));
    }
    A sums[kLanes] = {};
#pragma unroll
    for (int u = 0; u < kLanes; ++u) {
#pragma unroll
      for (int k = 0; k < V; ++k) sums[u] += unpack(own, k) * unpack(vectors[u], k);
    }
    const A sum = scatter_sums(sums, local, kFullWarp);
    if (lane < left) *out = before + sum;
  }
}

// Whether the kernel of slices takes rows that many edges read: those of one slice, most of whose
// lanes it needs, and those of several that exceed the L2 cache, where slicing pays for another
// read of the columns and the results in each slice. The results of several heads are contiguous: a
// slice would move all of them.
bool takes_slices(const SddmmArgs& args, int64_t row_bytes) {
  constexpr int64_t kCacheBytes = 32 << 20;
  constexpr int64_t kMeanDegree = 16;
  const bool one = row_bytes > 64 && row_bytes <= 128;
  const bool several = row_bytes >= 256 && args.num_columns * row_bytes > kCacheBytes;
  return args.heads == 1 && args.x == nullptr && !args.rows.wide_columns && (one || several) &&
         args.rows.num_edges >= kMeanDegree * args.rows.num_rows;
}

template <typename T, int V>
cudaError_t launch_slices(const Params<T>& p, const Launch& launch) {
  if (launch.load) return load_kernel(edge_dots_of_slice<T, V>);
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const unsigned blocks = static_cast<unsigned>((workers * 32 + kThreads - 1) / kThreads);
  for (int64_t first = 0; first < p.width; first += kLanes * V) {
    edge_dots_of_slice<T, V><<<blocks, kThreads, 0, launch.stream>>>(p, first);
    JAXGNN_TRY(cudaGetLastError());
  }
  return cudaSuccess;
}

template <typename T, int V, bool kPattern>
cudaError_t launch_dots(const Params<T>& p, const Launch& launch) {
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const unsigned blocks = static_cast<unsigned>((workers * 32 + kThreads - 1) / kThreads);
  return launch_kernel(launch, edge_dots<T, V, kPattern>, blocks, kThreads, 0, p);
}

template <typename T>
cudaError_t launch_type(const SddmmArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const int64_t width = args.heads > 0 ? args.width / args.heads : 0;  // of a head
  const Params<T> p{args.rows,
                    static_cast<const T*>(args.a),
                    static_cast<const T*>(args.b),
                    static_cast<A*>(args.out),
                    args.heads,
                    width,
                    static_cast<const T*>(args.x),
                    static_cast<const T*>(args.y),
                    static_cast<const A*>(args.weights)};
  constexpr int V = 16 / sizeof(T);
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(args.a) | reinterpret_cast<uintptr_t>(args.b) |
      reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.y);
  const bool aligned = width % V == 0 && addresses % 16 == 0;
  const bool pattern = args.x != nullptr;
  const bool sliced = aligned && takes_slices(args, width * int64_t(sizeof(T)));
  if (launch.load || sliced) JAXGNN_TRY((launch_slices<T, V>(p, launch)));
  if (sliced) return cudaSuccess;
  if (launch.load || (aligned && pattern)) JAXGNN_TRY((launch_dots<T, V, true>(p, launch)));
  if (launch.load || (aligned && !pattern)) JAXGNN_TRY((launch_dots<T, V, false>(p, launch)));
  if (launch.load || (!aligned && pattern)) JAXGNN_TRY((launch_dots<T, 1, true>(p, launch)));
  if (launch.load || (!aligned && !pattern)) JAXGNN_TRY((launch_dots<T, 1, false>(p, launch)));
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_sddmm(const SddmmArgs& args, const Launch& launch) {
  if (!launch.load && (args.rows.num_rows == 0 || args.rows.num_edges == 0)) return cudaSuccess;
  return with_type(launch, args.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::aggregation
