// Attention by cosines over tiles: scores, exponentials and sums from one read of a sender.
//
// A block of four warps takes a part of a window and a head. It stages 64 senders' rows at a time,
// four stages in a ring. Warp w has the window's rows from 32 (w % 2) on, whose features stay in
// registers, and two of the four batches of a stage. The products of a batch's scores lie in
// registers as the A operand of the next product has them, so that exponentials are masked, rounded
// and multiplied where they are. Their sums are a product with ones: of the same rounded values.
#include "cuda/core/async.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/tiles/cosine.cuh"

namespace jaxgnn::tiles {
namespace {

constexpr int kBlockWarps = 4;
constexpr int kRing = 4;  // stages
constexpr int kStageBatches = 4;
constexpr int kStageEntries = kStageBatches * kBatchEntries;
constexpr int kSteps = kMaxCosineWidth / 16;  // of 16 features
// A stage: the senders' rows, their 16-byte pieces permuted by the row's number; one over their
// norms; the masks.
constexpr int kScalesAt = kStageEntries * kSliceBytes;
constexpr int kMasksAt = kScalesAt + kStageEntries * 4;
constexpr int kStageBytes = kMasksAt + kStageBatches * kBatchWords * 4;
constexpr int kSharedBytes = kRing * kStageBytes;

template <typename T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

template <typename T>
constexpr uint32_t kOnes = 0x3f803f80u;
template <>
inline constexpr uint32_t kOnes<__half> = 0x3c003c00u;

// Bits 15 and 31 over the 16 bits that each ends.
__device__ inline uint32_t spread(uint32_t word) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(mask) : "r"(word));
  return mask;
}

// The part's stages, which all threads copy in.
template <typename T>
class Senders {
 public:
  __device__ Senders(const TilesCosineArgs& a, const int4& part, int head, unsigned shared)
      : a_(a),
        part_(part),
        head_(head),
        features_(static_cast<int>(a.width / a.heads)),
        row_bytes_(static_cast<unsigned>(a.width * sizeof(T))),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        shared_(shared) {
    const int piece = lane_ & 7;
    inside_ = piece * 8 < features_;
    x_ = static_cast<const char*>(a.x) + head * features_ * sizeof(T) + (inside_ ? piece * 16 : 0);
  }

  // The column of one of the 16 entries that the warp copies, or -1: entry 4 w + lane % 4 of batch
  // lane / 4 % 4.
  __device__ int column_of(int stage) const {
    const int batch = first_batch(stage) + lane_ / 4 % 4;
    return batch < part_.y ? __ldg(a_.tiles.columns + int64_t{batch} * kBatchEntries + entry())
                           : -1;
  }

  __device__ void copy_in(int stage, int place, int column) const {
    const unsigned to = shared_ + place * kStageBytes;
#pragma unroll
    for (int j = 0; j < kStageBatches; ++j) {
      const int c = __shfl_sync(kFullWarp, column, lane_ / 8 + 4 * j);
      const int row = j * kBatchEntries + 4 * warp_ + lane_ / 8;
      if (c >= 0) {
        copy16(to + row * kSliceBytes + ((lane_ ^ row) & 7) * 16,
               row_of(x_, static_cast<unsigned>(c), row_bytes_), inside_);
      }
    }
    if (lane_ < 16 && column >= 0) {
      copy4(to + kScalesAt + (lane_ / 4 * kBatchEntries + entry()) * 4,
            a_.column_scale + column * a_.heads + head_);
    }
    const int batch = first_batch(stage) + lane_ / 8;
    if (warp_ == 0 && batch < part_.y) {
      copy16(to + kMasksAt + lane_ * 16,
             a_.tiles.masks + int64_t{batch} * kBatchWords + lane_ % 8 * 4);
    }
    commit();
  }

 private:
  __device__ int first_batch(int stage) const { return part_.x + stage * kStageBatches; }
  __device__ int entry() const { return 4 * warp_ + lane_ % 4; }  // in its batch

  const TilesCosineArgs& a_;
  const int4& part_;
  const int head_;
  const int features_;
  const unsigned row_bytes_;
  const int lane_;
  const int warp_;
  const unsigned shared_;
  bool inside_;
  const char* x_;
};

// A warp's 32 rows: two tiles of 16, of which lane l has the rows l / 4 and l / 4 + 8.
template <typename T>
struct Receivers {
  uint32_t features[2][kSteps][4];  // A operands
  float scale[2][2];

  __device__ void load(const TilesCosineArgs& a, int first_place, int head) {
    const int lane = threadIdx.x % 32, width = static_cast<int>(a.width / a.heads);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = first_place + 16 * m + 8 * half + lane / 4;
        const int row = place < a.tiles.num_rows ? a.tiles.rows[place] : -1;
        const T* x = static_cast<const T*>(a.x) + row * a.width + head * width;
        scale[m][half] = row < 0 ? 0.0f : kLog2E * __ldg(a.row_scale + row * a.heads + head);
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int side = 0; side < 2; ++side) {
            const int feature = 16 * k + 8 * side + lane % 4 * 2;
            const bool there = row >= 0 && feature < width;
            features[m][k][half + 2 * side] =
                there ? __ldg(reinterpret_cast<const uint32_t*>(x + feature)) : 0;
          }
        }
      }
    }
  }
};

// A warp's sums of 32 rows: of 64 features, and of the exponentials.
struct Sums {
  float rows[2][8][4];
  float totals[2][4];
};

