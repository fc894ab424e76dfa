// Row-wise reduction of gathered rows, without atomics.
//
// A lane holds 16 bytes of a row of x. Two mappings, chosen by the mean row length (static):
//   long rows: a warp a row. The feature axis is cut into slices of 128 bytes, eight lanes each,
//     so that a slice of all of x stays in the L2 cache while every edge reads it; the slices are
//     the grid's y axis, hence run one after the other. The warp's four groups take every fourth
//     chunk of four edges and add up at the end. A chunk's column indices are one aligned 16-byte
//     load: fetched one by one they cost as many L1 wavefronts as the rows themselves.
//   short rows: 32 lanes (8 if x is that narrow) walk a row alone, several rows one after the
//     other, because the start of a block costs more than a row of five edges.
// Rows over the split length are taken in parts; a second kernel adds the parts in their order.
// docs/performance.md has the measurements behind these choices.
#include "reduce.cuh"
#include "spmm.h"

namespace jaxgnn {
namespace {

constexpr int kThreads = 64;  // small blocks: a finished row frees its place early

template <typename T>
struct Params {
  using A = typename Accumulator<T>::type;
  Rows rows;
  const T* x;
  const A* weights;
  T* out;
  A* partials;
  int64_t width;
  int heads;
  int head_width;
  bool mean;
  bool minimum;
};

template <typename T, typename Op, int V>
__device__ inline void store(const Params<T>& p, const Work& work, int64_t f,
                             typename Accumulator<T>::type (&acc)[V]) {
  store_row<T, V>(work, p.out, p.partials, p.width, f, p.mean, acc);
}

// One worker's walk over the edges of a long row: `group` takes every kGroups-th chunk of four.
template <typename T, typename Op, int V, bool kWeighted>
struct Walk {
  static constexpr int kGroups = 4;
  static constexpr int kLanes = 32 / kGroups;
  using A = typename Accumulator<T>::type;

  const Params<T>& p;
  const T* x;  // at this lane's features
  const int32_t* columns;
  int64_t begin, end;
  int head;
  A acc[V];

  __device__ void add(A scale, const Pack<T, V>& row) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A v = unpack(row, i);
      if (kWeighted) v = Op::template term<T, A>(scale, v);
      acc[i] = Op::template combine<A>(acc[i], v, p.minimum);
    }
  }

  __device__ Pack<T, V> fetch(int column) const {
    return load_pack<T, V>(x + int64_t(column) * p.width);
  }

  __device__ void load_weights(int64_t e, A (&scale)[4]) const {
    if (p.heads == 1) {  // e is a multiple of 4, so that the load is aligned
      constexpr int kPer = 16 / sizeof(A);
#pragma unroll
      for (int k = 0; k < 4 / kPer; ++k) {
        const Pack<A, kPer> pack = load_pack<A, kPer>(p.weights + e + k * kPer);
#pragma unroll
        for (int i = 0; i < kPer; ++i) scale[k * kPer + i] = unpack(pack, i);
      }
    } else {
#pragma unroll
      for (int u = 0; u < 4; ++u) scale[u] = p.weights[(e + u) * p.heads + head];
    }
  }

  // kChunks chunks, kGroups apart, of which every edge belongs to the row.
  template <int kChunks>
  __device__ void whole(int64_t e) {
    int column[kChunks][4];
    A scale[kChunks][4];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t at = e + c * 4 * kGroups;
      if (columns != nullptr) {
        const int4 four = __ldg(reinterpret_cast<const int4*>(columns + at));
        column[c][0] = four.x, column[c][1] = four.y, column[c][2] = four.z, column[c][3] = four.w;
      } else {
#pragma unroll
        for (int u = 0; u < 4; ++u) column[c][u] = static_cast<int>(at) + u;
      }
      if (kWeighted) load_weights(at, scale[c]);
    }
    Pack<T, V> row[kChunks][4];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int u = 0; u < 4; ++u) row[c][u] = fetch(column[c][u]);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int u = 0; u < 4; ++u) add(scale[c][u], row[c][u]);
    }
  }

  // A chunk at the row's begin or end: only its edges within the row.
  __device__ void partial(int64_t e) {
    Pack<T, V> row[4];
    A scale[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int64_t at = e + u;
      if (at >= begin && at < end) {
        row[u] = fetch(columns != nullptr ? columns[at] : static_cast<int>(at));
        if (kWeighted) scale[u] = p.weights[at * p.heads + head];
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (e + u >= begin && e + u < end) add(scale[u], row[u]);
    }
  }

  __device__ void run(int group) {
    const int64_t first = begin & ~int64_t(3);
    const int whole_chunks = static_cast<int>((end - first) / 4);
    const int chunks = static_cast<int>((end - first + 3) / 4);
    int c = group;
    if (c == 0 && first < begin) {
      partial(first);
      c += kGroups;
    }
    for (; c + kGroups < whole_chunks; c += 2 * kGroups) whole<2>(first + 4 * c);
    for (; c < whole_chunks; c += kGroups) whole<1>(first + 4 * c);
    if (c < chunks) partial(first + 4 * c);
  }
};

