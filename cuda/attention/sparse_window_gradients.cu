// The gradients over compressed balanced sparse rows, by windows of 64 receivers. A block has the
// cotangent's rows of a window in shared memory. A group of lanes takes an entry: it reads the
// sender's CBSR row once, and for each of its receivers there recomputes the weight alpha, gathers
// dy at the kept columns I, and adds
//   dv[j, I] += alpha dy[i, I],   g = c alpha (<dy[i, I], v[j]> - delta[i]),
// with c the LeakyReLU's slope. dv and the sum of g over the entry stay in registers and are
// reduced in L2 once an entry. g is also added to its receiver's sum in shared memory.
//
// All sums that cross threads are exact, so that their order does not matter. Those in L2 are of
// whole numbers held as floats, of which one reduction takes four (sparse_scales.cuh); those in
// shared memory are of integers.
#include <algorithm>
#include <cfloat>

#include "cuda/attention/sparse_scales.cuh"
#include "cuda/attention/sparse_window_walk.cuh"
#include "cuda/maxk/reduce_to.cuh"

namespace jaxgnn::attention {
namespace {

constexpr int kRows = maxk::kWindowRows;
constexpr int kFinishThreads = 256;
constexpr int kReceiverLowBits = 14;  // 2^17 edges of a receiver in a part, which has 2^15 entries

template <typename T>
struct WindowGradients {
  maxk::Windows windows;
  const int* places;        // with self-loops, else null
  const float4* receivers;  // [receivers, heads]: score, log_sum, delta, largest |dy|
  const float* norms;       // [heads]
  const Scaled* scaled;     // [senders, heads]
  const T* values;
  const uint8_t* columns;
  const T* cotangent;
  T* values_gradient;
  float* sender_gradient;
  float* receiver_gradient;
  float* value_sums;                  // [senders, 2, heads, k]: units, smaller units
  float* score_sums;                  // [senders, heads, parts, 2]
  unsigned long long* receiver_sums;  // [receivers, heads]
  uint32_t* unbounded;                // [receivers, heads]
  int64_t num_values;                 // senders heads k
  int64_t num_senders;
  int64_t num_receivers;
  float slope;
  int heads;
  int head_width;
  int k;
  int block_heads;
  int stride;  // from a row to the next in shared memory
};

// The scale of a receiver's sums, whose magnitudes add up to the bound; 0 if it has none.
template <typename T>
__device__ inline int receiver_exponent(const WindowGradients<T>& p, float4 numbers, int head) {
  if (!(fabsf(numbers.y) <= FLT_MAX)) return 0;
  const float slope = fmaxf(1.0f, fabsf(p.slope));
  return biased_exponent((numbers.w * p.norms[head] + fabsf(numbers.z)) * slope, kWholeBits);
}

// A receiver's numbers for one head.
struct alignas(16) Receiver {
  float score, log_sum, delta, scale;
};

// What a block has in shared memory.
template <typename T>
struct Shared {
  void* slots;          // of the walk
  T* rows;              // [64, stride]: the block's features
  Receiver* receivers;  // [64, heads]
  int* sums;            // [2, 64, heads, copies]: units, smaller units
  unsigned* unbounded;  // [64]: a bit for each head

