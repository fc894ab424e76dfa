// Row-wise reduction of gathered rows: sums and means, maxima and minima, and the number of edges
// that attained those.
#include <type_traits>

#include "cuda/aggregation/aggregation.h"
#include "cuda/aggregation/gathered_rows.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::aggregation {
namespace {

template <typename T>
using Ties = std::conditional_t<sizeof(T) == 2, __half, T>;

template <typename T>
struct Params : GatherParams {
  using A = typename Accumulator<T>::type;
  const T* x;
  const A* weights;
  T* out;
  Ties<T>* ties;  // of the shape of `out`
  A* partials;    // those of the ties follow those of the result
  A sign;         // a minimum is the maximum of the negated terms, negated
  bool mean;
};

enum class Kind { kSum, kExtremum, kTies };

// The maximum number of blocks a multiprocessor without register spills (on sm_90; ties of 16 bits
// spill up to 60 bytes in short rows).
template <typename T>
constexpr int long_blocks(Kind kind, bool weighted) {
  if (kind == Kind::kTies) return weighted ? 8 : sizeof(T) == 4 ? 12 : 10;
  if (weighted) return sizeof(T) == 8 ? 12 : 14;
  return 16;
}
template <typename T>
constexpr int short_blocks(Kind kind, bool weighted) {
  if (kind == Kind::kTies) return sizeof(T) == 4 ? 16 : weighted ? 12 : 14;
  if (weighted) return sizeof(T) == 4 ? 16 : 14;
  return sizeof(T) == 4 ? 20 : 16;
}

// The larger; NaN if either is.
__device__ inline float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline double larger(double a, double b) {
  return Extremum::combine<double>(a, b, false);
}

// The ties of the parts of each long row, of those parts that attained its extremum; after
// join_parts.
template <typename T, typename A>
__global__ void join_ties(const Params<T> p) {
  const int64_t first = blockIdx.x;
  const RowPart chunk = p.rows.chunks[first];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int64_t degree = load_offset(p.rows, chunk.row + 1) - load_offset(p.rows, chunk.row);
  const int64_t parts = (degree + p.rows.chunk_length - 1) / p.rows.chunk_length;
  for (int64_t f = threadIdx.x; f < p.width; f += blockDim.x) {
    const A* extrema = p.partials + first * p.width + f;
    const A* counts = extrema + p.rows.num_chunks * p.width;
    const A extremum = widen(p.out[chunk.row * p.width + f]);
    A sum = A(0);
#pragma unroll 8
    for (int64_t k = 0; k < parts; ++k) {
      if (extrema[k * p.width] == extremum) sum += counts[k * p.width];
    }
    p.ties[chunk.row * p.width + f] = narrow<Ties<T>, A>(sum < A(kMostTies) ? sum : A(kMostTies));
  }
}

template <typename T>
cudaError_t launch_ties_join(const Params<T>& p, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  if (!launch.load && p.rows.num_chunks == 0) return cudaSuccess;
  return launch_kernel(launch, join_ties<T, A>, p.rows.num_chunks, 128, 0, p);
}

template <typename T, Kind kKind, bool kHasWeights>
struct Reduction {
  using Type = T;
  using A = typename Accumulator<T>::type;
  using Params = aggregation::Params<T>;
  static constexpr bool kWeighted = kHasWeights;
  static constexpr bool kNarrowRows = kKind == Kind::kSum;
  static constexpr bool kBlockRows = kKind == Kind::kSum;
  static constexpr InFlight kInFlight = InFlight::kTwoChunks;
  static constexpr int kLongBlocks = long_blocks<T>(kKind, kWeighted);
  static constexpr int kShortBlocks = short_blocks<T>(kKind, kWeighted);

  static cudaError_t join(const Params& p, const Launch& launch) {
    using Op = std::conditional_t<kKind == Kind::kSum, Sum, Extremum>;
    const bool minimum = p.sign < 0;
    JAXGNN_TRY((launch_join<T, Op>(p.rows, p.partials, p.out, p.width, p.mean, minimum, launch)));
    if constexpr (kKind == Kind::kTies) return launch_ties_join<T>(p, launch);
    return cudaSuccess;
  }

  template <int V, bool kLong>
  struct Lane {
    struct Edge {
      Vector<T, V> row;
      A weight;  // if kWeighted
    };

    const Params& p;
    const T* x;  // at this lane's features
    int f;
    int head;
    A acc[V];
    A ties[V];  // of kTies

    __device__ Lane(const Params& p, int64_t f)
        : p(p),
          x(p.x + f),
          f(static_cast<int>(f)),
          head(kWeighted && p.heads > 1 ? static_cast<int>(f) / p.head_width : 0) {}

    __device__ void begin(int64_t) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        acc[i] = kKind == Kind::kSum ? A(0) : A(-INFINITY);
        if (kKind == Kind::kTies) ties[i] = A(0);
      }
    }

