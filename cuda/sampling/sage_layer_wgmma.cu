// The layer of sage_layer.cu for Hopper, by products of warpgroups.
//
// A team of two warpgroups walks a range of groups, a tile of rows at a time, without the block's
// other teams. One warpgroup multiplies rows of x by Wf, the other rows of `around` by Wa, with the
// matrices' columns as the instruction's rows: of four columns a thread has a quarter of the tile's
// rows in registers. A tile has four groups side by side, one for each lane of a quad, and the
// groups of a lane follow one another over the tiles. So a group's sum is a sum over a thread's
// registers, a row's length one over lanes and warps, and the layer's rows never leave the
// registers. While a team adds, the others multiply, and the next tiles are in flight.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/async.cuh"
#include "cuda/core/barrier.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/wgmma.cuh"
#include "cuda/sampling/embedding.h"
#include "cuda/sampling/sage_matrix.cuh"
#include "cuda/sampling/unit_rows.cuh"

namespace jaxgnn::sampling {
namespace {

namespace wg = warpgroup;

constexpr int kTeamThreads = 2 * wg::kThreads, kTeamWarps = kTeamThreads / 32;
constexpr int kParts = kLayerColumns / wg::kRows;  // of a matrix's columns
static_assert(kParts == 2, "four columns of a thread");
constexpr int kMatrixPanel = wg::kRows * wg::kPanelBytes;

// How a block is made. kPanels: of 128 bytes that a row has; kRows: of a tile; kStages: tiles in
// shared memory.
template <int kPanels_, int kRows_, int kTeams_, int kStages_>
struct Tiling {
  static constexpr int kPanels = kPanels_, kRows = kRows_, kTeams = kTeams_, kStages = kStages_;
  static constexpr int kSteps = kPanels * wg::kSteps;
  static constexpr int kSlots = kRows / 4;  // a thread's rows
  static constexpr int kInputBytes = kRows * kPanels * wg::kPanelBytes;
  static constexpr int kStageBytes = 2 * kInputBytes;
  static constexpr int kMatrixBytes = 2 * kParts * kPanels * kMatrixPanel;

  struct alignas(16) Team {          // read and written two numbers at a time
    float parts[kTeamWarps][kRows];  // what each warp has of the rows
    float scales[kRows];
    int32_t kinds[kStages][kRows];  // of the rows
    int missing;                    // whether a tile so far had a row of no node
    float inverses[kSlots][4];      // if so: of the sizes of the groups that end in this tile
  };
  static constexpr int kBytes = wg::kAtomBytes + kMatrixBytes + kTeams * kStages * kStageBytes +
                                kTeams * static_cast<int>(sizeof(Team));
};

// The column's words of a matrix in shared memory, its columns as rows.
template <typename T, int kPanels>
__device__ inline void store_matrix(unsigned char* to, const T* matrix, int64_t rows,
                                    int64_t columns) {
  constexpr int kWords = kPanels * wg::kPanelBytes / 4;
#pragma unroll 4
  for (int i = threadIdx.x; i < kLayerColumns * kWords; i += blockDim.x) {
    const int column = i % kLayerColumns, word = i / kLayerColumns;
    const int panel = column / wg::kRows * kPanels + word / (wg::kPanelBytes / 4);
    const int at = wg::swizzled(column % wg::kRows, word / 4 % 8) + word % 4 * 4;
    *reinterpret_cast<uint32_t*>(to + panel * kMatrixPanel + at) =
        matrix_word<T>(matrix, rows, columns, word, column);
  }
}

// A team's range of groups, four side by side: row 8 j + 2 t + i of tile n is in group t of the
// four the place at `slot` 2 j + i, and the range's `position` n kSlots + slot.
struct Range {
  unsigned first, end;  // groups
  unsigned size;        // of a group
  __device__ unsigned positions() const { return (end - first + 3) / 4 * size; }
};

// Of a row: it is of a node, its place has none, or it is of no place.
enum Kind : int32_t { kOfNode, kMissing, kBeyondRange };

// A warpgroup's rows in flight to its half of the stages.
template <typename T, typename S>
class Input {
 public:
  __device__ Input(const SageLayerArgs& args, const Range& range, typename S::Team& team,
                   unsigned stages, bool own)
      : args_(args),
        range_(range),
        team_(team),
        own_(own),
        lane_(threadIdx.x % 32),
        first_(threadIdx.x / 32 % 4 * kWarpRows),
        row_bytes_(static_cast<unsigned>(args.width * sizeof(T))) {
    const unsigned piece = lane_ % kPieces, row = lane_ / kPieces;
    inside_ = piece * 16 < row_bytes_;
    from_ = static_cast<const char*>(own ? args.x : args.around) + (inside_ ? piece * 16 : 0);
    to_ = stages + (own ? 0 : S::kInputBytes) + piece / 8 * S::kRows * wg::kPanelBytes +
          (first_ + row) * wg::kPanelBytes;
    exchanged_ = (piece % 8 ^ row) << 4;
    const unsigned own_row = first_ + lane_, slot = own_row / 8 * 2 + own_row % 2;
    next_in_group_ = slot % range.size;
    next_group_ = range.first + slot / range.size * 4 + own_row % 8 / 2;
    next_place_ = next_group_ * range.size + next_in_group_;
    groups_of_tile_ = S::kSlots / range.size * 4;
    places_of_tile_ = groups_of_tile_ * range.size + S::kSlots % range.size;
    find();
  }

