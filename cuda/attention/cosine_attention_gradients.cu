// The gradient of attention by cosines. With c the norms' reciprocals, s = beta c_i c_j <x_i, x_j>,
// L the rows' log-sums and delta = <dy, y>, an edge j -> i has
//
//   alpha = exp(s - L_i),   ds = alpha (<dy_i, x_j> - delta_i),
//
// and of a node's row x the gradient is V + beta (c U - c^3 <x, U> x), with
//
//   U = sum ds c_j x_j over the edges that end at it + sum ds c_i x_i over those that start,
//   V = sum alpha dy_i over those that start.
//
// Scores are symmetric in the two rows. Where the edges are, too, the nodes at which a node's edges
// end are those from which edges reach it, so that one walk that gathers x and dy has all of it.
// Else a walk over the edges that end at a node carries its share of U to one over the others.
//
// Rows of 16 bits have a second kernel for the walks, cosine_gradients_16_bit.cu.
#include "cuda/attention/cosine_gradients.cuh"
#include "cuda/attention/pair_attention.cuh"

namespace jaxgnn::attention {
namespace {

template <typename T, Edges kEdges, int P>
__global__ void __launch_bounds__(kPairThreads, 8) cosine_gradients(const CosineParams<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr int V = 16 / sizeof(T);
  constexpr bool kEnding = kEdges != Edges::kStarting, kStarting = kEdges != Edges::kEnding;
  // Edges whose rows are in flight at once, limited by the registers.
  constexpr bool kHalves = sizeof(T) == 2;
  constexpr int kSteps = kStarting ? (kHalves ? 3 : 4) / P : kHalves && P == 2 ? 2 : 4;

  const int64_t thread = int64_t(blockIdx.x) * kPairThreads + threadIdx.x;
  const PairPlace place = pair_place(p, thread);
  Work work = find_work(p.rows, thread / (p.lanes * p.heads_per_worker * p.groups));
  const bool working = work.row >= 0 && place.active;  // others only take part in shuffles
  if (!working) work.row = work.count = 0;
  const int row = static_cast<int>(work.row);
  const int64_t width = int64_t(p.heads) * p.F;
  const int64_t of_head = int64_t(place.head) * p.F;
  const T* x = p.x + of_head;
  const T* cotangent = p.cotangent + of_head;
  const unsigned row_bytes = static_cast<unsigned>(width * sizeof(T));

  const auto feature = [&](int q) { return (q * p.lanes + place.lane) * V; };
  Vector<T, V> at_row[P], row_cotangent[P];
#pragma unroll
  for (int q = 0; q < P; ++q) {
    at_row[q].word = row_cotangent[q].word = {};
    if (feature(q) >= p.F) continue;
    at_row[q] = load_vector<T, V>(row_of(x, row, row_bytes) + feature(q));
    if (kEnding)
      row_cotangent[q] = load_vector<T, V>(row_of(cotangent, row, row_bytes) + feature(q));
  }
  const NodeTerms<A> own = load_node_terms(p, row, place.head);
  const A beta = __ldg(p.beta + place.head), own_scale = beta * own.reciprocal;

  const bool loop = working && has_loop(p.scoring, p.rows, work);
  // As in `pair_rows`: beyond the edges their columns are repeated, and count for nothing.
  const auto column_at = [&](int i) {
    int column = 0;
    if (work.count > 0) {
      const int64_t at = work.begin + (i < work.count ? i : work.count - 1);
      column = __ldg(static_cast<const int32_t*>(p.rows.columns) + at);
    }
    return loop && i >= work.count ? row : column;
  };
  int next[kSteps];
#pragma unroll
  for (int u = 0; u < kSteps; ++u) next[u] = column_at(place.group * kSteps + u);
  const int length = work.count + (loop ? 1 : 0);
  const int steps = __reduce_max_sync(kFullWarp, length);
  A us[P][V] = {}, vs[P][V] = {};
  for (int start = 0; start < steps; start += kSteps * p.groups) {
    const int i = start + place.group * kSteps;
    bool valid[kSteps];
    Vector<T, V> at_column[kSteps][P], column_cotangent[kSteps][P];
    NodeTerms<A> other[kSteps];
    A score[kSteps], ending[kSteps], starting[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const int column = next[u];
      const bool is_edge = i + u < work.count;
      valid[u] = i + u < length && !(is_edge && p.scoring.self_loops && column == row);
      const T* column_features = row_of(x, column, row_bytes);
      const T* column_cotangent_features = row_of(cotangent, column, row_bytes);
#pragma unroll
      for (int q = 0; q < P; ++q) {
        // Beyond the head any of its features, as what they are multiplied by is 0 there.
        const int f = feature(q) < p.F ? feature(q) : 0;
        at_column[u][q] = load_vector<T, V>(column_features + f);
        if (kStarting) column_cotangent[u][q] = load_vector<T, V>(column_cotangent_features + f);
      }
      other[u] = load_node_terms(p, column, place.head);
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) next[u] = column_at(i + kSteps * p.groups + u);
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      score[u] = ending[u] = starting[u] = A(0);
#pragma unroll
      for (int q = 0; q < P; ++q) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const A x_row = unpack(at_row[q], k), x_column = unpack(at_column[u][q], k);
          score[u] += x_row * x_column;
          if (kEnding) ending[u] += unpack(row_cotangent[q], k) * x_column;
          if (kStarting) starting[u] += x_row * unpack(column_cotangent[u][q], k);
        }
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      if (offset >= p.lanes) continue;
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        score[u] += __shfl_xor_sync(kFullWarp, score[u], offset);
        if (kEnding) ending[u] += __shfl_xor_sync(kFullWarp, ending[u], offset);
        if (kStarting) starting[u] += __shfl_xor_sync(kFullWarp, starting[u], offset);
      }
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const A s = valid[u] ? score[u] * own_scale * other[u].reciprocal : A(-INFINITY);
      A ds = A(0), alpha = A(0);
      if (kEnding) ds += exponential(s - own.log_sum) * (ending[u] - own.delta);
      if (kStarting) {
        alpha = exponential(s - other[u].log_sum);
        ds += alpha * (starting[u] - other[u].delta);
      }
      const A pull = valid[u] ? ds * other[u].reciprocal : A(0);
#pragma unroll
      for (int q = 0; q < P; ++q) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          us[q][k] += pull * unpack(at_column[u][q], k);
          if (kStarting) vs[q][k] += alpha * unpack(column_cotangent[u][q], k);
        }
      }
    }
  }
  // The groups of a row join what they have.
  for (int offset = p.lanes * p.heads_per_worker; p.groups > 1 && offset < 32; offset *= 2) {
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        us[q][k] += __shfl_xor_sync(kFullWarp, us[q][k], offset);
        if (kStarting) vs[q][k] += __shfl_xor_sync(kFullWarp, vs[q][k], offset);
      }
    }
  }
  const bool stores = working && place.group == 0;
  const int64_t at = int64_t(row) * width + of_head;
  if (length == 0) {  // what was repeated for the others of the warp need not have been finite
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int k = 0; k < V; ++k) us[q][k] = vs[q][k] = A(0);
    }
  }
  if (kEdges == Edges::kStarting && working && work.part < 0) {
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if (feature(q) < p.F) us[q][k] += p.carried[at + feature(q) + k];
      }
    }
  }
  A dot = A(0);  // <x, U>
  if constexpr (kStarting) {
#pragma unroll
    for (int q = 0; q < P; ++q) {
#pragma unroll
      for (int k = 0; k < V; ++k) dot += unpack(at_row[q], k) * us[q][k];
    }
    for (int offset = p.lanes / 2; offset > 0; offset /= 2) {
      dot += __shfl_xor_sync(kFullWarp, dot, offset);
    }
  }
  if (!stores) return;
