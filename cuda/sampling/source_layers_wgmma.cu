// Both layers of sage_embedding's sources for Hopper, by products of warpgroups: what the first
// makes of a tile of rows stays in shared memory, where the second reads it.
//
// A block has 128 rows and all columns of a layer. Of four warpgroups each has a half of the
// columns of one matrix, with the columns as the instruction's rows, and of all rows 64 sums a
// thread in registers. The first layer's inputs and matrices, then its result, are in
// `Block::rows`. The second layer's matrices, whose 256 KB fit no multiprocessor, come with the
// other input in chunks of 128 bytes of a row, two in flight; the next tile's first layer comes
// while a tile is written.
#include <algorithm>

#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/wgmma.cuh"
#include "cuda/sampling/embedding.h"
#include "cuda/sampling/sage_matrix.cuh"
#include "cuda/sampling/unit_rows.cuh"

namespace jaxgnn::sampling {
namespace {

namespace wg = warpgroup;

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kRows = 128;   // of a tile
constexpr int kSlots = 32;   // a thread's rows: slot 2 j + i is row 8 j + 2 t + i
constexpr int kValues = 64;  // a thread's: of two columns of each of its rows
constexpr int kPanel = kRows * wg::kPanelBytes;
constexpr int kInputPanels = kLayerRowBytes / wg::kPanelBytes;          // of the first layer
constexpr int kHiddenPanels = 2 * kLayerColumns * 4 / wg::kPanelBytes;  // at most
constexpr int kStages = 2;
static_assert(kRows == kLayerColumns, "rows and columns are copied alike");
static_assert(2 * wg::kRows == kLayerColumns, "two warpgroups a matrix");
static_assert(4 * kInputPanels == kHiddenPanels,
              "the first layer's inputs lie where its result does");

struct Stage {
  unsigned char matrices[2][kPanel];
  unsigned char around[kPanel];
};

struct Block {
  unsigned char rows[kHiddenPanels][kPanel];
  Stage stages[kStages];
  float scales[kRows];
};
constexpr int kBytes = sizeof(Block) + wg::kAtomBytes;

// What each warp has of the rows, before it is combined.
using Parts = float[kWarps][kRows];
static_assert(sizeof(Parts) <= sizeof(Stage) && sizeof(Parts) <= sizeof(Block::rows), "");

// f of the row's values, over all columns: of row threadIdx.x for the first kRows threads. First
// combines a thread's two values of a row, then those of other threads.
template <typename First, typename F>
__device__ __forceinline__ float combine_columns(const float (&c)[kValues], Parts& parts,
                                                 First first, F combine) {
  const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float rows[kSlots / 2];
#pragma unroll
    for (int s = 0; s < kSlots / 2; ++s) {
      const int slot = half * (kSlots / 2) + s, at = slot / 2 * 4 + slot % 2;
      rows[s] = first(c[at], c[at + 2], slot);
    }
    combine_halves<kSlots / 4>(rows, g / 4 % 2, 4, combine);
    combine_halves<kSlots / 8>(rows, g / 2 % 2, 2, combine);
    combine_halves<kSlots / 16>(rows, g % 2, 1, combine);
    // Slots 2 g and 2 g + 1 of the half: rows 8 g + 2 t and the next.
    reinterpret_cast<float2*>(parts[threadIdx.x / 32])[half * 32 + lane] = float2{rows[0], rows[1]};
  }
  __syncthreads();
  float total = 0;
  if (threadIdx.x < kRows) {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total = combine(total, parts[i][threadIdx.x]);
  }
  return total;
}

// The matrix's column that lies in a panel's row: such that a thread's two are side by side.
__device__ inline int column_at(int row) { return row / 16 * 16 + row % 8 * 2 + row / 8 % 2; }

// How many of a thread's two columns, from `column` on, a matrix has.
__device__ inline int columns_from(int column, int64_t columns) {
  return static_cast<int>(max(int64_t{0}, min(int64_t{2}, columns - column)));
}

// A value as products read it: float32 is rounded to TF32, which they would cut off to.
template <typename T>
__device__ inline float multiplied(float value) {
  return sizeof(T) == 4 ? __uint_as_float(tf32(value)) : value;
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T first, second;
};

// Stores a thread's values of its two columns, or of the first alone; with `pairs` both at once.
template <typename T>
__device__ inline void store_columns(T* first, T* second, float one, float other, bool both,
                                     bool pairs) {
  if (pairs) {
    *reinterpret_cast<Pair<T>*>(first) = {narrow<T, float>(one), narrow<T, float>(other)};
  } else {
    *first = narrow<T, float>(one);
    if (both) *second = narrow<T, float>(other);
  }
}

// The scale of the slot's row, of both rows of a pair of slots at once.
__device__ inline float scale_of(const float (&scales)[kRows], int slot) {
  const float2 both = *reinterpret_cast<const float2*>(&scales[slot / 2 * 8 + threadIdx.x % 4 * 2]);
  return slot % 2 == 0 ? both.x : both.y;
}

// Applies the activation, and finds what makes a row's length 1. `there`: whether the tile has a
// row threadIdx.x; others have values of 0. All threads are past a barrier behind which `parts` is
// theirs.
__device__ __forceinline__ void find_scales(float (&c)[kValues], Parts& parts,
                                            float (&scales)[kRows], bool there) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) c[i] = relu(c[i]);
  const auto plus = [](float x, float y) { return x + y; };
  float square =
      combine_columns(c, parts, [](float x, float y, int) { return x * x + y * y; }, plus);
  float power = 1;
  // Rows whose squares overflow, or underflow, are scaled by powers of 2.
  if (__syncthreads_or(threadIdx.x < kRows && there && !in_range(square))) {
    const auto larger = [](float x, float y) { return fmaxf(x, y); };
    const float largest =
        combine_columns(c, parts, [=](float x, float y, int) { return larger(x, y); }, larger);
    power = power_below(largest);
    if (threadIdx.x < kRows) scales[threadIdx.x] = power;
    __syncthreads();
    square = combine_columns(
        c, parts,
        [&](float x, float y, int slot) {
          const float scale = scale_of(scales, slot);
          return scale * x * (scale * x) + scale * y * (scale * y);
        },
        plus);
    // Behind the barrier within, the powers were read.
  }
  if (threadIdx.x < kRows) {
    scales[threadIdx.x] = power * inverse_root(square);
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) source_layers(const SourceLayersArgs args) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  Block& block = *reinterpret_cast<Block*>(bytes + (-shared_address(bytes) & (wg::kAtomBytes - 1)));
  const UnitLayerArgs &first = args.first, &second = args.second;
  // As the compiler knows it to be the same in all lanes.
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int matrix = warp / 8, half = warp / 4 % 2;  // 1: the neighbors'
  const int column = half * wg::kRows + column_at(warp % 4 * 16 + g);
  const int input_bytes = static_cast<int>(first.width * sizeof(T));
  const int hidden_bytes = static_cast<int>(second.width * sizeof(T));
  const int input_panels = (input_bytes - 1) / wg::kPanelBytes + 1;
  const int chunks = (hidden_bytes - 1) / wg::kPanelBytes + 1;

  // A thread copies 16 bytes of rows `copied` and copied + 64.
  const int piece = threadIdx.x % 8, copied = threadIdx.x / 8;
  // Copies a panel: of row r the 128 bytes from `offset` on, of from's row row_of(r), -1 for none.
  const auto copy_panel = [&](unsigned char* to, const void* from, int row_bytes, int offset,
                              auto row_of) {
    const int at = offset + piece * 16;
#pragma unroll
    for (int row = copied; row < kRows; row += kThreads / 8) {
      const int64_t of = row_of(row);
      const bool there = of >= 0 && at < row_bytes;
      copy16(shared_address(to) + wg::swizzled(row, piece),
             static_cast<const char*>(from) + (there ? of * row_bytes + at : 0), there);
    }
  };
  // The nodes of the thread's two rows of a tile, -1 for none.
  const auto node_at = [&](int64_t row) -> int64_t {
    const int32_t node = row < first.num_rows ? __ldg(first.places + row) : -1;
    return node >= 0 && node < first.num_nodes ? node : -1;
  };
  const auto start_first_layer = [&](int64_t tile) {
    const int64_t begin = tile * kRows;
    if (begin < first.num_rows) {
      const int64_t nodes[2] = {node_at(begin + copied), node_at(begin + copied + kRows / 2)};
      for (int panel = 0; panel < input_panels; ++panel) {
        const int offset = panel * wg::kPanelBytes;
        copy_panel(block.rows[panel], first.x, input_bytes, offset,
                   [&](int row) { return row < kRows / 2 ? nodes[0] : nodes[1]; });
        copy_panel(block.rows[kInputPanels + panel], first.around, input_bytes, offset,
                   [&](int row) {
                     const int64_t node = row < kRows / 2 ? nodes[0] : nodes[1];
                     return node < 0 ? -1 : begin + row;
                   });
        copy_panel(block.rows[2 * kInputPanels + panel], first.own_matrix, input_bytes, offset,
                   [&](int row) { return column_at(row) < first.own ? column_at(row) : -1; });
        copy_panel(block.rows[3 * kInputPanels + panel], first.around_matrix, input_bytes, offset,
                   [&](int row) { return column_at(row) < first.neighbors ? column_at(row) : -1; });
      }
    }
    commit();
  };
  const auto start_chunk = [&](int64_t tile, int chunk) {
    const int64_t begin = tile * kRows;
    if (begin < first.num_rows && chunk < chunks) {
      Stage& stage = block.stages[chunk % kStages];
      const int offset = chunk * wg::kPanelBytes;
      copy_panel(stage.matrices[0], second.own_matrix, hidden_bytes, offset,
                 [&](int row) { return column_at(row) < second.own ? column_at(row) : -1; });
      copy_panel(stage.matrices[1], second.around_matrix, hidden_bytes, offset,
                 [&](int row) { return column_at(row) < second.neighbors ? column_at(row) : -1; });
      copy_panel(stage.around, second.around, hidden_bytes, offset,
                 [&](int row) { return begin + row < second.num_rows ? begin + row : -1; });
    }
    commit();
  };

  // c = or += 64 columns times all rows, over 128 bytes of both.
  float c[kValues];
  const auto multiply_panel = [&](const unsigned char* columns, const unsigned char* rows,
                                  bool add) {
    const uint64_t a = wg::describe(shared_address(columns + half * (kPanel / 2)));
    const uint64_t b = wg::describe(shared_address(rows));
    wg::begin();
#pragma unroll
    for (int step = 0; step < wg::kSteps; ++step) {
      const int within = step * wg::kStepBytes / 16;
      wg::multiply(c, a + within, b + within, add || step > 0, Tag<T>{});
    }
    wg::commit();
    wg::wait_for_products();
    wg::after_products(c);
  };

  // What the first layer made, where the second multiplies it.
  const int64_t hidden_column = column + (matrix == 0 ? 0 : first.own);
  const int hidden_count = columns_from(column, matrix == 0 ? first.own : first.neighbors);
  const bool hidden_pairs = hidden_count == 2 && hidden_column % 2 == 0;
  const auto store_hidden = [&] {
    if (hidden_count <= 0) return;
    T* to[2][2];  // of both columns, in rows 2 t and 2 t + 1
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int at = static_cast<int>((hidden_column + k) * sizeof(T));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to[k][i] =
            reinterpret_cast<T*>(block.rows[at / wg::kPanelBytes % kHiddenPanels] +
                                 wg::swizzled(2 * t + i, at % wg::kPanelBytes / 16) + at % 16);
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const float scale = scale_of(block.scales, slot);
      const int at = slot / 2 * 4 + slot % 2;
      const float one = multiplied<T>(c[at] * scale), other = multiplied<T>(c[at + 2] * scale);
      constexpr int kEight = wg::kAtomBytes / sizeof(T);  // rows
      store_columns(to[0][slot % 2] + slot / 2 * kEight, to[1][slot % 2] + slot / 2 * kEight, one,
                    other, hidden_count > 1, hidden_pairs);
    }
  };

  const int64_t out_width = second.own + second.neighbors;
  const int64_t out_column = column + (matrix == 0 ? 0 : second.own);
  const int count = columns_from(column, matrix == 0 ? second.own : second.neighbors);
  const bool pairs = count == 2 && out_column % 2 == 0 && out_width % 2 == 0;
  const RowsWritten written = rows_written(second);
  T* out_columns = static_cast<T*>(second.out) + written.start * out_width + out_column;

  int64_t tile = blockIdx.x;
  start_first_layer(tile);
  start_chunk(tile, 0);
  for (; tile * kRows < first.num_rows; tile += gridDim.x) {
    start_chunk(tile, 1);
    const int64_t begin = tile * kRows, mine = begin + static_cast<int>(threadIdx.x);
    const bool there = threadIdx.x < kRows && node_at(mine) >= 0;

    wait<2>();
    wg::publish();
    __syncthreads();
    for (int panel = 0; panel < input_panels; ++panel) {
      multiply_panel(block.rows[(2 + matrix) * kInputPanels + panel],
                     block.rows[matrix * kInputPanels + panel], panel > 0);
    }
    __syncthreads();  // the inputs are free
    find_scales(c, *reinterpret_cast<Parts*>(block.rows), block.scales, there);
    store_hidden();
    // A chunk's end beyond the columns: 0 there, as the matrices are.
    for (int at = hidden_bytes + static_cast<int>(threadIdx.x) / kRows * 16;
         at < chunks * wg::kPanelBytes; at += kThreads / kRows * 16) {
      *reinterpret_cast<uint4*>(block.rows[at / wg::kPanelBytes] +
                                wg::swizzled(threadIdx.x % kRows, at % wg::kPanelBytes / 16)) =
          uint4{0, 0, 0, 0};
    }

    for (int chunk = 0; chunk < chunks; ++chunk) {
      wait<1>();
      wg::publish();
      __syncthreads();
      const Stage& stage = block.stages[chunk % kStages];
      multiply_panel(stage.matrices[matrix], matrix == 0 ? block.rows[chunk] : stage.around,
                     chunk > 0);
      __syncthreads();  // the stage is free
      if (chunk + 1 < chunks) start_chunk(tile, chunk + 2);
    }
    // What the next tile needs; the second stage has the parts of the lengths meanwhile.
    start_first_layer(tile + gridDim.x);
    start_chunk(tile + gridDim.x, 0);
    find_scales(c, *reinterpret_cast<Parts*>(&block.stages[1]), block.scales,
                mine < second.num_rows);

    T* out = out_columns + begin * out_width;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const float scale = scale_of(block.scales, slot);
      const int row = slot / 2 * 8 + t * 2 + slot % 2, at = slot / 2 * 4 + slot % 2;
      if (begin + row < written.count && count > 0) {
        T* to = out + row * out_width;
        store_columns(to, to + 1, c[at] * scale, c[at + 2] * scale, count > 1, pairs);
      }
    }
    __syncthreads();  // the scales and the second stage are free
  }
  wait_for_all();
}

}  // namespace

cudaError_t launch_source_layers_wgmma(const SourceLayersArgs& args, const Launch& launch) {
  DeviceLimits limits{};
  JAXGNN_TRY(find_limits(limits));
  const unsigned blocks =
      std::min(blocks_of(args.first.num_rows, kRows), static_cast<unsigned>(limits.processors));
  return with_type(NarrowTypes{}, launch, args.first.type, [&](auto tag) {
    const auto kernel = source_layers<typename decltype(tag)::type>;
    return launch_large_kernel<kBytes>(launch, kernel, blocks, kThreads, kBytes, args);
  });
}

}  // namespace jaxgnn::sampling
