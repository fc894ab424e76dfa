// A layer of GraphSAGE whose rows have the length 1, on tensor cores: two products side by side,
// the activation, and the division by the length, of which nothing but the result is written.
//
// A block has 128 rows and all columns of both matrices, so that it knows its rows' lengths. A warp
// has 64 rows of 32 columns of one matrix in registers; inputs and matrices come to shared memory
// in pieces of 64 bytes of a row, a few ahead.
#include <algorithm>

#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/mma.cuh"
#include "cuda/sampling/embedding.h"
#include "cuda/sampling/unit_rows.cuh"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 512;
constexpr int kRows = 128;  // of a block at a time
constexpr int kWarpRows = 64, kWarpColumns = 32;
constexpr int kColumnTiles = kWarpColumns / 16, kRowTiles = kWarpRows / 8;
constexpr int kLaneRows = 2 * kRowTiles;
constexpr int kSharing = 2 * kLayerColumns / kWarpColumns;  // warps that have the same rows
static_assert(kRows == kLayerColumns, "inputs and matrices are staged alike");
static_assert(kThreads / 32 == kSharing * kRows / kWarpRows, "a warp for each part");

// Stages in shared memory, each of kChunk bytes of every row of both inputs and of both transposed
// matrices. Whole lines of 128 bytes are read faster; two stages of half lines fit everywhere.
template <int kChunkBytes, int kCount>
struct Staging {
  static constexpr int kChunk = kChunkBytes, kStages = kCount;
  static constexpr int kPitch = kChunk + 16;  // eight rows' 16 bytes are in different banks
  static constexpr int kStageBytes = 4 * kRows * kPitch;
};
using Lines = Staging<128, 3>;
using HalfLines = Staging<64, 2>;

struct Lengths {
  float parts[kSharing][kRows];
  float totals[kRows];
};

