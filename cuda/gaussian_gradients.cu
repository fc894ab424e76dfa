// The gradients of the coordinates and of the Gaussians' parameters, by the rows of either end.
//
// A team takes a row, or a part of a long one, and all features: its groups make the dot products
// of the two ends' rows, and the lane that weighs an edge keeps those of up to four kernels. From
// then on an edge is one lane's, and what it adds to sums over a row, or over all edges, are the
// lane's own sums until the row is done. The parameters' are written row by row, in records that
// two more kernels add up in a fixed order. More kernels than four take passes of their own.
#include "ffi/gaussian_limits.h"
#include "gaussian.cuh"
#include "reduce.cuh"

namespace jaxgnn {
namespace {

template <typename T>
struct Params {
  using A = typename Accumulator<T>::type;
  Rows rows;
  Gaussians<A> gaussians;
  const T* cotangent;
  const T* x;
  A* near_gradient;
  A* edge_gradient;
  A* partials;
  A* records;  // [parts + rows, 2 * kernels * dims], or null
  int64_t width;
  bool rows_are_senders;
  int first;  // kernel; those before have been added to the gradients
};

template <typename T, int V, typename A>
__device__ inline void add_product(const Pack<T, V>& a, const Pack<T, V>& b, A& sum) {
#pragma unroll
  for (int i = 0; i < V; ++i) sum += unpack(a, i) * unpack(b, i);
}

// The dot products of a tile's edges under the kernels from p.first on, each for the lane that
// weighs the edge. `left` edges are there. By senders the row has the features of all kernels, and
// an edge's other end one row for all of them; by receivers it is the other way round.
template <bool kSenders, int V, typename Team, int kKernels, typename T, typename A>
__device__ inline void dot_edges(const Params<T>& p, int64_t row, int64_t column, int left,
                                 A (&dots)[kKernels]) {
  constexpr int kInFlight = 4;
  const int last = p.gaussians.kernels - 1 - p.first;
  const int64_t of_kernels = p.gaussians.kernels * p.width;
  const T* own =
      kSenders ? p.x + row * of_kernels + p.first * p.width : p.cotangent + row * p.width;
  const T* others[Team::kLanes];
#pragma unroll
  for (int u = 0; u < Team::kLanes; ++u) {
    const int64_t other = Team::from(column, u);
    others[u] =
        kSenders ? p.cotangent + other * p.width : p.x + other * of_kernels + p.first * p.width;
    if (u * Team::kGroups + Team::group() >= left) others[u] = nullptr;
  }
  A sums[kKernels][Team::kLanes] = {};
#pragma unroll 1
  for (int64_t f = Team::local() * V; f < p.width; f += Team::kLanes * V) {
    // Beyond the last kernel its row is read again, for a number that nobody uses.
    const auto at = [&](int k) { return min(k, last) * p.width + f; };
    Pack<T, V> near[kSenders ? kKernels : 1];
#pragma unroll
    for (int k = 0; k < (kSenders ? kKernels : 1); ++k) near[k] = load_pack<T, V>(own + at(k));
#pragma unroll
    for (int k = 0; k < (kSenders ? 1 : kKernels); ++k) {
#pragma unroll
      for (int first = 0; first < Team::kLanes; first += kInFlight) {
        Pack<T, V> far[kInFlight];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          far[u] = {};
          if (others[first + u] != nullptr) far[u] = load_pack<T, V>(others[first + u] + at(k));
        }
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          if constexpr (kSenders) {
#pragma unroll
            for (int i = 0; i < kKernels; ++i) add_product(near[i], far[u], sums[i][first + u]);
          } else {
            add_product(near[0], far[u], sums[k][first + u]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kKernels; ++k) dots[k] = scatter_sums(sums[k], Team::local(), Team::mask());
}

// As many blocks a multiprocessor as registers allow with hardly any spilled (on sm_90).
template <typename T>
constexpr int kLeastBlocks = sizeof(T) == 4 ? 8 : 6;

template <typename T, bool kSenders, int V, typename Team, int kKernels>
__global__ void __launch_bounds__(kGaussianThreads, kLeastBlocks<T>)
    coordinate_rows(const Params<T> p) {
  using A = typename Accumulator<T>::type;
  const int64_t worker = Team::worker();
  if (worker >= p.rows.num_splits + p.rows.num_rows) return;
  const Work work = find_work(p.rows, worker);
  const Gaussians<A>& g = p.gaussians;
  const int dims = g.dims, kernels = min(kKernels, g.kernels - p.first);
  A near[kMaxDims], first_moments[kKernels * kMaxDims], second_moments[kKernels * kMaxDims];
#pragma unroll 1
  for (int d = 0; d < dims; ++d) near[d] = A(0);
#pragma unroll 1
  for (int i = 0; i < kKernels * dims; ++i) first_moments[i] = second_moments[i] = A(0);

  const int count = work.row < 0 ? 0 : work.count;
  for (int begin = 0; begin < count; begin += Team::kSize) {
    const int edge = begin + Team::slot();
    const bool there = edge < count;
    const int64_t place = work.begin + edge;
    const int64_t column = there ? load_column(p.rows, place) : 0;
    A dots[kKernels] = {};
    const int left = min(count - begin, Team::kSize);
    dot_edges<kSenders, V, Team>(p, work.row, column, left, dots);
    if (!there) continue;
    const Coordinates<A> at(g, work.row, column, place);
    A weights[kKernels];
    weigh(g, at, p.first, weights);
#pragma unroll
    for (int k = 0; k < kKernels; ++k) dots[k] = k < kernels ? dots[k] * weights[k] : A(0);
#pragma unroll 1
    for (int d = 0; d < dims; ++d) {
      const A coordinate = at[d];
      A gradient = A(0);
#pragma unroll
      for (int k = 0; k < kKernels; ++k) {
        const int i = min(p.first + k, g.kernels - 1) * dims + d;
        const A inv_sigma = __ldg(g.inv_sigma + i);
        const A distance = coordinate - __ldg(g.mu + i), product = dots[k] * distance;
        gradient -= product * inv_sigma * inv_sigma;
        first_moments[k * dims + d] += product;
        second_moments[k * dims + d] += product * distance;
      }
      if (g.tanh) gradient *= A(1) - coordinate * coordinate;
      near[d] += gradient;
      if (p.edge_gradient != nullptr) {
        A* to = p.edge_gradient + edge_number(g, place) * dims + d;
        *to = p.first > 0 ? *to + gradient : gradient;
      }
    }
  }
  __syncwarp(Team::mask());
  if (p.near_gradient != nullptr && work.row >= 0) {
    A* to = work.part < 0 ? p.near_gradient + work.row * dims : p.partials + work.part * dims;
#pragma unroll 1
    for (int d = 0; d < dims; ++d) {
      const A sum = Team::template sum<1, Team::kSize>(near[d]);
      if (Team::lane() == 0) to[d] = p.first > 0 ? to[d] + sum : sum;
    }
  }
  if (p.records == nullptr) return;
  A* record = p.records + worker * 2 * g.kernels * dims + p.first * dims;
#pragma unroll 1
  for (int i = 0; i < kernels * dims; ++i) {
    const A first = Team::template sum<1, Team::kSize>(first_moments[i]);
    const A second = Team::template sum<1, Team::kSize>(second_moments[i]);
    if (Team::lane() == 0) record[i] = first, record[g.kernels * dims + i] = second;
  }
}

// Adds up records, `step` apart, in a fixed order: a block `each` of them, into the first one.
// With `final` there is one block, which makes the parameters' gradients of the sum.
constexpr int kColumns = 32, kStripes = 8, kRecords = 1024;

template <typename A>
__global__ void __launch_bounds__(kColumns* kStripes)
    sum_records(A* records, int64_t count, int64_t step, int64_t each, int entries,
                const A* inv_sigma, A* mu_gradient, A* inv_sigma_gradient) {
  __shared__ A stripes[kStripes][kColumns];
  const int column = blockIdx.y * kColumns + threadIdx.x;
  const int64_t first = blockIdx.x * each * step;
  const int64_t last = min(first + each * step, count);
  A sum = A(0);
  if (column < entries) {
    for (int64_t i = first + threadIdx.y * step; i < last; i += kStripes * step) {
      sum += records[i * entries + column];
    }
  }
  stripes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= entries) return;
  sum = A(0);
#pragma unroll
  for (int i = 0; i < kStripes; ++i) sum += stripes[i][threadIdx.x];
  if (mu_gradient == nullptr) {
    records[first * entries + column] = sum;
  } else if (column < entries / 2) {
    mu_gradient[column] = sum * inv_sigma[column] * inv_sigma[column];
  } else {
    const int i = column - entries / 2;
    inv_sigma_gradient[i] = -sum * inv_sigma[i];
  }
}

template <typename A>
cudaError_t launch_sums(const GaussianGradientArgs& args, bool load, cudaStream_t stream) {
  if (load) return load_kernel(sum_records<A>);
  const GaussianArgs& from = args.gaussian;
  const int64_t count = from.rows.num_splits + from.rows.num_rows;
  const int entries = static_cast<int>(2 * from.kernels * from.dims);
  const int64_t blocks = (count + kRecords - 1) / kRecords;
  const dim3 threads(kColumns, kStripes);
  const unsigned across = static_cast<unsigned>((entries + kColumns - 1) / kColumns);
  A* records = static_cast<A*>(args.records);
  const A* inv_sigma = static_cast<const A*>(from.inv_sigma);
  sum_records<A><<<dim3(static_cast<unsigned>(blocks), across), threads, 0, stream>>>(
      records, count, 1, kRecords, entries, inv_sigma, nullptr, nullptr);
  JAXGNN_TRY(cudaGetLastError());
  sum_records<A><<<dim3(1, across), threads, 0, stream>>>(
      records, count, kRecords, blocks, entries, inv_sigma, static_cast<A*>(args.mu_gradient),
      static_cast<A*>(args.inv_sigma_gradient));
  return cudaGetLastError();
}

template <typename T, bool kSenders, int V, typename Team, int kKernels>
cudaError_t launch_rows(const Params<T>& p, bool load, cudaStream_t stream) {
  const auto kernel = coordinate_rows<T, kSenders, V, Team, kKernels>;
  if (load) return load_kernel(kernel);
  const unsigned blocks =
      blocks_of(p.rows.num_splits + p.rows.num_rows, kGaussianThreads / Team::kSize);
  kernel<<<blocks, kGaussianThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename T>
bool is_aligned(const Params<T>& p) {
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.cotangent);
  return sizeof(T) < 8 && p.width % (16 / sizeof(T)) == 0 && addresses % 16 == 0;
}

template <typename T, bool kSenders, int kKernels>
cudaError_t launch_pass(const Params<T>& p, bool load, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const bool is_long = p.rows.num_edges >= kLongGaussianRow * p.rows.num_rows;
  if (load || is_aligned(p)) {
    JAXGNN_TRY((with_aligned_team<T>(p.width, is_long, load, [&](auto team) {
      return launch_rows<T, kSenders, V, decltype(team), kKernels>(p, load, stream);
    })));
  }
  if constexpr (kKernels == 1 || kKernels == 4) {
    if (load || !is_aligned(p)) {
      return launch_rows<T, kSenders, 1, LongTeam, kKernels>(p, load, stream);
    }
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_type(const GaussianGradientArgs& args, bool load, cudaStream_t stream) {
  using A = typename Accumulator<T>::type;
  const GaussianArgs& from = args.gaussian;
  Params<T> p{from.rows,
              make_gaussians<A>(from),
              static_cast<const T*>(args.cotangent),
              static_cast<const T*>(args.x),
              static_cast<A*>(args.near_gradient),
              static_cast<A*>(args.edge_gradient),
              static_cast<A*>(args.partials),
              args.mu_gradient == nullptr ? nullptr : static_cast<A*>(args.records),
              from.width,
              args.rows_are_senders,
              0};
  const int together = load ? 4 : kernels_together(from.kernels, !is_aligned(p));
  for (; load || p.first < from.kernels; p.first += together) {
    JAXGNN_TRY(with_kernels(together, load, [&](auto tag) {
      constexpr int kKernels = decltype(tag)::value;
      if (load || p.rows_are_senders) JAXGNN_TRY((launch_pass<T, true, kKernels>(p, load, stream)));
      if (load || !p.rows_are_senders) {
        return launch_pass<T, false, kKernels>(p, load, stream);
      }
      return cudaSuccess;
    }));
    if (load) break;
  }
  if (load || args.near_gradient != nullptr) {
    JAXGNN_TRY((launch_join<A, Sum>(p.rows, p.partials, p.near_gradient, from.dims, false, false,
                                    load, stream)));
  }
  if (load || args.mu_gradient != nullptr) return launch_sums<A>(args, load, stream);
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_gaussian_coordinates(const GaussianGradientArgs& args, cudaStream_t stream) {
  if (args.gaussian.rows.num_rows == 0 || args.gaussian.kernels == 0) return cudaSuccess;
  return with_type(args.gaussian.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, false, stream);
  });
}

cudaError_t load_gaussian_gradients() {
  return with_each_type([](auto tag) {
    return launch_type<typename decltype(tag)::type>(GaussianGradientArgs{}, true, nullptr);
  });
}

}  // namespace jaxgnn
