// A layer of GraphSAGE for drawn places, and the sum of its rows over groups, on tensor cores.
//
// A pair of warps walks a range of groups, 32 rows at a time, without the block's other warps. One
// multiplies rows of x by Wf, the other rows of `around` by Wa: each has 32 rows of all columns in
// registers, and the rows of the next step in flight to shared memory, where the block keeps
// both matrices. They exchange their rows' sums of squares, and sum their columns over a group from
// shared memory, each row divided by its length: the layer's rows, many times the input, are never
// written.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/sampling/embedding.h"
#include "cuda/sampling/sage_matrix.cuh"
#include "cuda/sampling/unit_rows.cuh"

namespace jaxgnn::sampling {
namespace {

constexpr int kRows = 32;      // of a step: a row a lane
constexpr int kMostPairs = 4;  // of a block
constexpr int kTiles = kLayerColumns / 16;
constexpr int kStageRowBytes = kLayerRowBytes + 32;  // rows 8 banks apart: no conflicts
constexpr int kStageBytes = kRows * kStageRowBytes;
constexpr int kSumRows = kRows / 2;            // of the layer, in a stage that was multiplied
constexpr int kSumStride = kLayerColumns + 4;  // two rows 8 banks apart: no conflicts
static_assert(kSumRows * kSumStride * sizeof(float) <= kStageBytes);
static_assert(kLayerColumns == 4 * 32, "four columns a lane");

// What a pair of warps shares.
struct Pair {
  unsigned char stages[2][2][kStageBytes];  // of each warp
  float squares[2][2][kRows];               // of even and odd steps, of each warp
  float scales[2][kRows];                   // of each warp
  float largest[2][kRows], scaled[2][kRows];
};

// A matrix in shared memory: of each 32 bytes of an input row and 16 columns what a lane multiplies
// by. Columns are the instruction's rows, and the input's rows its columns.
template <int kSteps>
using Matrix = uint4[kSteps][kTiles][32];

// Words 2 t and 2 t + 1 of 32 bytes, where the instruction has t and t + 4: the order of the terms
// is free, and a lane reads both of an input row at once.
template <typename T, int kSteps>
__device__ inline void load_matrix(Matrix<kSteps>& to, const T* matrix, int64_t rows,
                                   int64_t columns) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kSteps * kTiles * 32; i += blockDim.x) {
    const int lane = i % 32, tile = i / 32 % kTiles, k = i / (32 * kTiles);
    const int word = 8 * k + lane % 4 * 2, column = 16 * tile + lane / 4;
    (&to[0][0][0])[i] = uint4{matrix_word<T>(matrix, rows, columns, word, column),
                              matrix_word<T>(matrix, rows, columns, word, column + 8),
                              matrix_word<T>(matrix, rows, columns, word + 1, column),
                              matrix_word<T>(matrix, rows, columns, word + 1, column + 8)};
  }
}

// Waits for the pair's other warp.
__device__ inline void wait_for_pair() {
  asm volatile("bar.sync %0, 64;" ::"r"(1 + static_cast<int>(threadIdx.x) / 64) : "memory");
}

// A warp's rows in flight to its two stages. kPieces: of 16 bytes that a row has there, zeros
// beyond the width.
template <typename T, int kPieces>
class Input {
 public:
  // Places from `begin` to `end`.
  __device__ Input(const SageLayerArgs& args, Pair& pair, bool own, int begin, int end)
      : args_(args),
        stages_(pair.stages[own ? 0 : 1]),
        own_(own),
        begin_(begin),
        end_(end),
        lane_(threadIdx.x % 32),
        row_bytes_(static_cast<int>(args.width * sizeof(T))) {
    find(0);
  }

  // Starts the copies of a step, for which `find` was called before, and finds the next one's
  // places. Returns which of the step's rows are of a node.
  __device__ unsigned start(int step) {
    const bool there = node_ >= 0 && node_ < args_.num_rows;
    const unsigned rows = __ballot_sync(kFullWarp, there);
    const int source = !there ? 0 : own_ ? node_ : begin_ + step * kRows + lane_;
    const int offset = lane_ % kPieces * 16;
    const bool inside = offset < row_bytes_;
    const char* from = static_cast<const char*>(own_ ? args_.x : args_.around);
    if (inside) from += offset;
    unsigned char* to = stages_[step % 2] + offset;
#pragma unroll
    for (int first = 0; first < kRows; first += 32 / kPieces) {
      const int row = first + lane_ / kPieces;
      const int row_source = __shfl_sync(kFullWarp, source, row);
      copy16(shared_address(to + row * kStageRowBytes), from + int64_t{row_source} * row_bytes_,
             inside && (rows >> row & 1));
    }
    commit();
    find(step + 1);
    return rows;
  }