  __device__ Shared(int4* from, int slot_bytes, int stride, int heads, int copies) {
    slots = from;
    rows = reinterpret_cast<T*>(reinterpret_cast<char*>(from) + slot_bytes);
    receivers = reinterpret_cast<Receiver*>(rows + kRows * stride);
    sums = reinterpret_cast<int*>(receivers + kRows * heads);
    unbounded = reinterpret_cast<unsigned*>(sums + 2 * kRows * heads * copies);
  }
  static int stride_of(const WindowBlock& block, int head_width) {
    return maxk::row_stride(block.heads * head_width, sizeof(T), 16);
  }
  static size_t bytes(const WindowBlock& block, bool loops, int head_width, int copies) {
    const int heads = block.heads, stride = stride_of(block, head_width);
    return window_slots(block.threads, loops) +
           kRows * (stride * sizeof(T) + heads * sizeof(Receiver) +
                    (2 * heads * copies + 1) * sizeof(int));
  }
};

// Adjacent lanes of a head add to sums of their own: one address would be written twice, in turn.
template <int kParts>
constexpr int kCopies = kParts < 2 ? kParts : 2;

template <typename T, int kParts, int kThreads, bool kLoops>
__global__ void __launch_bounds__(kThreads, maxk::kWindowBlocks)
    window_gradients(const WindowGradients<T> p) {
  extern __shared__ int4 shared_memory[];
  const int lanes = p.block_heads * kParts;
  constexpr int kOwn = kCopies<kParts>;
  const int copies = p.block_heads * kOwn;  // of all heads
  const Shared<T> shared(shared_memory, window_slots(kThreads, kLoops), p.stride, p.block_heads,
                         kOwn);
  const maxk::Part part = maxk::load_part(p.windows, blockIdx.x);
  const int* window_rows = p.windows.rows + part.window * kRows;
  const int first_head = blockIdx.y * p.block_heads;
  const int heads = min(p.block_heads, p.heads - first_head);
  for (int r = threadIdx.x / 32; r < kRows; r += kThreads / 32) {
    const int row = window_rows[r];
    if (row < 0) continue;
    const int64_t from = (int64_t(row) * p.heads + first_head) * p.head_width;
    stage_row(p.cotangent + from, shared.rows + r * p.stride, heads * p.head_width);
  }
  for (int i = threadIdx.x; i < 2 * kRows * copies; i += kThreads) shared.sums[i] = 0;
  for (int r = threadIdx.x; r < kRows; r += kThreads) {
    unsigned unbounded = 0;
    const int row = window_rows[r];
    for (int own = 0; row >= 0 && own < heads; ++own) {
      const int head = first_head + own;
      const float4 numbers = p.receivers[int64_t(row) * p.heads + head];
      const int exponent = receiver_exponent(p, numbers, head);
      if (exponent == 0) unbounded |= 1u << own;
      shared.receivers[r * p.block_heads + own] = {numbers.x, numbers.y, numbers.z,
                                                   scale_of(exponent)};
    }
    shared.unbounded[r] = unbounded;
  }
  __syncthreads();

  const WindowLane lane(p.block_heads, kParts, p.heads, p.k);
  const unsigned base = maxk::shared_address(shared.rows + lane.own * p.head_width);
  const unsigned row_bytes = p.stride * unsigned(sizeof(T));
  const Receiver* receivers = shared.receivers + lane.own;
  int* const sums = shared.sums + lane.own * kOwn + lane.part % kOwn;
  const bool first = lane.part == 0;
  const WindowSenders<T> senders(p.places, p.scaled, p.columns, p.values, p.heads, p.k, lane);
  const unsigned of_heads = p.heads * p.k;
  float* const value_sums = p.value_sums + lane.head * p.k + lane.entry;
  float* const score_sums = p.score_sums + 2 * (lane.head * kParts + lane.part);
  const auto visit = [&](const WindowEntry<T>& row) {
    const Scaled scaled{__uint_as_float(row.numbers.x), row.numbers.y};
    unsigned address[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      address[i] = base + (row.columns >> 8 * i & 0xffu) * unsigned(sizeof(T));
    }
    float weighted[4] = {}, sum = 0.0f;
    maxk::over_receivers(row.mask, [&](int r) {
      const Receiver at = receivers[r * p.block_heads];
      const float raw = scaled.score + at.score;
      const float slope = raw > 0.0f ? 1.0f : p.slope;
      const float score = is_masked(raw) ? raw : raw * slope;
      const float alpha = exponential(score - at.log_sum);
      const unsigned offset = r * row_bytes;
      float dot = first ? -at.delta : 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float y = widen(maxk::load_shared<T>(address[i] + offset));
        dot += unpack(row.values, i) * y;
        weighted[i] += alpha * y;
      }
      const float gradient = slope * alpha * dot;
      sum += gradient;
      const float whole = fmaf(gradient, at.scale, kMagic);
      const float rest = fmaf(gradient, at.scale, kMagic - whole);
      const float low = fmaf(rest, static_cast<float>(1 << kReceiverLowBits), kMagic);
      atomicAdd(sums + r * copies, whole_bits(whole));
      atomicAdd(sums + (kRows + r) * copies, whole_bits(low));
    });
    const float scale = scale_of(scaled.values()), own_scale = scale_of(scaled.own());
    const float low_scale = scale_of(127 + scaled.low());
    float whole[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      whole[i] = fmaf(weighted[i], scale, kMagic) - kMagic;
      low[i] = fmaf(fmaf(weighted[i], scale, -whole[i]), low_scale, kMagic) - kMagic;
    }
    float both[2];
    both[0] = fmaf(sum, own_scale, kMagic) - kMagic;
    both[1] = fmaf(fmaf(sum, own_scale, -both[0]), low_scale, kMagic) - kMagic;
    float* const to = const_cast<float*>(
        row_of<float>(value_sums, row.sender, 2 * of_heads * unsigned(sizeof(float))));
    maxk::reduce_to(to, whole);
    maxk::reduce_to(to + of_heads, low);
    maxk::reduce_to(const_cast<float*>(row_of<float>(score_sums, row.sender,
                                                     p.heads * kParts * unsigned(sizeof(float2)))),
                    both);
    if (scaled.unbounded()) {
      maxk::over_receivers(row.mask,
                           [&](int r) { atomicOr(shared.unbounded + r, 1u << lane.own); });
    }
  };
  if (lane.active) {
    const WindowWalk<T, kThreads, kLoops> walk(p.windows, part, senders, shared.slots);
    walk.run_part(part.begin, lane.group, kThreads / lanes, window_rows,
                  static_cast<int>(p.num_senders), visit);
  }
  __syncthreads();

