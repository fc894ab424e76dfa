// The forward pass over compressed balanced sparse rows: softmax and SpGEMM in one walk.
//
// A warp takes a row and some heads. Each group of lanes adds its edges' entries into sums of its
// own in shared memory, in the edges' order, so that no atomics are needed: entries of one CBSR row
// have different columns. The sums of a column lie side by side, a word for each group, so that
// with a group of one lane no two lanes meet in a bank. At the end the groups' sums are added in a
// fixed order. The softmax is online: when a score exceeds the reference, the sums are scaled down.
#include "cuda/attention/sparse_attention.h"
#include "cuda/attention/sparse_rows.cuh"
#include "cuda/attention/walk.cuh"

namespace jaxgnn::attention {
namespace {

template <typename T, typename I>
struct SparseParams {
  Rows rows;
  Scoring<float> scoring;
  const float* at_row;     // [rows, heads], scores
  const float* at_column;  // [columns, heads]
  const T* values;
  const I* columns;
  T* out;
  float* log_sum;
  float* partials;
  int64_t partials_stride;
  int64_t width;
  int head_width;
  int k;
  int warp_heads;
  unsigned value_bytes;  // of a node's CBSR rows
  unsigned column_bytes;
};

// kPer entries of a CBSR row in one load; lanes of a group have adjacent ones.
template <typename T, typename I, int kPer, int kLanes, bool kPlain>
struct SparseWalk {
  using D = Deal<kLanes>;
  static constexpr int kGroups = D::kGroups;
  // Loads in flight: of several CBSR rows, or of one that a single lane reads.
  static constexpr int kInFlight = kLanes == 1 ? (kPer == 4 ? 2 : 4) : 4;
  // Weights may be so large before the sums are scaled down: e^8 times the largest.
  static constexpr float kSlack = 8.0f;

  const SparseParams<T, I>& p;
  const D& deal;
  int head;
  float own_score;
  float* sums;      // of the group: column c at c kGroups
  const T* values;  // of node 0 and the head
  const I* columns;
  Softmax<float> softmax;

  __device__ void rescale(float score) {
    const bool empty = is_masked(softmax.largest);
    const float factor = softmax.raise(deal.max_over_head(score));
    if (factor != 1.0f && !empty) {
      for (int c = deal.local; c < p.head_width; c += kLanes) sums[c * kGroups] *= factor;
    }
    __syncwarp();
  }

  __device__ void process(int column, const Gathered<float>& terms) {
    const bool valid = column >= 0;
    Score<float> score = score_of<kPlain>(p.scoring, terms, own_score);
    if (!valid) score.score = -INFINITY;
    if (__any_sync(kFullWarp, !(score.score <= softmax.largest + kSlack))) rescale(score.score);
    float weight = 0.0f;
    if (valid) {
      const Terms<float> found =
          weigh<Pass::kForward, kPlain>(p.scoring, score, softmax.base(), terms, head);
      weight = found.weight;
      softmax.total += found.number;
    }
    if constexpr (kLanes == 1) {
      if (!valid) return;
      for (int first = 0; first < p.k; first += kInFlight * kPer) {
        add([&](int) { return column; }, [&](int) { return weight; },
            [&](int u) { return first + u * kPer; });
      }
    } else {
      for (int first = deal.local * kPer; first - deal.local * kPer < p.k; first += kLanes * kPer) {
        for (int edge = 0; edge < kLanes; edge += kInFlight) {
          add([&](int u) { return __shfl_sync(kFullWarp, column, edge + u, kLanes); },
              [&](int u) { return __shfl_sync(kFullWarp, weight, edge + u, kLanes); },
              [&](int) { return first; });
        }
      }
    }
  }