 private:
  __device__ void find(int step) {
    const unsigned place = unsigned(begin_) + step * kRows + lane_;  // steps go beyond the end
    node_ = place < unsigned(end_) ? __ldg(args_.places + place) : -1;
  }

  const SageLayerArgs& args_;
  unsigned char (&stages_)[2][kStageBytes];
  const bool own_;
  const int begin_, end_, lane_, row_bytes_;
  int32_t node_;
};

// Of each of a lane's eight rows what all lanes of the same rows have, combined: of row i for the
// lane with g = i.
template <typename F>
__device__ inline float combine_rows(float (&values)[8], int g, F combine) {
  combine_halves<4>(values, g / 4 % 2, 4, combine);
  combine_halves<2>(values, g / 2 % 2, 2, combine);
  combine_halves<1>(values, g % 2, 1, combine);
  return values[0];
}

// What the pair's warps have of the lane's row, combined.
template <typename F>
__device__ inline float combine_pair(float value, float (&shared)[2][kRows], bool own, int row,
                                     F combine) {
  shared[own ? 0 : 1][row] = value;
  wait_for_pair();
  return combine(shared[0][row], shared[1][row]);
}

// kSteps: of 32 bytes of an input row.
template <typename T, int kSteps>
__global__ void __launch_bounds__(64 * kMostPairs, 1) sage_layer(const SageLayerArgs args) {
  extern __shared__ __align__(128) unsigned char bytes[];
  Matrix<kSteps>* matrices = reinterpret_cast<Matrix<kSteps>*>(bytes);
  load_matrix<T, kSteps>(matrices[0], static_cast<const T*>(args.own_matrix), args.width, args.own);
  load_matrix<T, kSteps>(matrices[1], static_cast<const T*>(args.around_matrix), args.width,
                         args.neighbors);
  __syncthreads();

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = g / 2 * 8 + 2 * t + g % 2;  // of a step, which the lane finds the length of
  const bool own = threadIdx.x / 32 % 2 == 0;
  Pair& pair = reinterpret_cast<Pair*>(bytes + 2 * sizeof(Matrix<kSteps>))[threadIdx.x / 64];
  const Matrix<kSteps>& matrix = matrices[own ? 0 : 1];
  const int pairs = static_cast<int>(blockDim.x) / 64 * static_cast<int>(gridDim.x);
  const int pair_number = static_cast<int>(threadIdx.x / 64 * gridDim.x + blockIdx.x);
  const int groups = static_cast<int>(args.groups), size = static_cast<int>(args.group);
  const int per_pair = (groups - 1) / pairs + 1;
  const int64_t first_group = int64_t{pair_number} * per_pair;
  if (first_group >= groups) return;
  const int begin = static_cast<int>(first_group) * size;
  const int end = static_cast<int>(min(first_group + per_pair, args.groups)) * size;
  const int steps = (end - begin - 1) / kRows + 1;

  const int64_t columns = own ? args.own : args.neighbors;
  const int64_t out_width = args.own + args.neighbors;
  T* out = static_cast<T*>(args.out) + first_group * out_width + (own ? 0 : args.own) + 4 * lane;
  const bool whole = args.own % 4 == 0 && args.neighbors % 4 == 0;
  float sums[4] = {};
  // Rows of the group so far, and those of a node before row `group_begin` of the step.
  int in_group = 0, counted = 0, group_begin = 0, groups_left = (end - begin) / size;
  const float inverse_size = 1 / static_cast<float>(size);
  unsigned there;  // which of the step's rows are of a node
  // Stores the sums of the group that ends before row `row_end` of the step.
  const auto finish_group = [&](int row_end) {
    const unsigned ones = (2u << (row_end - group_begin - 1)) - 1;
    counted += __popc(there >> group_begin & ones);
    group_begin = row_end;
    if (args.mean) {
      const float inverse =
          counted == size ? inverse_size : 1 / static_cast<float>(counted > 0 ? counted : 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] *= inverse;
    }
    if (groups_left > 0 && whole) {  // beyond the last one there are rows of no place
      if (4 * lane < columns) store_vector<T, 4, float>(out, sums);
    } else if (groups_left > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * lane + i < columns) out[i] = narrow<T, float>(sums[i]);
      }
    }
    --groups_left;
    out += out_width;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0;
    counted = in_group = 0;
  };

  Input<T, 2 * kSteps> input(args, pair, own, begin, end);
  there = input.start(0);
  for (int step = 0; step < steps; ++step) {
    const unsigned next_there = input.start(step + 1);
    wait<1>();
    __syncwarp();

    // Columns 16 m + g and + 8, of rows 8 n + 2 t and + 1 each.
    float c[kTiles][4][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
      }
    }
    unsigned char* stage = pair.stages[own ? 0 : 1][step % 2];
    const unsigned char* in = stage + g * kStageRowBytes + 8 * t;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint2 b[4];  // of float32, tensor cores leave out the last 13 bits
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        b[n] = *reinterpret_cast<const uint2*>(in + 8 * n * kStageRowBytes + 32 * k);
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint4 four = matrix[k][m][lane];
        const uint32_t a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) multiply(c[m][n], a, b[n].x, b[n].y, Tag<T>{});
      }
    }

    // f of each value, and which of the lane's rows it is of.
    const auto over_values = [&](auto f) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f(c[m][n][i], 2 * n + i % 2);
        }
      }
    };
    const auto plus = [](float x, float y) { return x + y; };
    float squares[8] = {};
    over_values([&](float& value, int i) {
      value = relu(value);
      squares[i] += value * value;
    });
    float square = combine_rows(squares, g, plus);
    square = combine_pair(square, pair.squares[step % 2], own, row, plus);
    float power = 1;
    // Both warps see the same sums, so that both do this.
    if (__any_sync(kFullWarp, !in_range(square) && (there >> row & 1) != 0)) {
      const auto larger = [](float x, float y) { return fmaxf(x, y); };
      float most[8] = {};
      over_values([&](float& value, int i) { most[i] = fmaxf(most[i], value); });
      float largest = combine_rows(most, g, larger);
      largest = combine_pair(largest, pair.largest, own, row, larger);
      power = power_below(largest);
      float* powers = pair.scales[own ? 0 : 1];
      powers[row] = power;
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[i] = 0;
      over_values([&](float& value, int i) {
        const float scaled = value * powers[i / 2 * 8 + 2 * t + i % 2];
        squares[i] += scaled * scaled;
      });
      square = combine_rows(squares, g, plus);
      square = combine_pair(square, pair.scaled, own, row, plus);
    }
    pair.scales[own ? 0 : 1][row] = power * inverse_root(square);

    float* rows = reinterpret_cast<float*>(stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();  // all lanes have read the stage
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            rows[(8 * n + 2 * t + i % 2) * kSumStride + 16 * m + 8 * (i / 2) + g] =
                c[m][2 * half + n][i];
          }
        }
      }
      __syncwarp();
      const float* values = rows + 4 * lane;
      const float* scales = pair.scales[own ? 0 : 1] + half * kSumRows;
      for (int first = 0; first < kSumRows;) {
        const int count = min(size - in_group, kSumRows - first);
#pragma unroll 4
        for (int i = first; i < first + count; ++i) {
          const float4 four = *reinterpret_cast<const float4*>(values + i * kSumStride);
          sums[0] += scales[i] * four.x;
          sums[1] += scales[i] * four.y;
          sums[2] += scales[i] * four.z;
          sums[3] += scales[i] * four.w;
        }
        first += count;
        in_group += count;
        if (in_group == size) finish_group(half * kSumRows + first);
      }
    }
    counted += group_begin < kRows ? __popc(there >> group_begin) : 0;
    group_begin = 0;
    __syncwarp();  // before the stage is copied to
    there = next_there;
  }
  wait_for_all();
}

