// The forward pass: the logarithm of each row's sum of exponentials, then the weighted sums.
#include "attention_rows.cuh"

namespace jaxgnn {
namespace {

constexpr int kThreads = 128;

// The softmax over some edges: the largest score, and the sum of the exponentials of the
// differences to it.
template <typename A>
struct Softmax {
  A largest = A(-INFINITY);
  A total = A(0);

  // What is subtracted: not the difference of two infinities where all is masked.
  __device__ static A base(A largest) { return is_masked(largest) ? A(0) : largest; }

  template <int kCount>
  __device__ void add(const A (&scores)[kCount]) {
    A most = largest;
#pragma unroll
    for (int i = 0; i < kCount; ++i) most = scores[i] > most ? scores[i] : most;
    const A subtracted = base(most);
    A sum = A(0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += exponential(scores[i] - subtracted);
    total = total * exponential(largest - subtracted) + sum;
    largest = most;
  }
  __device__ void join(const Softmax& other) {
    const A most = other.largest > largest ? other.largest : largest;
    const A subtracted = base(most);
    total = total * exponential(largest - subtracted) +
            other.total * exponential(other.largest - subtracted);
    largest = most;
  }
  // 0 where there is no edge, or none that is not masked.
  __device__ A log_sum() const { return total == A(0) ? A(0) : base(largest) + logarithm(total); }
};

template <typename A>
struct SumParams {
  Rows rows;
  Scoring<A> scoring;
  const A* senders;    // [columns, heads]
  const A* receivers;  // [rows, heads]
  A* log_sum;          // [rows, heads]
  A* partials;         // [parts, stride]: behind width numbers a row's largest scores, its totals
  int64_t stride;
  int64_t width;
};

// kLanes lanes a row (or a part of a long one), kHeads heads at a time, the grid's y axis over
// them. Each lane has a softmax of its own, over every kLanes-th edge; they are joined at the end.
template <typename A, int kHeads, int kLanes>
__global__ void __launch_bounds__(kThreads) log_sums(const SumParams<A> p) {
  constexpr int kSteps = 4;
  const Scoring<A>& s = p.scoring;
  const Work work = find_work(p.rows, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes);
  const int lane = threadIdx.x % kLanes;
  const int head = blockIdx.y * kHeads;
  const bool working = work.row >= 0;  // others only take part in shuffles
  Softmax<A> softmax[kHeads];
  if (working) {
    A own[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) own[h] = p.receivers[work.row * s.heads + head + h];
    if (lane == 0 && has_loop(s, p.rows, work)) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const A far = p.senders[work.row * s.heads + head + h];
        const A sum = (far + own[h]) + loop_bias(s, work.row, head + h);
        const A score[1] = {leaky_relu(sum, s.slope)};
        softmax[h].add(score);
      }
    }
    for (int i = lane; i < work.count; i += kSteps * kLanes) {
      int64_t column[kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        const int at = i + u * kLanes;
        column[u] = at < work.count ? load_column(p.rows, work.begin + at) : -1;
        if (s.self_loops && column[u] == work.row) column[u] = -1;
      }
      A scores[kHeads][kSteps];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        Pack<A, kHeads> far;
        if (column[u] >= 0) far = load_pack<A, kHeads>(p.senders + column[u] * s.heads + head);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          A sum = A(-INFINITY);
          if (column[u] >= 0) {
            sum = unpack(far, h) + own[h];
            if (s.edge_bias != nullptr) {
              sum += edge_bias(s, work.begin + i + u * kLanes, head + h);
            }
          }
          scores[h][u] = leaky_relu(sum, s.slope);
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) softmax[h].add(scores[h]);
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      Softmax<A> other;
      other.largest = __shfl_xor_sync(kFullWarp, softmax[h].largest, offset);
      other.total = __shfl_xor_sync(kFullWarp, softmax[h].total, offset);
      softmax[h].join(other);
    }
  }
  if (!working || lane != 0) return;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (work.part < 0) {
      p.log_sum[work.row * s.heads + head + h] = softmax[h].log_sum();
    } else {
      A* partial = p.partials + work.part * p.stride + p.width + head + h;
      partial[0] = softmax[h].largest;
      partial[s.heads] = softmax[h].total;
    }
  }
}