  // Adds kInFlight loads of entries, from entry(u) on of the CBSR row at column(u).
  template <typename Column, typename Weight, typename Entry>
  __device__ void add(const Column& column, const Weight& weight, const Entry& entry) {
    float value[kInFlight][kPer], factor[kInFlight];
    int at[kInFlight][kPer];
    bool there[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int from = column(u), c = entry(u);
      factor[u] = weight(u);
      there[u] = from >= 0 && c < p.k;
      if (!there[u]) continue;
      const unsigned node = static_cast<unsigned>(from);
      maxk::load_values<T, kPer>(row_of(values, node, p.value_bytes), c, p.k, value[u]);
      maxk::load_columns<I, kPer>(row_of(columns, node, p.column_bytes), c, p.k, at[u]);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (there[u]) {
        float sum[kPer];
#pragma unroll
        for (int i = 0; i < kPer; ++i) sum[i] = sums[at[u][i] * kGroups];
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          sums[at[u][i] * kGroups] = sum[i] + factor[u] * value[u][i];
        }
      }
      // The group's next CBSR row may have the same columns in other lanes.
      if constexpr (kLanes > 1) __syncwarp();
    }
  }
};

template <typename T, typename I, int kPer, int kLanes, bool kPlain>
__global__ void __launch_bounds__(kSparseThreads, 10) sparse_rows(const SparseParams<T, I> p) {
  using Walk = SparseWalk<T, I, kPer, kLanes, kPlain>;
  constexpr int kGroups = Walk::kGroups;
  extern __shared__ float shared_sums[];
  const Scoring<float>& scoring = p.scoring;
  const int first_head = slice_number() * p.warp_heads;
  const Work work = find_work(p.rows, int64_t(blockIdx.x) * kSparseWarps + threadIdx.x / 32);
  if (work.row < 0 || first_head >= scoring.heads) return;
  const Deal<kLanes> deal(p.warp_heads);
  float* warp_sums = shared_sums + threadIdx.x / 32 * kGroups * p.head_width;
  const bool active = first_head + deal.own < scoring.heads;
  const int head = active ? first_head + deal.own : first_head;
  Walk walk{p,
            deal,
            head,
            __ldg(p.at_row + work.row * scoring.heads + head),
            warp_sums + deal.group,
            p.values + int64_t(head) * p.k,
            p.columns + int64_t(head) * p.k,
            {}};
  for (int i = deal.lane; i < kGroups * p.head_width; i += 32) warp_sums[i] = 0.0f;
  __syncwarp();

  // Columns are loaded two tiles ahead, scores one.
  const Edges edges(p.rows, scoring, work);
  const int total = edges.total(), tile = deal.tile();
  const auto column_at = [&](int i) { return active ? edges.column(i) : kNoEdge; };
  const auto terms_at = [&](int column, int i) {
    Gathered<float> terms{0.0f, 0.0f, 0.0f, 0.0f, 0};
    if (column < 0) return terms;
    terms.score = __ldg(p.at_column + int64_t(column) * scoring.heads + head);
    if constexpr (!kPlain) edges.load_terms(scoring, i, head, terms);
    return terms;
  };
  int i = deal.place();
  int column = column_at(i), next = column_at(i + tile);
  Gathered<float> terms = terms_at(column, i);
  for (int base = 0; base < total; base += tile, i += tile) {
    const int after = column_at(i + 2 * tile);
    const Gathered<float> next_terms = terms_at(next, i + tile);
    walk.process(column, terms);
    column = next;
    next = after;
    terms = next_terms;
  }
  __syncwarp();

  Softmax<float>& softmax = walk.softmax;
  softmax.total = deal.sum_over_head(softmax.total);
  const bool whole = work.part < 0;
  float* partial = whole ? nullptr : p.partials + work.part * p.partials_stride;
  if (active && deal.stream == 0 && deal.local == 0) {
    if (whole) {
      softmax.store_log_sum(p.log_sum + 2 * (work.row * scoring.heads + head));
    } else {
      partial[p.width + head] = softmax.largest;
      partial[p.width + scoring.heads + head] = softmax.total;
    }
  }
  // Adjacent lanes have adjacent heads of a column, and begin with different groups, so that they
  // read different banks.
  const int own = deal.lane % deal.heads;
  const int first_stream = deal.lane / deal.heads / kLanes % deal.streams;
  const float scale = __shfl_sync(kFullWarp, whole ? softmax.scale() : 1.0f, own * kLanes);
  if (first_head + own >= scoring.heads) return;
  const int64_t to = int64_t(first_head + own) * p.head_width;
  for (int c = deal.lane / deal.heads; c < p.head_width; c += 32 / deal.heads) {
    float sum = 0.0f;
    for (int s = 0; s < deal.streams; ++s) {
      int stream = s + first_stream;
      if (stream >= deal.streams) stream -= deal.streams;
      sum += warp_sums[c * kGroups + stream * deal.heads + own];
    }
    if (whole) {
      p.out[work.row * p.width + to + c] = narrow<T, float>(sum * scale);
    } else {
      partial[to + c] = sum;
    }
  }
}

template <typename T, typename I, int kPer, int kLanes>
cudaError_t launch_lanes(SparseParams<T, I> p, bool plain, const Launch& launch) {
  p.warp_heads = heads_of_warp(p.scoring.heads, kLanes);
  const int64_t slices = (p.scoring.heads + p.warp_heads - 1) / p.warp_heads;
  const dim3 grid =
      slice_grid(blocks_of(p.rows.num_chunks + p.rows.num_rows, kSparseWarps), slices);
  const size_t bytes = sizeof(float) * kSparseWarps * (32 / kLanes) * p.head_width;
  if (launch.load || plain) {
    JAXGNN_TRY(launch_kernel(launch, sparse_rows<T, I, kPer, kLanes, true>, grid, kSparseThreads,
                             bytes, p));
  }
  if (launch.load || !plain) {
    JAXGNN_TRY(launch_kernel(launch, sparse_rows<T, I, kPer, kLanes, false>, grid, kSparseThreads,
                             bytes, p));
  }
  return cudaSuccess;
}

template <typename T, typename I, int kLanes>
cudaError_t launch_per(const SparseParams<T, I>& p, bool plain, const Launch& launch) {
  // Vectors of four where they are aligned and no lane would be without one.
  const bool four = p.k % 4 == 0 && (kLanes == 1 || p.k >= 4 * kLanes);
  if (launch.load || four) JAXGNN_TRY((launch_lanes<T, I, 4, kLanes>(p, plain, launch)));
  if (launch.load || !four) JAXGNN_TRY((launch_lanes<T, I, 1, kLanes>(p, plain, launch)));
  return cudaSuccess;
}

template <typename T, typename I>
cudaError_t launch_types(const SparseForwardArgs& args, const Launch& launch) {
  const AttentionArgs& from = args.forward.attention;
  const int64_t F = args.cbsr.width, row = from.heads * args.cbsr.k;
  SparseParams<T, I> p{};
  p.rows = from.rows;
  p.scoring = make_scoring<float>(from);
  p.at_row = static_cast<const float*>(args.forward.receiver_scores);
  p.at_column = static_cast<const float*>(from.sender_scores);
  p.values = static_cast<const T*>(args.cbsr.values);
  p.columns = static_cast<const I*>(args.cbsr.indices);
  p.out = static_cast<T*>(args.forward.out);
  p.log_sum = static_cast<float*>(args.forward.log_sum);
  p.partials = static_cast<float*>(args.forward.partials);
  p.partials_stride = from.width + 2 * from.heads;
  p.width = from.width;
  p.head_width = static_cast<int>(F);
  p.k = static_cast<int>(args.cbsr.k);
  p.value_bytes = static_cast<unsigned>(row * sizeof(T));
  p.column_bytes = static_cast<unsigned>(row * sizeof(I));
  const bool plain =
      from.edge_bias == nullptr && from.loop_bias == nullptr && from.streams == nullptr;
  // A group's sums take a share of 8 KB of shared memory, up to 2,048 columns.
  if constexpr (sizeof(I) == 1) {
    if (launch.load || F <= 64) JAXGNN_TRY((launch_per<T, I, 1>(p, plain, launch)));
    if (launch.load || F > 64) JAXGNN_TRY((launch_per<T, I, 4>(p, plain, launch)));
  } else {
    if (launch.load || F <= 1024) JAXGNN_TRY((launch_per<T, I, 16>(p, plain, launch)));
    if (launch.load || F > 1024) JAXGNN_TRY((launch_per<T, I, 32>(p, plain, launch)));
  }
  return join_forward<T>(p, from.heads, p.head_width, launch);
}

}  // namespace

cudaError_t launch_sparse_attention(const SparseForwardArgs& args, const Launch& launch) {
  if (!launch.load && is_empty(args.forward.attention, args.cbsr)) return cudaSuccess;
  return maxk::with_types(
      launch, args.forward.attention.type, args.cbsr.width, [&](auto tag, auto index) {
        return launch_types<typename decltype(tag)::type, typename decltype(index)::type>(args,
                                                                                          launch);
      });
}

}  // namespace jaxgnn::attention