// The block's matrices in bytes.
template <int kSteps>
constexpr int kMatrixBytes = 2 * sizeof(Matrix<kSteps>);

template <typename T, int kSteps>
cudaError_t start(const SageLayerArgs& args, const Launch& launch) {
  DeviceLimits limits{};
  JAXGNN_TRY(find_limits(limits));
  const auto kernel = sage_layer<T, kSteps>;
  const int fitting = (limits.shared_bytes - kMatrixBytes<kSteps>) / static_cast<int>(sizeof(Pair));
  const int pairs = fitting < kMostPairs ? fitting : kMostPairs;
  if (pairs < 1) return launch.load ? cudaSuccess : cudaErrorInvalidConfiguration;
  const int bytes = kMatrixBytes<kSteps> + pairs * static_cast<int>(sizeof(Pair));
  if (launch.load) {
    JAXGNN_TRY(load_kernel(kernel));
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  const int64_t most = args.groups / pairs + 1;
  const unsigned blocks =
      static_cast<unsigned>(most < limits.processors ? most : limits.processors);
  return launch_kernel(launch, kernel, blocks, 64 * pairs, bytes, args);
}

}  // namespace

cudaError_t launch_sage_layer(const SageLayerArgs& args, const Launch& launch, bool warpgroups) {
  DeviceLimits limits{};
  JAXGNN_TRY(find_limits(limits));
  if (limits.capability == 90) {
    if (launch.load) JAXGNN_TRY(launch_sage_layer_wgmma(args, launch));
    if (!launch.load && warpgroups) return launch_sage_layer_wgmma(args, launch);
  }
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool narrow = args.width * static_cast<int64_t>(sizeof(T)) <= kLayerRowBytes / 2;
    if (launch.load || narrow) JAXGNN_TRY((start<T, kLayerRowBytes / 64>(args, launch)));
    if (launch.load || !narrow) JAXGNN_TRY((start<T, kLayerRowBytes / 32>(args, launch)));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::sampling
