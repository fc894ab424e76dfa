// The linear maps of the derivative of max and min: a warp a row (or a part of a long one), a lane
// a feature, the grid's y axis over slices of 32 features.
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

template <typename T, bool kTranspose>
__global__ void __launch_bounds__(kThreads) select_edges(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32);
  const int64_t f = int64_t(blockIdx.y) * 32 + threadIdx.x % 32;
  if (work.row < 0 || f >= p.width) return;
  const int64_t head = f / (p.width / p.heads);
  const T* at_row = kTranspose ? p.x : p.y;
  const T* at_column = kTranspose ? p.y : p.x;
  const A own = widen(at_row[work.row * p.width + f]);
  A acc[1] = {A(0)};
#pragma unroll 4
  for (int i = 0; i < work.count; ++i) {
    const int64_t edge = work.begin + i;
    const int64_t place = load_column(p.rows, edge) * p.width + f;
    const A other = widen(at_column[place]);
    A x = kTranspose ? own : other;
    const A y = kTranspose ? other : own;
    if (p.weights != nullptr) x = widen(narrow<T, A>(p.weights[edge * p.heads + head] * x));
    if (x == y) {
      A term = p.values != nullptr ? widen(p.values[place]) : A(1);
      if (p.scale != nullptr) term *= p.scale[edge * p.heads + head];
      acc[0] += term;
    }
  }
  store_row<T, 1, A>(work, p.out, p.partials, p.width, f, false, acc);
}

template <typename T, bool kTranspose>
cudaError_t launch_kernel(const Params<T>& p, bool load, cudaStream_t stream) {
  if (load) return load_kernel(select_edges<T, kTranspose>);
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  const dim3 grid(static_cast<unsigned>((workers * 32 + kThreads - 1) / kThreads),
                  static_cast<unsigned>((p.width + 31) / 32));
  select_edges<T, kTranspose><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
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
  if (load || args.transpose) JAXGNN_TRY((launch_kernel<T, true>(p, load, stream)));
  if (load || !args.transpose) JAXGNN_TRY((launch_kernel<T, false>(p, load, stream)));
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