// Joins the parts of each long row; a block a part, of which the first of each row does the work.
template <typename A>
__global__ void join_log_sums(const SumParams<A> p) {
  const int64_t first = blockIdx.x;
  const int2 split = p.rows.splits[first];
  if (split.x < 0 || split.y != 0) return;
  const int64_t degree = load_offset(p.rows, split.x + 1) - load_offset(p.rows, split.x);
  const int64_t parts = (degree + p.rows.split_length - 1) / p.rows.split_length;
  const int heads = p.scoring.heads;
  for (int h = threadIdx.x; h < heads; h += blockDim.x) {
    Softmax<A> all;
    for (int64_t part = first; part < first + parts; ++part) {
      const A* partial = p.partials + part * p.stride + p.width + h;
      Softmax<A> other;
      other.largest = partial[0];
      other.total = partial[heads];
      all.join(other);
    }
    p.log_sum[int64_t(split.x) * heads + h] = all.log_sum();
  }
}

template <typename A, int kHeads, int kLanes>
cudaError_t launch_lanes(const SumParams<A>& p, bool load, cudaStream_t stream) {
  if (load) return load_kernel(log_sums<A, kHeads, kLanes>);
  const int64_t workers = p.rows.num_splits + p.rows.num_rows;
  const dim3 grid(blocks_of(workers, kThreads / kLanes),
                  static_cast<unsigned>(p.scoring.heads / kHeads));
  log_sums<A, kHeads, kLanes><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename A, int kHeads>
cudaError_t launch_heads(const SumParams<A>& p, bool load, cudaStream_t stream) {
  const bool is_long = p.rows.num_edges >= kLongRow * p.rows.num_rows;
  if (load || is_long) JAXGNN_TRY((launch_lanes<A, kHeads, 32>(p, load, stream)));
  if (load || !is_long) JAXGNN_TRY((launch_lanes<A, kHeads, 8>(p, load, stream)));
  return cudaSuccess;
}

template <typename A>
cudaError_t launch_log_sums(const SumParams<A>& p, bool load, cudaStream_t stream) {
  constexpr int kHeads = 16 / sizeof(A);
  const bool several =
      p.scoring.heads % kHeads == 0 && reinterpret_cast<uintptr_t>(p.senders) % 16 == 0;
  if (load || several) JAXGNN_TRY((launch_heads<A, kHeads>(p, load, stream)));
  if (load || !several) JAXGNN_TRY((launch_heads<A, 1>(p, load, stream)));
  if (load) return load_kernel(join_log_sums<A>);
  if (p.rows.num_splits == 0) return cudaSuccess;
  join_log_sums<A><<<static_cast<unsigned>(p.rows.num_splits), 32, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_type(const AttentionForwardArgs& args, bool load, cudaStream_t stream) {
  using A = typename Accumulator<T>::type;
  const AttentionArgs& from = args.attention;
  const Scoring<A> scoring = make_scoring<A>(from);
  const A* senders = static_cast<const A*>(from.sender_scores);
  const A* receivers = static_cast<const A*>(args.receiver_scores);
  A* log_sum = static_cast<A*>(args.log_sum);
  A* partials = static_cast<A*>(args.partials);
  const int64_t stride = from.width + 2 * from.heads;
  const SumParams<A> sums{from.rows, scoring,  senders, receivers,
                          log_sum,   partials, stride,  from.width};
  JAXGNN_TRY(launch_log_sums(sums, load, stream));
  RowParams<T> p{};
  p.rows = from.rows;
  p.scoring = scoring;
  p.near = {receivers, log_sum, nullptr, from.heads};
  p.far = {senders, nullptr, nullptr, from.heads};
  p.x = static_cast<const T*>(from.values);
  p.out = static_cast<T*>(args.out);
  p.partials = partials;
  p.partials_stride = stride;
  p.width = from.width;
  p.head_width = static_cast<int>(from.heads > 0 ? from.width / from.heads : 0);
  p.row_bytes = static_cast<unsigned>(from.width * sizeof(T));
  return walk_rows<T, Pass::kForward>(p, static_cast<A*>(args.scratch), nullptr, load, stream);
}

}  // namespace

cudaError_t launch_attention(const AttentionForwardArgs& args, cudaStream_t stream) {
  if (args.attention.rows.num_rows == 0 || args.attention.width == 0) return cudaSuccess;
  return with_type(args.attention.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, false, stream);
  });
}

cudaError_t load_attention() {
  return with_each_type([](auto tag) {
    return launch_type<typename decltype(tag)::type>(AttentionForwardArgs{}, true, nullptr);
  });
}

}  // namespace jaxgnn