#pragma unroll
  for (int q = 0; q < P; ++q) {
    const int f = feature(q);
    if (f >= p.F) continue;
    if (work.part >= 0) {
      A* partial = p.partials + work.part * 2 * width + of_head + f;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        partial[k] = us[q][k];
        if (kStarting) partial[width + k] = vs[q][k];
      }
    } else if constexpr (kStarting) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        vs[q][k] = gradient(beta, own, dot, unpack(at_row[q], k), us[q][k], vs[q][k]);
      }
      store_vector<T, V, A>(p.out + at + f, vs[q]);
    } else {
#pragma unroll
      for (int k = 0; k < V; ++k) p.carried[at + f + k] = us[q][k];
    }
  }
  if (kStarting && work.part < 0 && place.lane == 0) {
    p.dots[int64_t(row) * p.heads + place.head] = own.reciprocal * dot;
  }
}

// Combines the chunks of each long row in order. One block a chunk; the first block of each row
// does the work.
template <typename T, Edges kEdges>
__global__ void join_gradients(const CosineParams<T> p) {
  using A = typename Accumulator<T>::type;
  constexpr bool kStarting = kEdges != Edges::kEnding;
  const int64_t first = blockIdx.x;
  const RowPart chunk = p.rows.chunks[first];
  if (chunk.row < 0 || chunk.part != 0) return;
  const int64_t row = chunk.row, width = int64_t(p.heads) * p.F;
  const int64_t degree = load_offset(p.rows, row + 1) - load_offset(p.rows, row);
  const int64_t parts = (degree + p.rows.chunk_length - 1) / p.rows.chunk_length;
  A* sums = p.partials + first * 2 * width;
  for (int64_t f = threadIdx.x; f < width; f += blockDim.x) {
    A u = A(0), v = A(0);
    for (int64_t k = 0; k < parts; ++k) {
      u += sums[2 * k * width + f];
      if (kStarting) v += sums[(2 * k + 1) * width + f];
    }
    if (kEdges == Edges::kStarting) u += p.carried[row * width + f];
    if (!kStarting) {
      p.carried[row * width + f] = u;
    } else {
      sums[f] = u;
      sums[width + f] = v;
    }
  }
  if constexpr (kStarting) {
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (int head = threadIdx.x / 32; head < p.heads; head += blockDim.x / 32) {
      const int64_t begin = int64_t(head) * p.F;
      const T* x = p.x + row * width + begin;
      A dot = A(0);
      for (int f = lane; f < p.F; f += 32) dot += widen(x[f]) * sums[begin + f];
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        dot += __shfl_xor_sync(kFullWarp, dot, offset);
      }
      const NodeTerms<A> own = load_node_terms(p, row, head);
      for (int f = lane; f < p.F; f += 32) {
        const A u = sums[begin + f], v = sums[width + begin + f];
        p.out[row * width + begin + f] =
            narrow<T, A>(gradient(p.beta[head], own, dot, widen(x[f]), u, v));
      }
      if (lane == 0) p.dots[row * p.heads + head] = own.reciprocal * dot;
    }
  }
}

