// Row-wise reduction of gathered rows, without atomics.
//
// A lane holds 16 bytes of a row of x. Two mappings, chosen by the mean row length (static):
//   long rows: a warp a row. The feature axis is cut into slices of 128 bytes, eight lanes each,
//     so that a slice of all of x stays in the L2 cache while every edge reads it; the slices are
//     the grid's y axis, hence run one after the other. The warp's four groups take every fourth
//     chunk of four edges and add up at the end. A chunk's column indices are one aligned 16-byte
//     load: fetched one by one they cost as many L1 wavefronts as the rows themselves.
//   short rows: 32 lanes (8 if x is that narrow) walk a row alone. If rows are tiny, several one
//     after the other, for the start of a block costs more than a row of five edges. The indices
//     of the next four edges, also across the end of a row, are loaded behind the rows of x.
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
  unsigned row_bytes;        // from a row of x to the next
  unsigned rows_per_worker;  // of short_rows
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

// As many blocks a multiprocessor as the registers allow without spilling (on sm_90).
template <typename T, bool kWeighted>
constexpr int kShortBlocks = kWeighted ? (sizeof(T) == 4 ? 16 : 14) : (sizeof(T) == 4 ? 20 : 16);

// Each kLanes lanes take a part of a long row, or p.rows_per_worker rows one after the other.
// Numbers of rows fit in 32 bits (launch_type), and so does the size of a row of x (a grid has at
// most 65,535 slices); numbers of edges need not.
template <typename T, typename Op, int V, int kLanes, bool kWeighted>
__global__ void __launch_bounds__(kThreads, kShortBlocks<T, kWeighted>)
    short_rows(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr int kSteps = 4;
  const int f = (blockIdx.y * kLanes + threadIdx.x % kLanes) * V;
  if (f >= p.width) return;
  const int head = kWeighted && p.heads > 1 ? f / p.head_width : 0;
  const T* x = p.x + f;
  const int32_t* columns = static_cast<const int32_t*>(p.rows.columns);
  const unsigned worker = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
  const unsigned splits = p.rows.num_splits;
  const unsigned all = splits + static_cast<unsigned>(p.rows.num_rows);
  unsigned item = worker < splits ? worker : splits + (worker - splits) * p.rows_per_worker;
  if (item >= all) return;
  const unsigned last = worker < splits ? item + 1 : min(item + p.rows_per_worker, all);

  struct Stretch {
    int64_t begin;
    int count;  // -1: nothing to do
  };
  const auto whole_row = [&](unsigned row) -> Stretch {  // find_work has more to carry
    if (p.rows.wide_offsets) {
      const int64_t* at = static_cast<const int64_t*>(p.rows.offsets) + row;
      const int64_t degree = at[1] - at[0];
      return {at[0], degree > p.rows.split_length ? -1 : static_cast<int>(degree)};
    }
    const int32_t* at = static_cast<const int32_t*>(p.rows.offsets) + row;
    const int degree = at[1] - at[0];
    return {at[0], degree > p.rows.split_length ? -1 : degree};
  };
  unsigned from[kSteps];
  const auto load_from = [&](int64_t begin, int count) {
    if (columns != nullptr) {
      const int32_t* at = columns + begin;
      asm volatile("" : "+l"(at));  // else the address is computed anew for each
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (u < count) from[u] = __ldg(at + u);
      }
    } else {
#pragma unroll
      for (int u = 0; u < kSteps; ++u) from[u] = static_cast<unsigned>(begin) + u;
    }
  };

  Stretch next;
  if (worker < splits) {
    const Work part = find_work(p.rows, worker);
    next = {part.begin, part.row < 0 ? -1 : part.count};
  } else {
    next = whole_row(item - splits);
  }
  load_from(next.begin, next.count);
#pragma unroll 1
  for (; item < last; ++item) {
    Stretch now = next;
    next = item + 1 < last ? whole_row(item + 1 - splits) : Stretch{0, 0};
    A acc[V];
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] = Op::template identity<A>(p.minimum);
    int left = now.count;