template <typename T, typename Op, int V, bool kWeighted>
__global__ void __launch_bounds__(kThreads, kWeighted ? 14 : 16) long_rows(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  using RowWalk = Walk<T, Op, V, kWeighted>;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32);
  if (work.row < 0) return;
  const int lane = threadIdx.x % 32;
  const int64_t f = (int64_t(blockIdx.y) * RowWalk::kLanes + lane % RowWalk::kLanes) * V;
  const bool active = f < p.width;  // lanes beyond the width repeat the first ones' work
  RowWalk walk{p,
               p.x + (active ? f : 0),
               static_cast<const int32_t*>(p.rows.columns),
               work.begin,
               work.begin + work.count,
               kWeighted && p.heads > 1 && active ? static_cast<int>(f / p.head_width) : 0,
               {}};
#pragma unroll
  for (int i = 0; i < V; ++i) walk.acc[i] = Op::template identity<A>(p.minimum);
  walk.run(lane / RowWalk::kLanes);
#pragma unroll
  for (int offset = RowWalk::kLanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A other = __shfl_xor_sync(kFullWarp, walk.acc[i], offset);
      walk.acc[i] = Op::template combine<A>(walk.acc[i], other, p.minimum);
    }
  }
  if (lane < RowWalk::kLanes && active) store<T, Op, V>(p, work, f, walk.acc);
}

template <typename T, typename Op, int V, int kLanes, int kRows, bool kWeighted>
__global__ void __launch_bounds__(kThreads) short_rows(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr int kSteps = 4;
  const int64_t worker = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int64_t f = (int64_t(blockIdx.y) * kLanes + threadIdx.x % kLanes) * V;
  if (f >= p.width) return;
  const int head = kWeighted && p.heads > 1 ? static_cast<int>(f / p.head_width) : 0;
  const T* x = p.x + f;
  const int32_t* columns = static_cast<const int32_t*>(p.rows.columns);
  // The parts of long rows come first, one a worker; then kRows rows a worker.
  const int64_t splits = p.rows.num_splits;
  const int64_t first = worker < splits ? worker : splits + (worker - splits) * kRows;
  const int count = worker < splits ? 1 : kRows;
#pragma unroll 1
  for (int k = 0; k < count; ++k) {
    const Work work = find_work(p.rows, first + k);
    if (work.row < 0) continue;
    A acc[V];
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] = Op::template identity<A>(p.minimum);
#pragma unroll 1
    for (int base = 0; base < work.count; base += kSteps) {
      const int64_t e = work.begin + base;
      Pack<T, V> row[kSteps];
      A scale[kSteps];
      int from[kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (base + u < work.count) {
          from[u] = columns != nullptr ? columns[e + u] : static_cast<int>(e) + u;
          if (kWeighted) scale[u] = p.weights[(e + u) * p.heads + head];
        }
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (base + u < work.count) row[u] = load_pack<T, V>(x + int64_t(from[u]) * p.width);
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (base + u < work.count) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            A v = unpack(row[u], i);
            if (kWeighted) v = Op::template term<T, A>(scale[u], v);
            acc[i] = Op::template combine<A>(acc[i], v, p.minimum);
          }
        }
      }
    }
    store<T, Op, V>(p, work, f, acc);
  }
}

// 64-bit columns (2^31 edges or more, read through a permutation): right, not fast.
template <typename T, typename Op>
__global__ void __launch_bounds__(kThreads) wide_columns(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  const int64_t worker = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const Work work = find_work(p.rows, worker);
  const int64_t f = int64_t(blockIdx.y) * 32 + threadIdx.x % 32;
  if (work.row < 0 || f >= p.width) return;
  const int head = static_cast<int>(f / p.head_width);
  A acc[1] = {Op::template identity<A>(p.minimum)};
  for (int i = 0; i < work.count; ++i) {
    const int64_t edge = work.begin + i;
    A v = widen(p.x[load_column(p.rows, edge) * p.width + f]);
    if (p.weights != nullptr) v = Op::template term<T, A>(p.weights[edge * p.heads + head], v);
    acc[0] = Op::template combine<A>(acc[0], v, p.minimum);
  }
  store<T, Op, 1>(p, work, f, acc);
}

// Launches a kernel of `workers` times `lanes` threads on slices of `slice` features, or with
// `load` only loads it into the context.
template <typename T>
cudaError_t launch_kernel(void (*kernel)(Params<T>), const Params<T>& p, int64_t workers, int lanes,
                          int64_t slice, bool load, cudaStream_t stream) {
  if (load) return load_kernel(kernel);
  const int64_t per_block = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>((workers + per_block - 1) / per_block),
                  static_cast<unsigned>((p.width + slice - 1) / slice));
  void* arguments[] = {const_cast<Params<T>*>(&p)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(kThreads), arguments, 0,
                          stream);
}