// Adds a batch, whose rows, scales and masks lie at these places of shared memory.
template <typename T>
__device__ inline void add_batch(const Receivers<T>& own, float reference, unsigned rows,
                                 const float* scales, const uint32_t* masks, Sums& sums) {
  const int lane = threadIdx.x % 32;
  const uint32_t word = masks[lane] << (threadIdx.x / 32 % 2 * 8);
  const float2 scale[2] = {*reinterpret_cast<const float2*>(scales + lane % 4 * 2),
                           *reinterpret_cast<const float2*>(scales + lane % 4 * 2 + 8)};
  float scores[2][2][4] = {};
  {
    // Entries 0 to 7 by features 0 to 7 and 8 to 15, entries 8 to 15 by the same.
    const unsigned row = rows + (lane % 8 + lane / 16 * 8) * kSliceBytes;
    const unsigned piece = ((lane / 8 % 2) ^ (lane % 8)) * 16;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      load_matrices(b, row + (piece ^ k * 32));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply(scores[m][0], own.features[m][k], b[0], b[1], Tag<T>{});
        multiply(scores[m][1], own.features[m][k], b[2], b[3], Tag<T>{});
      }
    }
  }
  uint32_t weights[2][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // row half i % 2, entries from 8 (i / 2) on
      const float* score = scores[m][i / 2] + i % 2 * 2;
      const float row_scale = own.scale[m][i % 2];
      const float low = power_of_two(score[0] * scale[i / 2].x * row_scale - reference);
      const float high = power_of_two(score[1] * scale[i / 2].y * row_scale - reference);
      weights[m][i] = pack<T>(low, high) & spread(word << (4 * m + i));
    }
    multiply(sums.totals[m], weights[m], kOnes<T>, kOnes<T>, Tag<T>{});
  }
  // Entries 0 to 7 and 8 to 15 by 8 features, and by the next 8.
  const unsigned row = rows + lane % 16 * kSliceBytes;
  const unsigned piece = ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    uint32_t b[4];
    load_transposed(b, row + (piece ^ n * 16));
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      multiply(sums.rows[m][n], weights[m], b[0], b[1], Tag<T>{});
      multiply(sums.rows[m][n + 1], weights[m], b[2], b[3], Tag<T>{});
    }
  }
}

// Adds the sums of the warps that have the same rows; the first two have them at the end.
__device__ inline void add_pairs(Sums& sums, float* shared) {
  constexpr int kCount = sizeof(Sums) / sizeof(float);
  static_assert(2 * 32 * sizeof(Sums) <= kSharedBytes, "for two warps' sums");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* place = shared + warp % 2 * kCount * 32 + lane;
  float* mine = &sums.rows[0][0][0];
  wait<0>();
  __syncthreads();
  if (warp >= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) place[i * 32] = mine[i];
  }
  __syncthreads();
  if (warp < 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine[i] += place[i * 32];
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kBlockWarps, 3) cosine_tiles(const TilesCosineArgs a) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int4 part = a.tiles.parts[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float beta = a.beta[head];
  if (!takes_tiles<T>(beta)) return;
  const float reference = reference_of<T>(beta);
  const Senders<T> senders(a, part, head, shared_address(shared));
  const int stages = (part.y - part.x + kStageBatches - 1) / kStageBatches;
  {
    int columns[kRing - 1];
#pragma unroll
    for (int s = 0; s < kRing - 1; ++s) columns[s] = senders.column_of(s);
#pragma unroll
    for (int s = 0; s < kRing - 1; ++s) senders.copy_in(s, s, columns[s]);
  }
  int column = senders.column_of(kRing - 1);
  Receivers<T> own;
  own.load(a, part.w * kWindowRows + warp % 2 * 32, head);
  Sums sums{};
  int now = 0, next = kRing - 1;
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    wait<kRing - 2>();
    __syncthreads();  // the stage is there, and what `next` had is used
    senders.copy_in(s + kRing - 1, next, column);
    column = senders.column_of(s + kRing);
    const unsigned char* stage = shared + now * kStageBytes;
    const float* scales = reinterpret_cast<const float*>(stage + kScalesAt);
    const uint32_t* masks = reinterpret_cast<const uint32_t*>(stage + kMasksAt);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int batch = warp / 2 * 2 + i;
      if (part.x + s * kStageBatches + batch >= part.y) break;
      add_batch<T>(own, reference, shared_address(stage) + batch * kBatchEntries * kSliceBytes,
                   scales + batch * kBatchEntries, masks + batch * kBatchWords, sums);
    }
    now = now + 1 == kRing ? 0 : now + 1;
    next = next + 1 == kRing ? 0 : next + 1;
  }
  add_pairs(sums, reinterpret_cast<float*>(shared));
  if (warp >= 2) return;
  const int width = static_cast<int>(a.width / a.heads);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = int64_t{part.z} * kWindowRows + 32 * warp + 16 * m + 8 * half + lane / 4;
      float* out = a.slots + row * a.width + head * width + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (8 * n >= width) continue;
        *reinterpret_cast<float2*>(out + 8 * n) =
            make_float2(sums.rows[m][n][2 * half], sums.rows[m][n][2 * half + 1]);
      }
      if (lane % 4 == 0) a.slot_totals[row * a.heads + head] = sums.totals[m][2 * half];
    }
  }
}

}  // namespace

cudaError_t launch_cosine_tiles(const TilesCosineArgs& args, const Launch& launch) {
  if (!launch.load && args.tiles.num_parts == 0) return cudaSuccess;
  return with_type(Types<__nv_bfloat16, __half>{}, launch, args.type, [&](auto tag) {
    const dim3 grid(static_cast<unsigned>(args.tiles.num_parts), static_cast<unsigned>(args.heads));
    return launch_kernel(launch, cosine_tiles<typename decltype(tag)::type>, grid,
                         dim3(32 * kBlockWarps), kSharedBytes, args);
  });
}

}  // namespace jaxgnn::tiles