#pragma unroll 1
    do {
      Pack<T, V> row[kSteps];
      A scale[kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (u < left) {
          row[u] = load_pack<T, V>(row_of(x, from[u], p.row_bytes));
          if (kWeighted) scale[u] = p.weights[(now.begin + u) * p.heads + head];
        }
      }
      now.begin += kSteps;
      const bool more = left > kSteps;
      load_from(more ? now.begin : next.begin, more ? left - kSteps : next.count);
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (u < left) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            A v = unpack(row[u], i);
            if (kWeighted) v = Op::template term<T, A>(scale[u], v);
            acc[i] = Op::template combine<A>(acc[i], v, p.minimum);
          }
        }
      }
      left -= kSteps;
    } while (left > 0);
    if (now.count < 0) continue;
    Work work{int64_t(item) - splits, -1, 0, now.count, now.count};
    if (item < splits) work.part = item;
    store<T, Op, V>(p, work, f, acc);
  }
}

// Columns or rows that do not fit in 32 bits (2^31 edges or more, read through a permutation or in
// their order): right, not fast.
template <typename T, typename Op>
__global__ void __launch_bounds__(kThreads) wide_rows(const Params<T> p) {
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

// Mean row lengths up to which several rows share a worker, and from which a warp splits a row.
constexpr int64_t kTinyRow = 16;
constexpr int64_t kLongRow = 64;

template <typename T, typename Op, int V, int kLanes, bool kWeighted>
cudaError_t launch_short(const Params<T>& p, bool load, cudaStream_t stream) {
  const int64_t workers =
      p.rows.num_splits + (p.rows.num_rows + p.rows_per_worker - 1) / p.rows_per_worker;
  return launch_kernel<T>(short_rows<T, Op, V, kLanes, kWeighted>, p, workers, kLanes, kLanes * V,
                          load, stream);
}

template <typename T, typename Op, bool kWeighted>
cudaError_t launch_mapped(const Params<T>& p, bool load, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const auto is_aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  const bool aligned = p.head_width % V == 0 && is_aligned(p.x) && is_aligned(p.out);
  if (load || !aligned) {
    JAXGNN_TRY((launch_short<T, Op, 1, 32, kWeighted>(p, load, stream)));
    if (!load) return cudaSuccess;
  }
  const bool is_long = p.rows.num_edges >= kLongRow * p.rows.num_rows &&
                       is_aligned(p.rows.columns) && is_aligned(p.weights);
  const bool narrow = p.width <= 8 * V;
  if (load || is_long) {
    const int64_t workers = p.rows.num_splits + p.rows.num_rows;
    JAXGNN_TRY(
        (launch_kernel<T>(long_rows<T, Op, V, kWeighted>, p, workers, 32, 8 * V, load, stream)));
  }
  if (load || (!is_long && narrow)) {
    JAXGNN_TRY((launch_short<T, Op, V, 8, kWeighted>(p, load, stream)));
  }
  if (load || (!is_long && !narrow)) {
    JAXGNN_TRY((launch_short<T, Op, V, 32, kWeighted>(p, load, stream)));
  }
  return cudaSuccess;
}

template <typename T, typename Op>
cudaError_t launch_type(const Params<T>& p, bool load, cudaStream_t stream) {
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  const bool wide = p.rows.wide_columns || workers > INT32_MAX ||
                    (p.rows.columns == nullptr && p.rows.num_edges > INT32_MAX);
  if (load || wide) {
    JAXGNN_TRY((launch_kernel<T>(wide_rows<T, Op>, p, workers, 32, 32, load, stream)));
  }
  if (load || (!wide && p.weights != nullptr)) {
    JAXGNN_TRY((launch_mapped<T, Op, true>(p, load, stream)));
  }
  if (load || (!wide && p.weights == nullptr)) {
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
              static_cast<unsigned>(args.width * sizeof(T)),
              args.rows.num_edges < kTinyRow * args.rows.num_rows ? 4u : 1u,
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