  // Starts the copies of a tile, one after the other, and finds the next one's places. Without any
  // it commits an empty group of copies.
  __device__ void start(unsigned tile) {
    const bool there = node_ >= 0 && node_ < args_.num_rows;
    unsigned rows = __ballot_sync(kFullWarp, there);
    const unsigned source = !there ? 0 : own_ ? node_ : place_;
    const unsigned stage = tile % S::kStages;
    if (own_ && lane_ < kWarpRows) {
      team_.kinds[stage][first_ + lane_] = there               ? kOfNode
                                           : place_ == kBeyond ? kBeyondRange
                                                               : kMissing;
    }
    if (tile * S::kSlots < range_.positions()) {
      rows = inside_ ? rows >> lane_ / kPieces : 0;
#pragma unroll
      for (unsigned row = 0; row < kWarpRows; row += 32 / kPieces) {
        // Bits of `row` below 8 and of the lane's row are apart: swizzled(row + lane's, piece).
        const unsigned to = to_ + stage * S::kStageBytes + row * wg::kPanelBytes +
                            (exchanged_ ^ row % wg::kAtomRows << 4);
        const unsigned row_source = __shfl_sync(kFullWarp, source, row + lane_ / kPieces);
        copy16(to, row_of(from_, row_source, row_bytes_), (rows >> row & 1) != 0);
      }
    }
    commit();
    find();
  }

 private:
  static constexpr unsigned kBeyond = ~0u;
  static constexpr unsigned kWarpRows = S::kRows / 4;
  static constexpr unsigned kPieces = S::kPanels * wg::kPanelBytes / 16;  // of 16 bytes, of a row

  // Finds the node of the lane's row, -1 without one, and goes on by a tile.
  __device__ void find() {
    const bool inside = lane_ < kWarpRows && next_group_ < range_.end;
    place_ = inside ? next_place_ : kBeyond;
    node_ = inside ? __ldg(args_.places + place_) : -1;
    next_group_ += groups_of_tile_;
    next_place_ += places_of_tile_;
    next_in_group_ += S::kSlots % range_.size;
    if (next_in_group_ >= range_.size) {  // to the first of four groups further
      next_in_group_ -= range_.size;
      next_group_ += 4;
      next_place_ += 3 * range_.size;
    }
  }

