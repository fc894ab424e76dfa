// The linear maps of the derivative of max and min, gathered as spmm gathers: of each edge the
// operand that is compared with the row's own, and the values to be added where they are equal.
#include "cuda/aggregation/aggregation.h"
#include "cuda/aggregation/gathered_rows.cuh"
#include "cuda/core/reduce.cuh"

namespace jaxgnn::aggregation {
namespace {

template <typename T>
struct Params : GatherParams {
  using A = typename Accumulator<T>::type;
  const T* own;    // x or y, which lies at the rows
  const T* other;  // the one that is gathered
  const T* values;
  const A* weights;
  const A* scale;  // with weights
  T* out;
  A* partials;
  bool own_is_x;
};

template <typename T, bool kHasWeights>
struct Selection {
  using Type = T;
  using A = typename Accumulator<T>::type;
  using Params = aggregation::Params<T>;
  static constexpr bool kWeighted = kHasWeights, kFloat = sizeof(T) == 4;
  static constexpr bool kNarrowRows = false;
  static constexpr bool kBlockRows = false;
  static constexpr InFlight kInFlight = kWeighted ? InFlight::kOneChunk : InFlight::kNextChunk;
  // The maximum number of blocks a multiprocessor without register spills (on sm_90).
  static constexpr int kLongBlocks = kWeighted || sizeof(T) == 2 ? 8 : 10;
  static constexpr int kShortBlocks = kWeighted ? (kFloat ? 12 : 10) : kFloat ? 16 : 12;

  static cudaError_t join(const Params& p, const Launch& launch) {
    return launch_join<T, Sum>(p.rows, p.partials, p.out, p.width, false, false, launch);
  }

  // In short rows the values are loaded with what is compared: an edge in a few attains the
  // extremum, and a wait costs more than bytes. In long rows few do, and only their values are
  // loaded.
  template <int V, bool kLong>
  struct Lane {
    struct Edge {
      Vector<T, V> other;
      Vector<T, V> values;  // in short rows
      unsigned column;      // in long rows
      A weight, scale;      // if kWeighted
    };

    const Params& p;
    const T* other;  // at this lane's features
    const T* values;
    int f;
    int head;
    Vector<T, V> own;
    A acc[V];

    __device__ Lane(const Params& p, int64_t f)
        : p(p),
          other(p.other + f),
          values(p.values + f),
          f(static_cast<int>(f)),
          head(kWeighted && p.heads > 1 ? static_cast<int>(f) / p.head_width : 0) {}

    __device__ void begin(int64_t row) {
      own = load_vector<T, V>(p.own + row * p.width + f);
#pragma unroll
      for (int i = 0; i < V; ++i) acc[i] = A(0);
    }

    template <typename Column>
    __device__ void fetch(Edge& edge, Column column) const {
      edge.other = load_vector<T, V>(gathered(p, other, column));
      if constexpr (kLong) {
        edge.column = column;
      } else {
        edge.values = load_vector<T, V>(gathered(p, values, column));
      }
    }
    __device__ void weigh(Edge& edge, int64_t e) const {
      edge.weight = p.weights[e * p.heads + head];
      edge.scale = p.scale[e * p.heads + head];
    }
    __device__ void weigh_four(Edge* edges, int64_t e) const {
      A weights[4], scale[4];
      load_four(p, p.weights, e, head, weights);
      load_four(p, p.scale, e, head, scale);
#pragma unroll
      for (int u = 0; u < 4; ++u) edges[u].weight = weights[u], edges[u].scale = scale[u];
    }

    // Products are compared as spmm rounded them.
    __device__ bool attained(const Edge& edge, int i) const {
      const A mine = unpack(own, i), theirs = unpack(edge.other, i);
      if (!kWeighted) return mine == theirs;
      const A product = edge.weight * (p.own_is_x ? mine : theirs);
      return widen(narrow<T, A>(product)) == (p.own_is_x ? theirs : mine);
    }

    template <int N, typename Valid>
    __device__ void add(Edge (&edges)[N], Valid valid) {
      if constexpr (kLong) {
#pragma unroll
        for (int u = 0; u < N; ++u) {
          bool any = false;
#pragma unroll
          for (int i = 0; i < V; ++i) any = any || attained(edges[u], i);
          edges[u].values = {};
          if (any && valid(u)) {
            edges[u].values = load_vector<T, V>(gathered(p, values, edges[u].column));
          }
        }
      }
#pragma unroll
      for (int u = 0; u < N; ++u) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (valid(u) && attained(edges[u], i)) {
            const A value = unpack(edges[u].values, i);
            acc[i] += kWeighted ? edges[u].scale * value : value;
          }
        }
      }
    }

    __device__ void merge(int offset) {
#pragma unroll
      for (int i = 0; i < V; ++i) acc[i] += __shfl_xor_sync(kFullWarp, acc[i], offset);
    }

    __device__ void store(const Work& work) {
      store_row<T, V>(work, p.out, p.partials, p.width, f, false, acc);
    }
  };
};

template <typename T>
cudaError_t launch_type(const ExtremumArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const Params<T> p{gather_params<T>(args.rows, args.width, args.heads),
                    static_cast<const T*>(args.transpose ? args.x : args.y),
                    static_cast<const T*>(args.transpose ? args.y : args.x),
                    static_cast<const T*>(args.values),
                    static_cast<const A*>(args.weights),
                    static_cast<const A*>(args.scale),
                    static_cast<T*>(args.out),
                    static_cast<A*>(args.partials),
                    args.transpose};
  const bool rows_aligned =
      is_aligned(p.own) && is_aligned(p.other) && is_aligned(p.values) && is_aligned(p.out);
  const bool weights_aligned = is_aligned(p.weights) && is_aligned(p.scale);
  if (launch.load || p.weights != nullptr) {
    JAXGNN_TRY((launch_rows<Selection<T, true>>(p, rows_aligned, weights_aligned, launch)));
  }
  if (launch.load || p.weights == nullptr) {
    JAXGNN_TRY((launch_rows<Selection<T, false>>(p, rows_aligned, weights_aligned, launch)));
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_extremum(const ExtremumArgs& args, const Launch& launch) {
  if (!launch.load && (args.rows.num_rows == 0 || args.width == 0)) return cudaSuccess;
  return with_type(launch, args.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::aggregation