template <typename T, typename Op, int V, int kLanes, int kRows, bool kWeighted>
cudaError_t launch_short(const Params<T>& p, bool load, cudaStream_t stream) {
  const int64_t workers = p.rows.num_splits + (p.rows.num_rows + kRows - 1) / kRows;
  return launch_kernel<T>(short_rows<T, Op, V, kLanes, kRows, kWeighted>, p, workers, kLanes,
                          kLanes * V, load, stream);
}

// Mean row lengths up to which several rows share a worker, and from which a warp splits a row.
constexpr int64_t kTinyRow = 16;
constexpr int64_t kLongRow = 64;

template <typename T, typename Op, bool kWeighted>
cudaError_t launch_mapped(const Params<T>& p, bool load, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const auto is_aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  const bool aligned = p.head_width % V == 0 && is_aligned(p.x) && is_aligned(p.out);
  if (load || !aligned) {
    JAXGNN_TRY((launch_short<T, Op, 1, 32, 1, kWeighted>(p, load, stream)));
    if (!load) return cudaSuccess;
  }
  const bool tiny = p.rows.num_edges < kTinyRow * p.rows.num_rows;
  const bool is_long = p.rows.num_edges >= kLongRow * p.rows.num_rows &&
                       is_aligned(p.rows.columns) && is_aligned(p.weights);
  const bool narrow = p.width <= 8 * V;
  if (load || is_long) {
    const int64_t workers = p.rows.num_splits + p.rows.num_rows;
    JAXGNN_TRY(
        (launch_kernel<T>(long_rows<T, Op, V, kWeighted>, p, workers, 32, 8 * V, load, stream)));
  }
  if (load || (!is_long && tiny && narrow)) {
    JAXGNN_TRY((launch_short<T, Op, V, 8, 4, kWeighted>(p, load, stream)));
  }
  if (load || (!is_long && tiny && !narrow)) {
    JAXGNN_TRY((launch_short<T, Op, V, 32, 4, kWeighted>(p, load, stream)));
  }
  if (load || (!is_long && !tiny && narrow)) {
    JAXGNN_TRY((launch_short<T, Op, V, 8, 1, kWeighted>(p, load, stream)));
  }
  if (load || (!is_long && !tiny && !narrow)) {
    JAXGNN_TRY((launch_short<T, Op, V, 32, 1, kWeighted>(p, load, stream)));
  }
  return cudaSuccess;
}

template <typename T, typename Op>
cudaError_t launch_type(const Params<T>& p, bool load, cudaStream_t stream) {
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  if (load || p.rows.wide_columns) {
    JAXGNN_TRY((launch_kernel<T>(wide_columns<T, Op>, p, workers, 32, 32, load, stream)));
  }
  if (load || (!p.rows.wide_columns && p.weights != nullptr)) {
    JAXGNN_TRY((launch_mapped<T, Op, true>(p, load, stream)));
  }
  if (load || (!p.rows.wide_columns && p.weights == nullptr)) {
    JAXGNN_TRY((launch_mapped<T, Op, false>(p, load, stream)));
  }
  return launch_join<T, Op>(p.rows, p.partials, p.out, p.width, p.mean, p.minimum, load, stream);
}

template <typename T>
cudaError_t launch_value(const SpmmArgs& args, bool load, cudaStream_t stream) {
  using A = typename Accumulator<T>::type;
  Params<T> p{args.rows,
              static_cast<const T*>(args.x),
              static_cast<const A*>(args.weights),
              static_cast<T*>(args.out),
              static_cast<A*>(args.partials),
              args.width,
              static_cast<int>(args.heads),
              static_cast<int>(args.width / (args.heads > 0 ? args.heads : 1)),
              args.reduce == Reduce::kMean,
              args.reduce == Reduce::kMin};
  if (load) JAXGNN_TRY((launch_type<T, Extremum>(p, true, stream)));
  if (load || args.reduce == Reduce::kSum || args.reduce == Reduce::kMean) {
    return launch_type<T, Sum>(p, load, stream);
  }
  return launch_type<T, Extremum>(p, false, stream);
}

}  // namespace

cudaError_t launch_spmm(const SpmmArgs& args, cudaStream_t stream) {
  if (args.rows.num_rows == 0 || args.width == 0) return cudaSuccess;
  return with_type(args.type, [&](auto tag) {
    return launch_value<typename decltype(tag)::type>(args, false, stream);
  });
}

cudaError_t load_spmm() {
  return with_each_type([](auto tag) {
    return launch_value<typename decltype(tag)::type>(SpmmArgs{}, true, nullptr);
  });
}

}  // namespace jaxgnn