  const SageLayerArgs& args_;
  const Range& range_;
  typename S::Team& team_;
  const bool own_;
  const unsigned lane_, first_, row_bytes_;
  bool inside_;
  const char* from_;
  unsigned to_, exchanged_, place_;
  int32_t node_;
  unsigned next_group_, next_place_, next_in_group_, groups_of_tile_, places_of_tile_;
};

// How many of the places are nodes, for a warp.
__device__ __noinline__ int count_nodes(const int32_t* places, int count, int64_t num_rows) {
  int nodes = 0;
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    nodes += places[i] >= 0 && places[i] < num_rows ? 1 : 0;
  }
  return warp_sum(nodes);
}

// What all columns have of a tile's rows, combined: of row `thread` for the first kRows threads of
// the team. A thread has of slot 2 j + i what its columns have of row 8 j + 2 t + i.
template <typename S, typename F>
__device__ __forceinline__ float combine_columns(float (&rows)[S::kSlots], typename S::Team& team,
                                                 int thread, int barrier, F combine) {
  constexpr int kSlots = S::kSlots;
  const int lane = thread % 32, g = lane / 4, t = lane % 4;
  combine_halves<kSlots / 2>(rows, g / 4 % 2, 4, combine);
  combine_halves<kSlots / 4>(rows, g / 2 % 2, 2, combine);
  combine_halves<kSlots / 8>(rows, g % 2, 1, combine);
  float* part = team.parts[thread / 32];
  if constexpr (kSlots == 16) {
    reinterpret_cast<float2*>(part)[lane] = float2{rows[0], rows[1]};
  } else {
    part[g / 2 * 8 + 2 * t + g % 2] = rows[0];
  }
  wait_at(barrier, kTeamThreads);
  float total = 0;
  if (thread < S::kRows) {
#pragma unroll
    for (int i = 0; i < kTeamWarps; ++i) total = combine(total, team.parts[i][thread]);
  }
  return total;
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kTeams* kTeamThreads, 1)
    sage_layer_wgmma(const SageLayerArgs args) {
  constexpr int kRows = S::kRows, kSlots = S::kSlots, kSteps = S::kSteps;
  using Team = typename S::Team;
  extern __shared__ __align__(1024) unsigned char bytes[];
  unsigned char* base = bytes + (-shared_address(bytes) & (wg::kAtomBytes - 1));
  unsigned char* matrices = base + S::kTeams * S::kStages * S::kStageBytes;
  // As the compiler knows it to be the same in all lanes.
  const int warp_of_block = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);
  const int team_of_block = warp_of_block / kTeamWarps;
  Team& team = reinterpret_cast<Team*>(matrices + S::kMatrixBytes)[team_of_block];
  const int thread = threadIdx.x % kTeamThreads;  // of the team
  const int warp = warp_of_block % kTeamWarps, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool own = warp < kTeamWarps / 2;
  const int columns = static_cast<int>(own ? args.own : args.neighbors);
  if (thread == 0) team.missing = 0;

  constexpr int kHalf = S::kMatrixBytes / 2;
  store_matrix<T, S::kPanels>(matrices, static_cast<const T*>(args.own_matrix), args.width,
                              args.own);
  store_matrix<T, S::kPanels>(matrices + kHalf, static_cast<const T*>(args.around_matrix),
                              args.width, args.neighbors);
  wg::publish();
  __syncthreads();

  const unsigned groups = static_cast<unsigned>(args.groups), teams = S::kTeams * gridDim.x;
  const unsigned per_team = (groups - 1) / teams + 1;
  const unsigned first = (team_of_block * gridDim.x + blockIdx.x) * per_team;
  if (first >= groups) return;
  const Range range{first, min(first + per_team, groups), static_cast<unsigned>(args.group)};
  const unsigned tiles = (range.positions() - 1) / kSlots + 1;
  const int team_barrier = 1 + team_of_block, own_barrier = 8 + warp_of_block / 4;

  // The thread's sums: of columns `column`, 8, 64 and 72 further on, of the group `group`.
  float sums[4] = {};
  const int column = warp % 4 * 16 + g;
  unsigned group = range.first + t, left = range.size;  // rows of the group from a slot's on
  const int64_t out_width = args.own + args.neighbors;
  T* out = static_cast<T*>(args.out) + group * out_width + (own ? 0 : args.own) + column;
  const float inverse_size = args.mean ? 1 / static_cast<float>(range.size) : 1;
  const auto finish_group = [&](float inverse) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int further = k / 2 * wg::kRows + k % 2 * 8;
      if (group < range.end && column + further < columns) {
        out[further] = narrow<T, float>(sums[k] * inverse);
      }
      sums[k] = 0;
    }
    group += 4;
    out += 4 * out_width;
    left = range.size;
  };

  const unsigned stages =
      shared_address(base) + team_of_block * S::kStages * static_cast<unsigned>(S::kStageBytes);
  const uint64_t matrix_at = wg::describe(shared_address(matrices) +
                                          (own ? 0 : static_cast<unsigned>(S::kMatrixBytes) / 2));
  const uint64_t stages_at = wg::describe(stages + (own ? 0 : S::kInputBytes));
  Input<T, S> input(args, range, team, stages, own);