  for (int i = threadIdx.x; i < kRows * heads; i += kThreads) {
    const int r = i / heads, own = i % heads, row = window_rows[r];
    if (row < 0) continue;
    const int64_t to = int64_t(row) * p.heads + first_head + own;
    long long total = 0;
    for (int c = own * kOwn; c < (own + 1) * kOwn; ++c) {
      total += static_cast<long long>(shared.sums[r * copies + c]) * (1 << kReceiverLowBits) +
               shared.sums[(kRows + r) * copies + c];
    }
    if (total != 0) atomicAdd(p.receiver_sums + to, static_cast<unsigned long long>(total));
    if (shared.unbounded[r] >> own & 1) p.unbounded[to] = 1;
  }
}

// From whole numbers to the gradients.
template <typename T, int kParts>
__global__ void __launch_bounds__(kFinishThreads)
    finish_window_gradients(const WindowGradients<T> p) {
  const int64_t i = int64_t(blockIdx.x) * kFinishThreads + threadIdx.x;
  if (i < p.num_values) {
    const Scaled scaled = p.scaled[i / p.k];
    const int64_t of_heads = int64_t(p.heads) * p.k;
    const float* sums = p.value_sums + i / of_heads * 2 * of_heads + i % of_heads;
    const float sum = sums[0] + sums[of_heads] * scale_of(127 - scaled.low());
    p.values_gradient[i] = narrow<T, float>(sum * unit_of(scaled.values()));
  }
  if (i < p.num_senders * p.heads) {
    const Scaled scaled = p.scaled[i];
    float whole = 0.0f, low = 0.0f;
    for (int part = 0; part < kParts; ++part) {
      whole += p.score_sums[2 * (i * kParts + part)];
      low += p.score_sums[2 * (i * kParts + part) + 1];
    }
    p.sender_gradient[i] = (whole + low * scale_of(127 - scaled.low())) * unit_of(scaled.own());
  }
  if (i < p.num_receivers * p.heads) {
    const int head = static_cast<int>(i % p.heads);
    const int exponent = p.unbounded[i] != 0 ? 0 : receiver_exponent(p, p.receivers[i], head);
    const float unit = unit_of(exponent);
    const float sum = __ll2float_rn(static_cast<long long>(p.receiver_sums[i]));
    p.receiver_gradient[i] = sum * (1.0f / static_cast<float>(1 << kReceiverLowBits)) * unit;
  }
}

template <typename T, int kParts>
cudaError_t launch_parts(WindowGradients<T> p, int64_t threads, const Launch& launch) {
  const bool loops = p.places != nullptr;
  if (loops) threads = kLeastWindowThreads;
  WindowBlock block{kLeastWindowThreads, 1};
  const auto bytes = [&](const WindowBlock& block) {
    return Shared<T>::bytes(block, loops, p.head_width, kCopies<kParts>);
  };
  if (!launch.load) JAXGNN_TRY(fit_block(p.heads, p.head_width, kParts, threads, bytes, block));
  p.block_heads = block.heads;
  p.stride = Shared<T>::stride_of(block, p.head_width);
  if (launch.load || p.windows.num_parts > 0) {
    const dim3 grid(p.windows.num_parts, blocks_of(p.heads, block.heads));
    JAXGNN_TRY(with_threads(launch, block.threads, loops, [&](auto most, auto with_loops) {
      return launch_window_kernel(
          launch, window_gradients<T, kParts, decltype(most)::value, decltype(with_loops)::value>,
          grid, block.threads, bytes(block), p);
    }));
  }
  const int64_t most = std::max(p.num_values, p.num_receivers * p.heads);
  return launch_kernel(launch, finish_window_gradients<T, kParts>, blocks_of(most, kFinishThreads),
                       kFinishThreads, 0, p);
}

// Lanes of a head.
int parts_of(int64_t k) { return k <= 4 ? 1 : k <= 8 ? 2 : k <= 16 ? 4 : 8; }

template <typename T>
cudaError_t launch_type(const SparseWindowGradientArgs& args, const Launch& launch) {
  const SparseGradientArgs& from = args.gradients;
  const int64_t heads = from.attention.heads;
  WindowGradients<T> p{};
  p.windows = args.windows;
  p.receivers = static_cast<const float4*>(from.receivers);
  p.norms = args.norms;
  p.values = static_cast<const T*>(from.cbsr.values);
  p.columns = static_cast<const uint8_t*>(from.cbsr.indices);
  p.cotangent = static_cast<const T*>(from.cotangent);
  p.values_gradient = static_cast<T*>(from.values_gradient);
  p.sender_gradient = static_cast<float*>(from.sender_gradient);
  p.receiver_gradient = static_cast<float*>(from.receiver_gradient);
  p.num_values = from.cbsr.num_rows * from.cbsr.k;
  p.num_senders = from.transpose.num_rows;
  p.num_receivers = from.attention.rows.num_rows;
  p.slope = static_cast<float>(from.attention.negative_slope);
  p.heads = static_cast<int>(heads);
  p.head_width = static_cast<int>(from.cbsr.width);
  p.k = static_cast<int>(from.cbsr.k);

  // Reductions of four floats need the first place.
  const int64_t ends = p.num_senders * heads;
  p.value_sums = static_cast<float*>(from.scratch);
  p.score_sums = p.value_sums + 2 * p.num_values;
  Scaled* scaled = reinterpret_cast<Scaled*>(p.score_sums + 2 * ends * parts_of(from.cbsr.k));
  p.receiver_sums = reinterpret_cast<unsigned long long*>(scaled + ends);
  p.unbounded = reinterpret_cast<uint32_t*>(p.receiver_sums + p.num_receivers * heads);
  p.scaled = scaled;
  const bool loops = from.attention.self_loops;
  int* places = reinterpret_cast<int*>(p.unbounded + p.num_receivers * heads);
  if (loops) p.places = places;
  if (!launch.load) {
    const int64_t floats =
        window_scratch(p.num_senders, p.num_receivers, heads, from.cbsr.k, false);
    JAXGNN_TRY(cudaMemsetAsync(from.scratch, 0, sizeof(float) * floats, launch.stream));
  }
  if (launch.load || loops) {
    JAXGNN_TRY(launch_places(p.windows, places, p.num_senders, launch));
  }
  JAXGNN_TRY((launch_scales<T, false>(scale_params<T>(from, scaled), launch)));
  return with_parts(launch, from.cbsr.k, [&](auto parts) {
    return launch_parts<T, decltype(parts)::value>(p, args.threads, launch);
  });
}

}  // namespace

int64_t window_scratch(int64_t senders, int64_t receivers, int64_t heads, int64_t k, bool loops) {
  return heads * (senders * (2 + 2 * k + 2 * parts_of(k)) + 3 * receivers) + (loops ? senders : 0);
}

cudaError_t launch_sparse_window_gradients(const SparseWindowGradientArgs& args,
                                           const Launch& launch) {
  if (!launch.load && is_empty(args.gradients.attention, args.gradients.cbsr)) return cudaSuccess;
  return with_type(NarrowTypes{}, launch, args.gradients.attention.type, [&](auto tag) {
    return launch_type<typename decltype(tag)::type>(args, launch);
  });
}

}  // namespace jaxgnn::attention
