// A layer of GraphSAGE for drawn places, and the sum of its rows over groups, on tensor cores.
//
// Blocks of eight warps walk a range of groups, 32 rows at a time. A warp has 32 columns of the
// layer, the first four warps those of Wf, the others those of Wa, whose fragments stay in its
// registers. Rows of x and of `around` are staged two steps ahead. Rows are divided by their
// lengths where they were multiplied, and summed over a group by a thread a column: the layer's
// rows, many times the input, are never written.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/sampling/embedding.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = 32;     // of a step
constexpr int kColumns = 32;  // of a warp
constexpr int kStages = 3;
constexpr int kPieces = kLayerRowBytes / 16;         // of an input row
constexpr int kStageRowBytes = kLayerRowBytes + 32;  // rows 8 banks apart: no conflicts
constexpr int kStageBytes = 2 * kRows * kStageRowBytes;
constexpr int kSumStride = kWarps * kColumns + 8;  // likewise
constexpr int kBlocks = 264;                       // two for each of an H200's multiprocessors
static_assert(2 * kLayerColumns == kWarps * kColumns, "half of the warps for each matrix");

struct Shared {
  unsigned char stages[kStages][kStageBytes];
  float rows[kRows][kSumStride];
  float parts[kRows][kWarps];  // of what a row's warps add
  int32_t places[kStages][kRows];
};

__device__ inline uint32_t tf32(float value) {
  uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
}

// The word `word` of a matrix's column, of one float32 or two 16-bit values; 0 beyond the matrix.
template <typename T>
__device__ inline uint32_t matrix_word(const T* matrix, int64_t rows, int64_t columns, int word,
                                       int column) {
  if constexpr (sizeof(T) == 4) {
    const bool inside = word < rows && column < columns;
    return inside ? tf32(matrix[word * columns + column]) : 0;
  } else {
    uint32_t both = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = 2 * word + k;
      if (row < rows && column < columns) {
        const T value = matrix[row * columns + column];
        both |= uint32_t{*reinterpret_cast<const unsigned short*>(&value)} << 16 * k;
      }
    }
    return both;
  }
}

// 16 bytes to shared memory, or zeros.
__device__ inline void copy16(void* to, const void* from, bool there) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}

// Staging of an input row of each half: thread t takes piece t mod 16 of the rows t div 16 and
// 16 + t div 16.
template <typename T>
class Input {
 public:
  __device__ Input(const SageLayerArgs& args, Shared& shared, int begin, int end)
      : args_(args),
        shared_(shared),
        begin_(begin),
        end_(end),
        row_(threadIdx.x / kPieces),
        piece_(threadIdx.x % kPieces),
        row_bytes_(static_cast<int>(args.width * sizeof(T))) {
    // Beyond the width the stages are zeros, which no copy overwrites.
    if (piece_ * 16 >= row_bytes_) {
      for (int stage = 0; stage < kStages; ++stage) {
        for (int row = row_; row < 2 * kRows; row += kThreads / kPieces) {
          *reinterpret_cast<uint4*>(at(stage, row)) = uint4{0, 0, 0, 0};
        }
      }
    }
    find(0);
  }

  // Starts the copies of a step, for which `find` was called before, and finds the next one's
  // places.
  __device__ void start(int step) {
    const int stage = step % kStages;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_ + half * kRows / 2;
      const int place = begin_ + step * kRows + row;
      const int node = nodes_[half];
      const bool there = node >= 0 && node < args_.num_rows;
      if (piece_ == 0) shared_.places[stage][row] = there ? 1 : 0;
      if (piece_ * 16 < row_bytes_) {
        const char* x = static_cast<const char*>(args_.x) + int64_t{there ? node : 0} * row_bytes_;
        const char* around =
            static_cast<const char*>(args_.around) + int64_t{there ? place : 0} * row_bytes_;
        copy16(at(stage, row), x + piece_ * 16, there);
        copy16(at(stage, kRows + row), around + piece_ * 16, there);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    find(step + 1);
  }

 private:
  static_assert(kThreads / kPieces == kRows / 2, "two rows a thread");

  __device__ unsigned char* at(int stage, int row) const {
    return shared_.stages[stage] + row * kStageRowBytes + piece_ * 16;
  }
  __device__ void find(int step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = begin_ + step * kRows + row_ + half * kRows / 2;
      nodes_[half] = place < end_ ? __ldg(args_.places + place) : -1;
    }
  }

