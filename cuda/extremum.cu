// The linear maps of the derivative of max and min: eight lanes a row (or a part of a long one) and
// 16 bytes a lane, or a warp and a feature a lane; the grid's y axis is over the slices of
// features.
#include "extremum.h"
#include "reduce.cuh"

namespace jaxgnn {
namespace {

constexpr int kThreads = 64;

template <typename T>
struct Params {
  using A = typename Accumulator<T>::type;
  Rows rows;
  const T* x;
  const T* y;
  const A* weights;
  const T* values;
  const A* scale;
  T* out;
  A* partials;
  int64_t width;
  int64_t heads;
};

template <typename T, int V, int kLanes, bool kTranspose>
__global__ void __launch_bounds__(kThreads) select_edges(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr int kInFlight = 4;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes);
  const int64_t f = (int64_t(blockIdx.y) * kLanes + threadIdx.x % kLanes) * V;
  if (work.row < 0 || f >= p.width) return;
  const int64_t head = f / (p.width / p.heads);
  const T* at_row = kTranspose ? p.x : p.y;
  const T* at_column = kTranspose ? p.y : p.x;
  const Pack<T, V> own = load_pack<T, V>(at_row + work.row * p.width + f);
  A acc[V] = {};
  for (int i = 0; i < work.count; i += kInFlight) {
    Pack<T, V> others[kInFlight], values[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (i + u >= work.count) continue;
      const int64_t place = load_column(p.rows, work.begin + i + u) * p.width + f;
      others[u] = load_pack<T, V>(at_column + place);
      // Not only where they are wanted: the load would wait for the other.
      if (p.values != nullptr) values[u] = load_pack<T, V>(p.values + place);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (i + u >= work.count) continue;
      const int64_t edge = (work.begin + i + u) * p.heads + head;
      const A weight = p.weights != nullptr ? p.weights[edge] : A(1);
      const A scale = p.scale != nullptr ? p.scale[edge] : A(1);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        A x = unpack(kTranspose ? own : others[u], k);
        const A y = unpack(kTranspose ? others[u] : own, k);
        if (p.weights != nullptr) x = widen(narrow<T, A>(weight * x));
        if (x == y) acc[k] += p.values != nullptr ? unpack(values[u], k) * scale : scale;
      }
    }
  }
  store_row<T, V, A>(work, p.out, p.partials, p.width, f, false, acc);
}

template <typename T, int V, int kLanes, bool kTranspose>
cudaError_t launch_kernel(const Params<T>& p, bool load, cudaStream_t stream) {
  if (load) return load_kernel(select_edges<T, V, kLanes, kTranspose>);
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  const dim3 grid(static_cast<unsigned>((workers * kLanes + kThreads - 1) / kThreads),
                  static_cast<unsigned>((p.width + kLanes * V - 1) / (kLanes * V)));
  select_edges<T, V, kLanes, kTranspose><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename T, int V, int kLanes>
cudaError_t launch_either(const Params<T>& p, bool transpose, bool load, cudaStream_t stream) {
  if (load || transpose) JAXGNN_TRY((launch_kernel<T, V, kLanes, true>(p, load, stream)));
  if (load || !transpose) JAXGNN_TRY((launch_kernel<T, V, kLanes, false>(p, load, stream)));
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_type(const ExtremumArgs& args, bool load, cudaStream_t stream) {
  using A = typename Accumulator<T>::type;
  const Params<T> p{args.rows,
                    static_cast<const T*>(args.x),
                    static_cast<const T*>(args.y),
                    static_cast<const A*>(args.weights),
                    static_cast<const T*>(args.values),
                    static_cast<const A*>(args.scale),
                    static_cast<T*>(args.out),
                    static_cast<A*>(args.partials),
                    args.width,
                    args.heads};
  constexpr int V = 16 / sizeof(T);
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.y) |
      reinterpret_cast<uintptr_t>(args.values) | reinterpret_cast<uintptr_t>(args.out);
  const bool packs = args.heads > 0 && args.width / args.heads % V == 0 && addresses % 16 == 0;
  if (load || packs) JAXGNN_TRY((launch_either<T, V, 8>(p, args.transpose, load, stream)));
  if (load || !packs) JAXGNN_TRY((launch_either<T, 1, 32>(p, args.transpose, load, stream)));
  return launch_join<T, Sum>(p.rows, p.partials, p.out, p.width, false, false, load, stream);
}

}  // namespace

cudaError_t launch_extremum(const ExtremumArgs& args, cudaStream_t stream) {
  if (args.rows.num_rows == 0 || args.width == 0) return cudaSuccess;
  return with_type(args.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, false, stream);
  });
}

cudaError_t load_extremum() {
  return with_each_type([](auto tag) {
    return launch_type<typename decltype(tag)::type>(ExtremumArgs{}, true, nullptr);
  });
}

}  // namespace jaxgnn
