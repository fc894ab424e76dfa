// The forward pass over compressed balanced sparse rows, by windows of 64 receivers. A block has
// the sums of a window in shared memory. A group of lanes takes an entry: it reads the sender's
// CBSR row once, and for each of its receivers there adds alpha v[j] at the kept columns.
//
// The sums are of integers, so that their order does not matter: each receiver and head has a scale
// of 30 bits below the bound of its sums. A first pass finds these and the softmax's denominators
// (sparse_window_softmax.cuh). What has a bound that is not finite becomes NaN.
#include "cuda/attention/sparse_scales.cuh"
#include "cuda/attention/sparse_window_softmax.cuh"
#include "cuda/attention/sparse_window_walk.cuh"

namespace jaxgnn::attention {
namespace {

constexpr int kRows = maxk::kWindowRows;
constexpr int kSumBits = 30;

template <typename T>
struct WindowSums {
  maxk::Windows windows;
  const int* places;             // with self-loops, else null
  const float* receiver_scores;  // [receivers, heads]
  const float* log_sum;
  const float* bounds;
  const float2* numbers;  // [senders, heads]: score, size
  const T* values;
  const uint8_t* columns;
  T* out;
  int* partials;  // [places, 64, width]
  int64_t num_senders;
  float slope;
  int heads;
  int head_width;
  int k;
  int block_heads;
  int stride;  // from a row to the next in shared memory
};

// A receiver's numbers for one head: scale times unit is 1.
struct alignas(16) ReceiverSum {
  float score, log_sum, scale, unit;
};

// What a block has in shared memory.
template <typename T>
struct SharedSums {
  void* slots;             // of the walk
  int* sums;               // [64, stride]: the block's features
  ReceiverSum* receivers;  // [64, heads]

  __device__ SharedSums(int4* from, int slot_bytes, int stride) {
    slots = from;
    sums = reinterpret_cast<int*>(reinterpret_cast<char*>(from) + slot_bytes);
    receivers = reinterpret_cast<ReceiverSum*>(sums + kRows * stride);
  }
  static int stride_of(const WindowBlock& block, int head_width) {
    return maxk::row_stride(block.heads * head_width, sizeof(int), 16);
  }
  static size_t bytes(const WindowBlock& block, bool loops, int head_width) {
    const int heads = block.heads, stride = stride_of(block, head_width);
    return window_slots(block.threads, loops) +
           kRows * (stride * sizeof(int) + heads * sizeof(ReceiverSum));
  }
};

template <typename T, int kParts, int kThreads, bool kLoops>
__global__ void __launch_bounds__(kThreads, maxk::kWindowBlocks)
    window_sums(const WindowSums<T> p) {
  extern __shared__ int4 shared_memory[];
  const int lanes = p.block_heads * kParts;
  const SharedSums<T> shared(shared_memory, window_slots(kThreads, kLoops), p.stride);
  const maxk::Part part = maxk::load_part(p.windows, blockIdx.x);
  const int* window_rows = p.windows.rows + part.window * kRows;
  const int first_head = blockIdx.y * p.block_heads;
  const int heads = min(p.block_heads, p.heads - first_head);
  for (int i = threadIdx.x; i < kRows * p.stride; i += kThreads) shared.sums[i] = 0;
  for (int i = threadIdx.x; i < kRows * p.block_heads; i += kThreads) {
    const int row = window_rows[i / p.block_heads], own = i % p.block_heads;
    if (row < 0 || own >= heads) continue;
    const int64_t at = int64_t(row) * p.heads + first_head + own;
    const int exponent = biased_exponent(p.bounds[at], kSumBits);
    const float lost = exponential(-p.log_sum[2 * at + 1]);
    shared.receivers[i] = {p.receiver_scores[at], p.log_sum[2 * at], scale_of(exponent) * lost,
                           unit_of(exponent)};
  }
  __syncthreads();

  const WindowLane lane(p.block_heads, kParts, p.heads, p.k);
  const WindowSenders<T> senders(p.places, p.numbers, p.columns, p.values, p.heads, p.k, lane);
  const unsigned base = maxk::shared_address(shared.sums + lane.own * p.head_width);
  const unsigned row_bytes = p.stride * unsigned(sizeof(int));
  const ReceiverSum* receivers = shared.receivers + lane.own;
  const auto visit = [&](const WindowEntry<T>& row) {
    const float sender = __uint_as_float(row.numbers.x);
    unsigned address[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) address[i] = base + (row.columns >> 8 * i & 0xffu) * 4u;
    maxk::over_receivers(row.mask, [&](int r) {
      const ReceiverSum at = receivers[r * p.block_heads];
      const float raw = sender + at.score;
      const float score = raw > 0.0f || is_masked(raw) ? raw : raw * p.slope;
      const float scaled = exponential(score - at.log_sum) * at.scale;
      const unsigned offset = r * row_bytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        add_shared(address[i] + offset, __float2int_rn(scaled * unpack(row.values, i)));
      }
    });
  };
  if (lane.active) {
    const WindowWalk<T, kThreads, kLoops> walk(p.windows, part, senders, shared.slots);
    walk.run_part(part.begin, lane.group, kThreads / lanes, window_rows,
                  static_cast<int>(p.num_senders), visit);
  }
  __syncthreads();