  const SageLayerArgs& args_;
  Shared& shared_;
  const int begin_, end_;  // places
  const int row_, piece_, row_bytes_;
  int32_t nodes_[2];
};

// kSteps: of 32 bytes of an input row.
template <typename T, int kSteps>
__global__ void __launch_bounds__(kThreads, 2) sage_layer(const SageLayerArgs args) {
  extern __shared__ __align__(128) unsigned char bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  const int groups = static_cast<int>(args.groups), size = static_cast<int>(args.group);
  const int per_block = (groups - 1) / static_cast<int>(gridDim.x) + 1;
  const int64_t first_group = int64_t(blockIdx.x) * per_block;
  if (first_group >= groups) return;
  const int begin = static_cast<int>(first_group) * size;
  const int end = static_cast<int>(min(first_group + per_block, args.groups)) * size;
  const int steps = (end - begin - 1) / kRows + 1;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool own = warp < kWarps / 2;  // of Wf
  const T* matrix = static_cast<const T*>(own ? args.own_matrix : args.around_matrix);
  const int64_t matrix_columns = own ? args.own : args.neighbors;
  // Words 2 t and 2 t + 1 of 32 bytes, where the instruction has t and t + 4: the order of the
  // terms is free, and a lane reads both at once.
  uint32_t b[kSteps][kColumns / 8][2];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        b[k][n][h] = matrix_word<T>(matrix, args.width, matrix_columns, 8 * k + 2 * t + h,
                                    warp % (kWarps / 2) * kColumns + n * 8 + g);
      }
    }
  }

  // The thread's column of the result.
  const int column = threadIdx.x % kLayerColumns;
  const bool of_own = threadIdx.x < kLayerColumns;
  const bool writes = column < (of_own ? args.own : args.neighbors);
  const int64_t out_width = args.own + args.neighbors;
  T* out = static_cast<T*>(args.out) + first_group * out_width + column + (of_own ? 0 : args.own);
  float sum = 0;
  int in_group = 0, counted = 0;

  Input<T> input(args, shared, begin, end);
  for (int step = 0; step < kStages - 1; ++step) input.start(step);
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();  // and the stage of the step before this one is free, as are the sums' rows
    const int stage = step % kStages;
    input.start(step + kStages - 1);

    float c[2][kColumns / 8][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
      }
    }
    const unsigned char* in =
        shared.stages[stage] + (own ? 0 : kRows * kStageRowBytes) + g * kStageRowBytes + 8 * t;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t a[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // rows g and g + 8
          const uint2 words =
              *reinterpret_cast<const uint2*>(in + (16 * m + 8 * half) * kStageRowBytes + 32 * k);
          a[half] = words.x;  // of float32, tensor cores leave out the last 13 bits
          a[half + 2] = words.y;
        }
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n)
          multiply(c[m][n], a, b[k][n][0], b[k][n][1], Tag<T>{});
      }
    }

    // The activation, and of each row the sum of the squares; rows 16 m + 8 half + g.
    const auto over_columns = [&](int r, auto f) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        f(c[r / 2][n][2 * (r % 2)]);
        f(c[r / 2][n][2 * (r % 2) + 1]);
      }
    };
    // Of all warps' parts of the four rows.
    const auto share = [&](float (&parts)[4], auto combine) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
          parts[r] = combine(parts[r], __shfl_xor_sync(kFullWarp, parts[r], offset));
        }
        if (t == 0) shared.parts[8 * r + g][warp] = parts[r];
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float all = 0;
#pragma unroll
        for (int i = 0; i < kWarps; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(&shared.parts[8 * r + g][i]);
          all = combine(combine(combine(combine(all, four.x), four.y), four.z), four.w);
        }
        parts[r] = all;
      }
    };
    const auto plus = [](float x, float y) { return x + y; };
    float squares[4];
    bool unusual = false;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      squares[r] = 0;
      over_columns(r, [&](float& value) {
        value = value < 0 ? 0 : value;  // NaN stays
        squares[r] += value * value;
      });
    }
    share(squares, plus);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const bool usual = squares[r] > 0x1p-80f && squares[r] < 0x1p120f;
      unusual |= !usual && shared.places[stage][8 * r + g] != 0;
    }
    // Rows whose squares overflow, or underflow, are scaled by powers of 2. A warp sees all rows,
    // so that all warps do this.
    if (__any_sync(kFullWarp, unusual)) {
      float largest[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        largest[r] = 0;
        over_columns(r, [&](float& value) { largest[r] = fmaxf(largest[r], value); });
      }
      __syncthreads();
      share(largest, [](float x, float y) { return fmaxf(x, y); });
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float within = fminf(fmaxf(largest[r], 0x1p-120f), 0x1p120f);
        const float power = ldexpf(1, -ilogbf(within));
        squares[r] = 0;
        over_columns(r, [&](float& value) {
          value *= power;
          squares[r] += value * value;
        });
      }
      __syncthreads();
      share(squares, plus);
    }
    float scale[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float root = rsqrtf(squares[r]);
      scale[r] = root * (1.5f - 0.5f * squares[r] * root * root);
      if (!(squares[r] > 0)) scale[r] = squares[r];  // 0, or NaN
      if (squares[r] == INFINITY) scale[r] = 0;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const float* two = &c[r / 2][n][2 * (r % 2)];
        *reinterpret_cast<float2*>(&shared.rows[8 * r + g][warp * kColumns + 8 * n + 2 * t]) =
            make_float2(two[0] * scale[r], two[1] * scale[r]);
      }
    }
    __syncwarp();  // a thread's column is one of its warp's

    const unsigned there = __ballot_sync(kFullWarp, shared.places[stage][lane] != 0);
    const int left = min(kRows, end - begin - step * kRows);
    const float* values = &shared.rows[0][threadIdx.x];
    for (int row = 0; row < left;) {
      const int count = min(size - in_group, left - row);
#pragma unroll 8
      for (int i = 0; i < count; ++i) sum += values[i * kSumStride];
      const unsigned ones = count == 32 ? kFullWarp : (1u << count) - 1;
      counted += __popc(there >> row & ones);
      values += count * kSumStride;
      row += count;
      in_group += count;
      if (in_group == size) {
        if (args.mean) sum /= static_cast<float>(counted > 0 ? counted : 1);
        if (writes) *out = narrow<T, float>(sum);
        out += out_width;
        sum = 0;
        counted = in_group = 0;
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace

cudaError_t launch_sage_layer(const SageLayerArgs& args, const Launch& launch) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto start = [&](auto kernel) {
      const int64_t blocks = args.groups < kBlocks ? args.groups : kBlocks;
      return launch_large_kernel<sizeof(Shared)>(launch, kernel,
                                                 dim3(static_cast<unsigned>(blocks)),
                                                 dim3(kThreads), sizeof(Shared), args);
    };
    const bool narrow = args.width * static_cast<int64_t>(sizeof(T)) <= kLayerRowBytes / 2;
    if (launch.load || narrow) JAXGNN_TRY(start(sage_layer<T, kLayerRowBytes / 64>));
    if (launch.load || !narrow) JAXGNN_TRY(start(sage_layer<T, kLayerRowBytes / 32>));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::sampling