// Four matrices of eight rows of 16 bytes; lane l has the address of row l mod 8 of matrix l div 8.
__device__ inline void load_matrices(uint32_t (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// The lane's row i of its warp's.
__device__ inline int row_of_lane(int i) { return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2; }

// What all lanes have of the block's rows, combined: of row threadIdx.x.
template <typename F>
__device__ __forceinline__ float combine_rows(float (&values)[kLaneRows], Lengths& lengths,
                                              int part, int warp_row, F combine) {
  const int g = threadIdx.x % 32 / 4;
  combine_halves<kLaneRows / 2>(values, g / 4 % 2, 4, combine);
  combine_halves<kLaneRows / 4>(values, g / 2 % 2, 2, combine);
  combine_halves<kLaneRows / 8>(values, g % 2, 1, combine);
  const int first = warp_row + g * kWarpRows / 8;
#pragma unroll
  for (int i = 0; i < kLaneRows / 8; ++i) lengths.parts[part][first + row_of_lane(i)] = values[i];
  __syncthreads();
  float total = 0;
  if (threadIdx.x < kRows) {
#pragma unroll
    for (int i = 0; i < kSharing; ++i) total = combine(total, lengths.parts[i][threadIdx.x]);
  }
  return total;
}

template <typename T, typename S>
__global__ void __launch_bounds__(kThreads, 1) unit_layer(const UnitLayerArgs args) {
  constexpr int kChunk = S::kChunk, kStages = S::kStages, kPitch = S::kPitch;
  constexpr int kStageBytes = S::kStageBytes, kPieces = kChunk / 16;
  extern __shared__ __align__(128) unsigned char stages[];
  Lengths& lengths = *reinterpret_cast<Lengths*>(stages + kStages * kStageBytes);
  const int row_bytes = static_cast<int>(args.width * sizeof(T));
  const int chunks = (row_bytes + kChunk - 1) / kChunk;
  const int64_t stride = int64_t{gridDim.x} * kRows;  // to the block's next rows

  // The next chunk to be staged.
  int64_t staged_first = int64_t{blockIdx.x} * kRows;
  int staged_chunk = 0, staged = 0;
  const int piece = threadIdx.x % kPieces * 16;
  const unsigned base = shared_address(stages);
  const auto stage_chunk = [&] {
    const int offset = staged_chunk * kChunk + piece;
    const auto copy = [&](int array, int row, const void* from, int64_t of_row, bool inside) {
      const bool there = inside && offset < row_bytes;
      copy16(base + staged * kStageBytes + (array * kRows + row) * kPitch + piece,
             static_cast<const char*>(from) + (there ? of_row * row_bytes + offset : 0), there);
    };
#pragma unroll
    for (int first = 0; first < kRows; first += kThreads / kPieces) {
      const int row = first + static_cast<int>(threadIdx.x) / kPieces;
      const int64_t of_input = staged_first + row;
      bool inside = of_input < args.num_rows;
      const int64_t node =
          inside && args.places != nullptr ? int64_t{__ldg(args.places + of_input)} : of_input;
      inside = inside && node >= 0 && node < args.num_nodes;
      copy(0, row, args.x, node, inside);
      copy(1, row, args.around, of_input, inside);
      copy(2, row, args.own_matrix, row, row < args.own);
      copy(3, row, args.around_matrix, row, row < args.neighbors);
    }
    commit();
    staged = (staged + 1) % kStages;
    if (++staged_chunk == chunks) {
      staged_chunk = 0;
      staged_first += stride;
    }
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const int part = warp % kSharing;  // of the columns of both matrices
  const bool own = part < kSharing / 2;
  const int column = part % (kSharing / 2) * kWarpColumns;
  const int warp_row = warp / kSharing * kWarpRows;
  // As load_matrices wants them: of the columns eight, eight, and both again 16 bytes on; of the
  // rows eight, the same 16 bytes on, and the next eight likewise.
  const unsigned columns_at =
      base + (2 * kRows + (own ? 0 : kLayerColumns) + column + lane % 16) * kPitch + lane / 16 * 16;
  const unsigned rows_at =
      base + ((own ? 0 : kRows) + warp_row + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;

  // Columns 16 m + g and + 8, of rows 8 n + 2 t and + 1 each.
  float c[kColumnTiles][kRowTiles][4];
  // f of each value, and which of the lane's rows it is of.
  const auto over_values = [&](auto f) {
#pragma unroll
    for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f(c[m][n][i], 2 * n + i % 2);
      }
    }
  };
  const RowsWritten written = rows_written(args);
  for (int chunk = 0; chunk < kStages - 1; ++chunk) stage_chunk();
  int stage = 0;
  for (int64_t first_row = int64_t{blockIdx.x} * kRows; first_row < args.num_rows;
       first_row += stride) {
    over_values([](float& value, int) { value = 0; });
    for (int chunk = 0; chunk < chunks; ++chunk) {
      wait<kStages - 2>();
      __syncthreads();  // and the stage of the chunk before this one is free
      stage_chunk();
#pragma unroll
      for (int k = 0; k < kChunk; k += 32) {
        uint32_t a[kColumnTiles][4], b[kRowTiles / 2][4];
#pragma unroll
        for (int m = 0; m < kColumnTiles; ++m) {
          load_matrices(a[m], columns_at + stage * kStageBytes + 16 * m * kPitch + k);
        }
#pragma unroll
        for (int n = 0; n < kRowTiles / 2; ++n) {
          load_matrices(b[n], rows_at + stage * kStageBytes + 16 * n * kPitch + k);
        }
#pragma unroll
        for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n) {
            multiply(c[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], Tag<T>{});
          }
        }
      }
      stage = (stage + 1) % kStages;
    }

    const auto plus = [](float x, float y) { return x + y; };
    float squares[kLaneRows] = {};
    over_values([&](float& value, int i) {
      value = relu(value);
      squares[i] += value * value;
    });
    float square = combine_rows(squares, lengths, part, warp_row, plus), power = 1;
    const bool there = threadIdx.x < kRows && first_row + threadIdx.x < args.num_rows;
    // Rows whose squares overflow, or underflow, are scaled by powers of 2.
    if (__syncthreads_or(there && !in_range(square))) {
      float most[kLaneRows] = {};
      over_values([&](float& value, int i) { most[i] = fmaxf(most[i], value); });
      const float largest =
          combine_rows(most, lengths, part, warp_row, [](float x, float y) { return fmaxf(x, y); });
      power = power_below(largest);
      if (threadIdx.x < kRows) lengths.totals[threadIdx.x] = power;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) squares[i] = 0;
      over_values([&](float& value, int i) {
        const float scaled = value * lengths.totals[warp_row + row_of_lane(i)];
        squares[i] += scaled * scaled;
      });
      square = combine_rows(squares, lengths, part, warp_row, plus);
    }
    if (threadIdx.x < kRows) lengths.totals[threadIdx.x] = power * inverse_root(square);
    __syncthreads();

    const int64_t out_width = args.own + args.neighbors;
    const int64_t columns = own ? args.own : args.neighbors;
    T* out = static_cast<T*>(args.out) + (written.start + first_row) * out_width +
             (own ? 0 : args.own) + column + g;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int at = warp_row + row_of_lane(i);
      if (first_row + at >= written.count) continue;
      const float scale = lengths.totals[at];
#pragma unroll
      for (int m = 0; m < 2 * kColumnTiles; ++m) {
        const float value = c[m / 2][i / 2][m % 2 * 2 + i % 2] * scale;
        if (column + g + 8 * m < columns) out[at * out_width + 8 * m] = narrow<T, float>(value);
      }
    }
  }
  wait_for_all();
}

cudaError_t launch_unit_layer(const UnitLayerArgs& args, const Launch& launch) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    DeviceLimits limits{};
    JAXGNN_TRY(find_limits(limits));
    const unsigned most = blocks_of(args.num_rows, kRows);
    const unsigned blocks = std::min(most, static_cast<unsigned>(limits.processors));
    const auto start = [&](auto staging) {
      using S = decltype(staging);
      constexpr int kBytes = S::kStages * S::kStageBytes + sizeof(Lengths);
      if (kBytes > limits.shared_bytes) return cudaErrorInvalidConfiguration;
      return launch_large_kernel<kBytes>(launch, unit_layer<T, S>, blocks, kThreads, kBytes, args);
    };
    const cudaError_t error = start(Lines{});
    return error == cudaErrorInvalidConfiguration ? start(HalfLines{}) : error;
  });
}

}  // namespace

cudaError_t launch_source_layers(const SourceLayersArgs& args, const Launch& launch,
                                 bool warpgroups) {
  DeviceLimits limits{};
  JAXGNN_TRY(find_limits(limits));
  if (limits.capability == 90) {
    if (launch.load) JAXGNN_TRY(launch_source_layers_wgmma(args, launch));
    if (!launch.load && warpgroups) return launch_source_layers_wgmma(args, launch);
  }
  JAXGNN_TRY(launch_unit_layer(args.first, launch));
  return launch_unit_layer(args.second, launch);
}

}  // namespace jaxgnn::sampling