    template <typename Column>
    __device__ void fetch(Edge& edge, Column column) const {
      edge.row = load_vector<T, V>(gathered(p, x, column));
    }
    __device__ void weigh(Edge& edge, int64_t e) const {
      edge.weight = p.weights[e * p.heads + head];
    }
    __device__ void weigh_four(Edge* edges, int64_t e) const {
      A weights[4];
      load_four(p, p.weights, e, head, weights);
#pragma unroll
      for (int u = 0; u < 4; ++u) edges[u].weight = weights[u];
    }

    // Products are rounded to T before they are compared, so that equality with the output tells
    // which edges attained it.
    __device__ A term(const Edge& edge, int i) const {
      const A value = unpack(edge.row, i);
      if (kKind == Kind::kSum) return kWeighted ? edge.weight * value : value;
      return kWeighted ? widen(narrow<T, A>(p.sign * edge.weight * value)) : p.sign * value;
    }

    template <int N, typename Valid>
    __device__ void add(const Edge (&edges)[N], Valid valid) {
      if constexpr (kKind != Kind::kTies) {
#pragma unroll
        for (int u = 0; u < N; ++u) {
          if (!valid(u)) continue;
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const A v = term(edges[u], i);
            acc[i] = kKind == Kind::kSum ? acc[i] + v : larger(acc[i], v);
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          A terms[N];
          A most = acc[i];
#pragma unroll
          for (int u = 0; u < N; ++u) {
            terms[u] = term(edges[u], i);
            if (valid(u)) most = larger(most, terms[u]);
          }
          if (!(acc[i] == most)) ties[i] = A(0);  // NaN ties with nothing
#pragma unroll
          for (int u = 0; u < N; ++u) {
            if (valid(u) && terms[u] == most) ties[i] += A(kTie);
          }
          acc[i] = most;
        }
      }
    }

    __device__ void merge(int offset) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A other = __shfl_xor_sync(kFullWarp, acc[i], offset);
        const A both = kKind == Kind::kSum ? acc[i] + other : larger(acc[i], other);
        if constexpr (kKind == Kind::kTies) {
          const A more = __shfl_xor_sync(kFullWarp, ties[i], offset);
          ties[i] = (acc[i] == both ? ties[i] : A(0)) + (other == both ? more : A(0));
        }
        acc[i] = both;
      }
    }

    __device__ void park(A* at) const {
#pragma unroll
      for (int i = 0; i < V; ++i) at[i] = acc[i];
    }
    __device__ void join(const A* at) {  // of kSum
#pragma unroll
      for (int i = 0; i < V; ++i) acc[i] += at[i];
    }

    __device__ void store(const Work& work) {
      if (kKind != Kind::kSum) {
#pragma unroll
        for (int i = 0; i < V; ++i) acc[i] *= p.sign;
      }
      store_row<T, V>(work, p.out, p.partials, p.width, f, kKind == Kind::kSum && p.mean, acc);
      if (kKind == Kind::kTies) {
        A* partials = p.partials + p.rows.num_chunks * p.width;
        store_row<Ties<T>, V>(work, p.ties, partials, p.width, f, false, ties);
      }
    }
  };
};

template <typename T, Kind kKind>
cudaError_t launch_kind(const Params<T>& p, bool narrow_slices, const Launch& launch) {
  const bool rows_aligned = is_aligned(p.x) && is_aligned(p.out) && is_aligned(p.ties);
  const bool weights_aligned = is_aligned(p.weights);
  if (launch.load || p.weights != nullptr) {
    JAXGNN_TRY((launch_rows<Reduction<T, kKind, true>>(p, rows_aligned, weights_aligned, launch,
                                                       narrow_slices)));
  }
  if (launch.load || p.weights == nullptr) {
    JAXGNN_TRY((launch_rows<Reduction<T, kKind, false>>(p, rows_aligned, weights_aligned, launch,
                                                        narrow_slices)));
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_type(const SpmmArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const Params<T> p{gather_params<T>(args.rows, args.width, args.heads, args.num_columns,
                                     args.row_limit, args.longest_row),
                    static_cast<const T*>(args.x),
                    static_cast<const A*>(args.weights),
                    static_cast<T*>(args.out),
                    static_cast<Ties<T>*>(args.ties),
                    static_cast<A*>(args.partials),
                    args.reduce == Reduce::kMin ? A(-1) : A(1),
                    args.reduce == Reduce::kMean};
  const bool sum = args.reduce == Reduce::kSum || args.reduce == Reduce::kMean;
  if (launch.load || sum) JAXGNN_TRY((launch_kind<T, Kind::kSum>(p, args.narrow_slices, launch)));
  if (launch.load || (!sum && p.ties == nullptr)) {
    JAXGNN_TRY((launch_kind<T, Kind::kExtremum>(p, args.narrow_slices, launch)));
  }
  if (launch.load || (!sum && p.ties != nullptr)) {
    JAXGNN_TRY((launch_kind<T, Kind::kTies>(p, args.narrow_slices, launch)));
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_spmm(const SpmmArgs& args, const Launch& launch) {
  if (!launch.load && (args.rows.num_rows == 0 || args.width == 0)) return cudaSuccess;
  return with_type(launch, args.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::aggregation
