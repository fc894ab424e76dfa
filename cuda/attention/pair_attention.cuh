// The launches of attention whose scores need both feature rows of an edge, for a policy `Score`:
// which walk of pair_walk.cuh the shapes take.
#pragma once

#include "cuda/attention/pair_walk.cuh"

namespace jaxgnn::attention {

// Mean row lengths from which the groups of a warp share a row: of rows that are not in an order,
// of others on small graphs, and on all.
constexpr int64_t kSharedRow = 16;
constexpr int64_t kLongPairRow = 64;
constexpr int64_t kAlwaysSharedRow = 256;
// Lanes that are at work at once: 16 warps on each of 132 multiprocessors, about.
constexpr int64_t kLanesAtOnce = 65536;

// Whether the groups of a warp share a row. Adjacent rows of a row schedule have similar lengths,
// so groups with one row each stay balanced. On a small graph they would idle while one group
// processes the longest row or chunk (docs/performance.md).
inline bool share_rows(const Rows& rows, int64_t tiles, int64_t lanes) {
  if (rows.num_edges < kSharedRow * rows.num_rows) return false;
  if (rows.order == nullptr || rows.num_edges >= kAlwaysSharedRow * rows.num_rows) return true;
  const bool is_long = rows.num_edges >= kLongPairRow * rows.num_rows;
  const int64_t each = rows.num_edges * tiles * lanes / kLanesAtOnce;  // edges of a group
  return 4 * each < (is_long ? 8 : 3) * rows.chunk_length;
}

inline int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Deals out lanes of `features` each to heads of `widest`, and returns the grid of the walk.
template <typename P>
dim3 deal_lanes(P& p, int widest, int features, bool whole) {
  const int needed = (widest + features - 1) / features;  // lanes
  p.lanes = power_of_two_from(needed < 32 ? needed : 32);
  p.pieces = whole ? 1 : (widest + p.lanes * features - 1) / (p.lanes * features);
  const int heads = power_of_two_from(p.heads);
  const int beside = p.lanes < 16 ? 16 / p.lanes : 1;
  p.heads_per_worker = p.lanes >= 8 ? 1 : (heads < beside ? heads : beside);
  const int64_t workers = p.rows.num_chunks + p.rows.num_rows;
  const int64_t tiles = (p.heads + p.heads_per_worker - 1) / p.heads_per_worker;
  const int64_t slices = tiles * p.pieces;
  const int lanes = p.lanes * p.heads_per_worker;
  p.groups = share_rows(p.rows, tiles, lanes) ? 32 / lanes : 1;
  const int per_worker = lanes * p.groups;
  // Tiles beyond the last have no heads.
  return slice_grid(blocks_of(workers * per_worker, kPairThreads), slices);
}

template <class Score, typename T, Pass kPass, int V, int P, bool kWhole, bool kPlain>
cudaError_t launch_pairs(PairParams<T> p, const Launch& launch) {
  const auto kernel = pair_rows<Score, T, kPass, V, P, kWhole, kPlain>;
  const dim3 grid = deal_lanes(p, p.F > p.G ? p.F : p.G, V * P, kWhole);
  return launch_kernel(launch, kernel, grid, kPairThreads, 0, p);
}

template <class Score, typename T, Pass kPass, int P>
cudaError_t launch_whole(const PairParams<T>& p, const Launch& launch) {
  constexpr int V = 16 / sizeof(T);
  const Scoring<typename Accumulator<T>::type>& scoring = p.scoring;
  const bool plain = scoring.edge_bias == nullptr && scoring.loop_bias == nullptr &&
                     scoring.streams == nullptr && !p.rows.wide_columns &&
                     p.edge_gradient == nullptr && p.loop_gradient == nullptr;
  if (launch.load || plain) {
    JAXGNN_TRY((launch_pairs<Score, T, kPass, V, P, true, true>(p, launch)));
  }
  if (launch.load || !plain) {
    JAXGNN_TRY((launch_pairs<Score, T, kPass, V, P, true, false>(p, launch)));
  }
  return cudaSuccess;
}

// The walk that the shape takes: vectors of 16 bytes that hold a head, or single values.
template <class Score, typename T, Pass kPass>
cudaError_t walk_pairs(const PairParams<T>& p, const Launch& launch) {
  constexpr int V = 16 / sizeof(T);
  if constexpr (sizeof(T) <= 4) {
    const uintptr_t addresses =
        reinterpret_cast<uintptr_t>(p.at_row) | reinterpret_cast<uintptr_t>(p.at_column) |
        reinterpret_cast<uintptr_t>(p.row_value) | reinterpret_cast<uintptr_t>(p.column_value) |
        reinterpret_cast<uintptr_t>(p.out) |
        (kPass == Pass::kSenders ? reinterpret_cast<uintptr_t>(p.second) : 0);
    const bool aligned = p.F % V == 0 && p.G % V == 0 && addresses % 16 == 0;
    const int vectors = (p.F > p.G ? p.F : p.G) / V;
    if (launch.load || (aligned && vectors <= 8)) {
      JAXGNN_TRY((launch_whole<Score, T, kPass, 1>(p, launch)));
      if (!launch.load) return cudaSuccess;
    }
    if (launch.load || (aligned && vectors <= 64)) {
      JAXGNN_TRY((launch_whole<Score, T, kPass, 2>(p, launch)));
      if (!launch.load) return cudaSuccess;
    }
    if constexpr (sizeof(T) == 4) {
      if (launch.load || (aligned && vectors <= 128)) {
        JAXGNN_TRY((launch_whole<Score, T, kPass, 4>(p, launch)));
        if (!launch.load) return cudaSuccess;
      }
    }
  }
  return launch_pairs<Score, T, kPass, 1, 4, false, false>(p, launch);
}

template <typename T>
PairParams<T> pair_params(const PairArgs& args) {
  using A = typename Accumulator<T>::type;
  const AttentionArgs& from = args.attention;
  PairParams<T> p{};
  p.rows = from.rows;
  p.scoring = make_scoring<A>(from);
  p.at_row = static_cast<const T*>(args.queries);
  p.at_column = static_cast<const T*>(args.keys);
  p.column_value = static_cast<const T*>(from.values);
  p.vector = static_cast<const A*>(args.vector);
  p.key_scale = static_cast<const A*>(args.key_scale);
  p.score_parameter = static_cast<A>(args.score_parameter);
  p.heads = static_cast<int>(from.heads);
  p.F = static_cast<int>(args.head_width);
  p.G = static_cast<int>(from.heads > 0 ? from.width / from.heads : 0);
  return p;
}

inline bool is_empty(const PairArgs& args) {
  return is_empty(args.attention) || args.head_width == 0;
}

template <class Score, typename T>
cudaError_t launch_forward(const PairForwardArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  PairParams<T> p = pair_params<T>(args.pair);
  p.out = static_cast<T*>(args.out);
  p.log_sum = static_cast<A*>(args.log_sum);
  p.partials = static_cast<A*>(args.partials);
  JAXGNN_TRY((walk_pairs<Score, T, Pass::kForward>(p, launch)));
  return join_forward<T>(p, p.heads, p.G, launch);
}

template <class Score, typename T, Pass kPass>
cudaError_t launch_gradients(const PairGradientArgs& args, const Launch& launch) {
  using A = typename Accumulator<T>::type;
  constexpr bool kSenders = kPass == Pass::kSenders;
  const AttentionArgs& from = args.pair.attention;
  PairParams<T> p = pair_params<T>(args.pair);
  const T* cotangent = static_cast<const T*>(args.cotangent);
  p.row_value = kSenders ? p.column_value : cotangent;
  if (kSenders) {
    const T* keys = p.at_column;
    p.at_column = p.at_row;
    p.at_row = keys;
    p.column_value = cotangent;
  }
  const int64_t score_width = from.heads * args.pair.head_width;
  p.node_terms = static_cast<const A*>(args.node_terms);
  p.out = static_cast<T*>(args.first);
  p.second = args.second;
  p.edge_gradient = static_cast<A*>(args.edge_gradient);
  p.loop_gradient = static_cast<A*>(args.loop_gradient);
  p.partials = static_cast<A*>(args.partials);
  p.more = p.partials + from.rows.num_chunks * score_width;
  JAXGNN_TRY((walk_pairs<Score, T, kPass>(p, launch)));
  JAXGNN_TRY((launch_join<T, Sum>(p.rows, p.partials, p.out, score_width, false, false, launch)));
  if constexpr (kSenders && !Score::kSharedRows) {
    return launch_join<T, Sum>(p.rows, p.more, static_cast<T*>(p.second), from.width, false, false,
                               launch);
  }
  if constexpr (!kSenders && Score::kVector) {
    return launch_join<A, Sum>(p.rows, p.more, static_cast<A*>(p.second), score_width, false, false,
                               launch);
  }
  return cudaSuccess;
}

template <class Score>
cudaError_t launch_pair_attention(const PairForwardArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.pair)) return cudaSuccess;
  return with_type(launch, args.pair.attention.type, [&](auto tag) {
    return launch_forward<Score, typename decltype(tag)::type>(args, launch);
  });
}

template <class Score>
cudaError_t launch_pair_gradients(const PairGradientArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.pair)) return cudaSuccess;
  return with_type(launch, args.pair.attention.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (launch.load || args.by_senders) {
      JAXGNN_TRY((launch_gradients<Score, T, Pass::kSenders>(args, launch)));
      if (!launch.load) return cudaSuccess;
    }
    return launch_gradients<Score, T, Pass::kReceivers>(args, launch);
  });
}

}  // namespace jaxgnn::attention