  const int width = p.heads * p.head_width, own_width = heads * p.head_width;
  for (int r = threadIdx.x / 32; r < kRows; r += kThreads / 32) {
    const int row = window_rows[r];
    if (row < 0) continue;
    for (int f = threadIdx.x % 32 * 4; f < own_width; f += 128) {
      const int4 sum = *reinterpret_cast<const int4*>(shared.sums + r * p.stride + f);
      const int to = first_head * p.head_width + f;
      if (part.place >= 0) {
        *reinterpret_cast<int4*>(p.partials + (int64_t(part.place) * kRows + r) * width + to) = sum;
        continue;
      }
      const float unit = shared.receivers[r * p.block_heads + f / p.head_width].unit;
      const float result[4] = {sum.x * unit, sum.y * unit, sum.z * unit, sum.w * unit};
      store_vector<T, 4, float>(p.out + int64_t(row) * width + to, result);
    }
  }
}

// The sums of windows of several parts. One block a part; the first of each window works.
template <typename T>
__global__ void __launch_bounds__(256) join_window_sums(const WindowSums<T> p) {
  const maxk::Part part = maxk::load_part(p.windows, blockIdx.x);
  if (part.place < 0) return;
  if (blockIdx.x > 0 && maxk::load_part(p.windows, blockIdx.x - 1).window == part.window) return;
  int end = blockIdx.x + 1;
  while (end < p.windows.num_parts && maxk::load_part(p.windows, end).window == part.window) ++end;
  const int parts = end - static_cast<int>(blockIdx.x), width = p.heads * p.head_width;
  for (int i = threadIdx.x; i < kRows * width; i += blockDim.x) {
    const int row = p.windows.rows[part.window * kRows + i / width];
    if (row < 0) continue;
    const int* from = p.partials + int64_t(part.place) * kRows * width + i;
    int sum = 0;
    for (int other = 0; other < parts; ++other) sum += from[int64_t(other) * kRows * width];
    const int64_t at = int64_t(row) * p.heads + i % width / p.head_width;
    const float unit = unit_of(biased_exponent(p.bounds[at], kSumBits));
    p.out[int64_t(row) * width + i % width] = narrow<T, float>(sum * unit);
  }
}

template <typename T, int kParts>
cudaError_t launch_parts(WindowSums<T> p, int64_t threads, const Launch& launch) {
  const bool loops = p.places != nullptr;
  if (loops) threads = kLeastWindowThreads;
  WindowBlock block{kLeastWindowThreads, 1};
  const auto bytes = [&](const WindowBlock& block) {
    return SharedSums<T>::bytes(block, loops, p.head_width);
  };
  if (!launch.load) JAXGNN_TRY(fit_block(p.heads, p.head_width, kParts, threads, bytes, block));
  p.block_heads = block.heads;
  p.stride = SharedSums<T>::stride_of(block, p.head_width);
  const dim3 grid(p.windows.num_parts, blocks_of(p.heads, block.heads));
  return with_threads(launch, block.threads, loops, [&](auto most, auto with_loops) {
    return launch_window_kernel(
        launch, window_sums<T, kParts, decltype(most)::value, decltype(with_loops)::value>, grid,
        block.threads, bytes(block), p);
  });
}

template <typename T>
cudaError_t launch_type(const SparseWindowArgs& args, const Launch& launch) {
  const AttentionArgs& from = args.forward.forward.attention;
  const maxk::Cbsr& cbsr = args.forward.cbsr;
  const int64_t heads = from.heads, receivers = from.rows.num_rows;
  WindowSoftmax softmax{};
  softmax.rows = from.rows;
  softmax.sender_scores = static_cast<const float*>(from.sender_scores);
  softmax.receiver_scores = static_cast<const float*>(args.forward.forward.receiver_scores);
  softmax.numbers = static_cast<float2*>(args.forward.forward.scratch);
  softmax.log_sum = static_cast<float*>(args.forward.forward.log_sum);
  softmax.bounds = reinterpret_cast<float*>(softmax.numbers + from.num_columns * heads);
  softmax.partials = softmax.bounds + receivers * heads;
  softmax.num_senders = from.num_columns;
  softmax.slope = static_cast<float>(from.negative_slope);
  softmax.self_loops = from.self_loops;
  softmax.heads = static_cast<int>(heads);
  softmax.k = static_cast<int>(cbsr.k);
  JAXGNN_TRY(launch_softmax(softmax, static_cast<const T*>(cbsr.values), launch));

  WindowSums<T> p{};
  p.windows = args.windows;
  p.receiver_scores = softmax.receiver_scores;
  p.log_sum = softmax.log_sum;
  p.bounds = softmax.bounds;
  p.numbers = softmax.numbers;
  p.values = static_cast<const T*>(cbsr.values);
  p.columns = static_cast<const uint8_t*>(cbsr.indices);
  p.out = static_cast<T*>(args.forward.forward.out);
  p.partials = static_cast<int*>(args.forward.forward.partials);
  p.num_senders = softmax.num_senders;
  p.slope = softmax.slope;
  p.heads = softmax.heads;
  p.head_width = static_cast<int>(cbsr.width);
  p.k = softmax.k;
  if (!launch.load && p.windows.num_parts == 0) return cudaSuccess;
  int* places = reinterpret_cast<int*>(softmax.partials + 3 * from.rows.num_chunks * heads);
  if (from.self_loops) p.places = places;
  if (launch.load || from.self_loops) {
    JAXGNN_TRY(launch_places(p.windows, places, p.num_senders, launch));
  }
  JAXGNN_TRY(with_parts(launch, cbsr.k, [&](auto parts) {
    return launch_parts<T, decltype(parts)::value>(p, args.threads, launch);
  }));
  if (!launch.load && args.num_partials == 0) return cudaSuccess;
  return launch_kernel(launch, join_window_sums<T>, p.windows.num_parts, 256, 0, p);
}

}  // namespace

cudaError_t launch_sparse_window_attention(const SparseWindowArgs& args, const Launch& launch) {
  const AttentionArgs& from = args.forward.forward.attention;
  if (!launch.load && is_empty(from, args.forward.cbsr)) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, from.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::attention