template <typename T, Edges kEdges, int P>
cudaError_t launch_walk_of(CosineParams<T> p, const Launch& launch) {
  const auto kernel = cosine_gradients<T, kEdges, P>;
  const dim3 grid = deal_lanes(p, p.F, 16 / static_cast<int>(sizeof(T)) * P, true);
  return launch_kernel(launch, kernel, grid, kPairThreads, 0, p);
}

template <typename T, Edges kEdges>
cudaError_t walk(const CosineParams<T>& p, const Launch& launch) {
  const int vectors = p.F * static_cast<int>(sizeof(T)) / 16;
  if constexpr (sizeof(T) == 2) {
    if (launch.load || p.tensor_cores) JAXGNN_TRY((launch_tensor_core_walk<T, kEdges>(p, launch)));
  }
  const bool cuda_cores = !p.tensor_cores;
  if (launch.load || (cuda_cores && vectors <= 8)) {
    JAXGNN_TRY((launch_walk_of<T, kEdges, 1>(p, launch)));
  }
  if (launch.load || (cuda_cores && vectors > 8)) {
    JAXGNN_TRY((launch_walk_of<T, kEdges, 2>(p, launch)));
  }
  if (!launch.load && p.rows.num_chunks == 0) return cudaSuccess;
  return launch_kernel(launch, join_gradients<T, kEdges>, p.rows.num_chunks, 128, 0, p);
}

template <typename T>
cudaError_t gradients(const CosineGradientArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  const AttentionArgs& from = args.attention;
  CosineParams<T> p{};
  p.rows = from.rows;
  p.scoring = make_scoring<A>(from);
  p.x = static_cast<const T*>(from.values);
  p.cotangent = static_cast<const T*>(args.cotangent);
  p.beta = static_cast<const A*>(args.beta);
  p.node_terms = static_cast<const A*>(args.node_terms);
  p.out = static_cast<T*>(args.out);
  p.dots = static_cast<A*>(args.dots);
  p.carried = static_cast<A*>(args.carried);
  p.partials = static_cast<A*>(args.partials);
  p.tensor_cores = args.tensor_cores;
  p.heads = static_cast<int>(from.heads);
  p.F = static_cast<int>(from.heads > 0 ? from.width / from.heads : 0);
  if (launch.load || args.symmetric) {
    JAXGNN_TRY((walk<T, Edges::kEither>(p, launch)));
    if (!launch.load) return cudaSuccess;
  }
  JAXGNN_TRY((walk<T, Edges::kEnding>(p, launch)));
  p.rows = args.transpose;
  return walk<T, Edges::kStarting>(p, launch);
}

}  // namespace

cudaError_t launch_cosine_attention_gradients(const CosineGradientArgs& args,
                                              const Launch& launch) {
  if (!launch.load && is_empty(args.attention)) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.attention.type,
                   [&](auto tag) { return gradients<typename decltype(tag)::type>(args, launch); });
}

}  // namespace jaxgnn::attention