#pragma unroll
  for (unsigned tile = 0; tile < S::kStages - 1; ++tile) input.start(tile);
  for (unsigned tile = 0; tile < tiles; ++tile) {
    // All of the team are past the barriers after the products of the tile before this one: the
    // stage that it had is free.
    input.start(tile + S::kStages - 1);
    wait<S::kStages - 1>();
    wg::publish();
    wait_at(own_barrier, wg::kThreads);

    float c[kParts][kRows / 2];
    const uint64_t stage = stages_at + tile % S::kStages * (S::kStageBytes / 16);
    wg::begin();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int panel = k / wg::kSteps, within = k % wg::kSteps * wg::kStepBytes;
      const uint64_t b = stage + (panel * kRows * wg::kPanelBytes + within) / 16;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint64_t panel_at =
            matrix_at + ((part * S::kPanels + panel) * kMatrixPanel + within) / 16;
        wg::multiply(c[part], panel_at, b, k > 0, Tag<T>{});
      }
    }
    wg::commit();
    wg::wait_for_products();
    wg::after_products(c[0]);
    wg::after_products(c[1]);

    // Slot 2 j + i of the thread is row 8 j + 2 t + i of the products.
    const auto value = [&](int slot, int k) -> float& {
      return c[k / 2][slot / 2 * 4 + k % 2 * 2 + slot % 2];
    };
    const auto plus = [](float x, float y) { return x + y; };
    float squares[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      squares[slot] = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& v = value(slot, k);
        v = relu(v);
        squares[slot] += v * v;
      }
    }
    float square = combine_columns<S>(squares, team, thread, team_barrier, plus);
    bool there = false;
    if (thread < kRows) {
      const int32_t kind = team.kinds[tile % S::kStages][thread];
      there = kind == kOfNode;
      team.scales[thread] = inverse_root(square);
      if (kind == kMissing) team.missing = 1;
    }
    // Rows whose squares overflow, or underflow, are scaled by powers of 2.
    if (any_at(team_barrier, kTeamThreads, there && !in_range(square))) {
      float most[kSlots];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        most[slot] = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) most[slot] = fmaxf(most[slot], value(slot, k));
      }
      const float largest = combine_columns<S>(most, team, thread, team_barrier,
                                               [](float x, float y) { return fmaxf(x, y); });
      const float power = power_below(largest);
      if (thread < kRows) team.scales[thread] = power;
      wait_at(team_barrier, kTeamThreads);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        squares[slot] = 0;
        const float of_row = team.scales[slot / 2 * 8 + 2 * t + slot % 2];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float scaled = value(slot, k) * of_row;
          squares[slot] += scaled * scaled;
        }
      }
      square = combine_columns<S>(squares, team, thread, team_barrier,
                                  plus);  // behind its barrier the powers were read
      if (thread < kRows) team.scales[thread] = power * inverse_root(square);
      wait_at(team_barrier, kTeamThreads);
    }
    const bool missing = args.mean && team.missing != 0;
    if (missing) {
      const unsigned ending = left > kSlots ? 0 : (kSlots - left) / range.size + 1;
      for (unsigned i = warp; i < 4 * ending; i += kTeamWarps) {
        const unsigned of = group - t + i;
        const int count = of >= range.end
                              ? 1
                              : count_nodes(args.places + int64_t{of} * range.size,
                                            static_cast<int>(range.size), args.num_rows);
        if (lane == 0) team.inverses[i / 4][i % 4] = 1 / static_cast<float>(max(count, 1));
      }
      wait_at(team_barrier, kTeamThreads);
    }
    const float* inverses = &team.inverses[0][t];

#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      // Of both rows of a pair of slots.
      const float2 scales = *reinterpret_cast<const float2*>(&team.scales[slot / 2 * 8 + 2 * t]);
      const float scale = slot % 2 == 0 ? scales.x : scales.y;
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += value(slot, k) * scale;
      if (--left == 0) {
        finish_group(missing ? *inverses : inverse_size);
        inverses += 4;
      }
    }
  }
  wait_for_all();
}

template <typename T, typename S>
cudaError_t start(const SageLayerArgs& args, const Launch& launch) {
  const auto kernel = sage_layer_wgmma<T, S>;
  if (launch.load) {
    JAXGNN_TRY(load_kernel(kernel));
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes);
  }
  DeviceLimits limits{};
  JAXGNN_TRY(find_limits(limits));
  const int64_t most = args.groups / S::kTeams + 1;
  const unsigned blocks =
      static_cast<unsigned>(most < limits.processors ? most : limits.processors);
  return launch_kernel(launch, kernel, blocks, S::kTeams * kTeamThreads, S::kBytes, args);
}

}  // namespace

cudaError_t launch_sage_layer_wgmma(const SageLayerArgs& args, const Launch& launch) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool narrow = args.width * static_cast<int64_t>(sizeof(T)) <= wg::kPanelBytes;
    if (launch.load || narrow) JAXGNN_TRY((start<T, Tiling<1, 64, 2, 3>>(args, launch)));
    if (launch.load || !narrow) JAXGNN_TRY((start<T, Tiling<2, 64, 2, 2>>(args, launch)));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::sampling
