// The layer of sage_layer.cu for Hopper, by products of warpgroups.
//
// A team of two warpgroups walks a range of groups, a tile of rows at a time, without the block's
// other teams. One warpgroup multiplies rows of x by Wf, the other rows of `around` by Wa, with the
// matrices' columns as the instruction's rows: of four columns a thread has a quarter of the tile's
// rows in registers. So a row's length is a sum over lanes and warps, and a group's sum one over
// registers and four lanes: the layer's rows never leave the registers. While a team adds, the
// others multiply, and the next tiles are in flight to shared memory.
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

constexpr int kTeamThreads = 2 * wg::kThreads, kTeamWarps = kTeamThreads / 32;
constexpr int kParts = kLayerColumns / wg::kRows;  // of a matrix's columns
static_assert(kParts == 2, "four columns of a thread");
constexpr int kMatrixPanel = wg::kRows * wg::kPanelBytes;

// How a block is made. kPanels: of 128 bytes that a row has; kRows: of a tile; kStages: tiles in
// shared memory; kInRegisters: the matrices are.
template <int kPanels_, int kRows_, int kTeams_, int kStages_, bool kInRegisters_>
struct Tiling {
  static constexpr int kPanels = kPanels_, kRows = kRows_, kTeams = kTeams_, kStages = kStages_;
  static constexpr bool kInRegisters = kInRegisters_;
  static constexpr int kSteps = kPanels * wg::kSteps;
  static constexpr int kSlots = kRows / 4;  // a thread's rows
  static constexpr int kInputBytes = kRows * kPanels * wg::kPanelBytes;
  static constexpr int kStageBytes = 2 * kInputBytes;
  static constexpr int kMatrixBytes = kInRegisters ? 0 : 2 * kParts * kPanels * kMatrixPanel;

  struct Team {
    float parts[kTeamWarps][kRows];  // what each warp has of the rows
    float scales[kRows];
    int32_t nodes[kStages][kRows];
    int missing;  // whether a tile so far had a row of no node
  };
  static constexpr int kBytes = wg::kAtomBytes + kMatrixBytes + kTeams * kStages * kStageBytes +
                                kTeams * static_cast<int>(sizeof(Team));
};

// Where row `row` of a tile is multiplied: four consecutive rows are a thread's quad of lanes.
__device__ constexpr int place_of(int row) { return row / 8 * 8 + row % 4 * 2 + row % 8 / 4; }

__device__ inline void wait_at(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same, and whether any thread says so.
__device__ inline bool any_at(int barrier, int threads, bool here) {
  int any;
  asm volatile(
      "{\n.reg .pred here, any;\nsetp.ne.b32 here, %1, 0;\nbar.red.or.pred any, %2, %3, here;\n"
      "selp.b32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(here ? 1 : 0), "r"(barrier), "r"(threads)
      : "memory");
  return any != 0;
}

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

// A warpgroup's rows in flight to its half of the stages.
template <typename T, typename S>
class Input {
 public:
  // Places from `begin` to `end`.
  __device__ Input(const SageLayerArgs& args, typename S::Team& team, unsigned stages, bool own,
                   int begin, int end)
      : args_(args),
        team_(team),
        stages_(stages + (own ? 0 : S::kInputBytes)),
        own_(own),
        begin_(begin),
        end_(end),
        lane_(threadIdx.x % 32),
        first_(static_cast<int>(threadIdx.x) / 32 % 4 * kWarpRows),
        row_bytes_(static_cast<int>(args.width * sizeof(T))) {
    find(0);
  }

  // Starts the copies of a tile, for which `find` was called before, and finds the next one's
  // places. Without any it commits an empty group of copies.
  __device__ void start(int tile) {
    const bool there = node_ >= 0 && node_ < args_.num_rows;
    const unsigned rows = __ballot_sync(kFullWarp, there);
    const int place = begin_ + tile * S::kRows + first_ + lane_;
    const int source = !there ? 0 : own_ ? node_ : place;
    const int stage = tile % S::kStages;
    if (own_ && lane_ < kWarpRows) team_.nodes[stage][place_of(first_ + lane_)] = there ? 1 : 0;
    const int piece = lane_ % kPieces;
    const bool inside = piece * 16 < row_bytes_;
    const char* from = static_cast<const char*>(own_ ? args_.x : args_.around);
    if (inside) from += piece * 16;
    const unsigned to = stages_ + stage * S::kStageBytes + piece / 8 * S::kRows * wg::kPanelBytes;
    if (rows != 0 || begin_ + tile * S::kRows < end_) {
#pragma unroll
      for (int row = 0; row < kWarpRows; row += 32 / kPieces) {
        const int at = row + lane_ / kPieces;
        const int row_source = __shfl_sync(kFullWarp, source, at);
        copy16(to + wg::swizzled(place_of(first_ + at), piece % 8),
               from + int64_t{row_source} * row_bytes_, inside && (rows >> at & 1) != 0);
      }
    }
    commit();
    find(tile + 1);
  }

 private:
  static constexpr int kWarpRows = S::kRows / 4;
  static constexpr int kPieces = S::kPanels * wg::kPanelBytes / 16;  // of 16 bytes, of a row

  __device__ void find(int tile) {
    const int place = begin_ + tile * S::kRows + first_ + lane_;
    node_ = lane_ < kWarpRows && place < end_ ? __ldg(args_.places + place) : -1;
  }

  const SageLayerArgs& args_;
  typename S::Team& team_;
  const unsigned stages_;
  const bool own_;
  const int begin_, end_, lane_, first_, row_bytes_;
  int32_t node_;
};

// The number of a group's places that are nodes, for a warp.
__device__ int count_nodes(const SageLayerArgs& args, int64_t group) {
  int count = 0;
  for (int64_t i = threadIdx.x % 32; i < args.group; i += 32) {
    const int32_t node = __ldg(args.places + group * args.group + i);
    count += node >= 0 && node < args.num_rows ? 1 : 0;
  }
  return warp_sum(count);
}

// c = or, with `add`, += what `a`, in registers or at `panel_at`, and the panel at b give.
template <bool kInRegisters, typename T, int kValues>
__device__ __forceinline__ void multiply(float (&c)[kValues], const uint32_t (&a)[4],
                                         uint64_t panel_at, uint64_t b, bool add, Tag<T> type) {
  if constexpr (kInRegisters) {
    wg::multiply(c, a, b, add, type);
  } else {
    wg::multiply(c, panel_at, b, add, type);
  }
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
  const int team_of_block = threadIdx.x / kTeamThreads;
  Team& team = reinterpret_cast<Team*>(matrices + S::kMatrixBytes)[team_of_block];
  const int thread = threadIdx.x % kTeamThreads;  // of the team
  const int warp = thread / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool own = thread < wg::kThreads;
  const T* matrix = static_cast<const T*>(own ? args.own_matrix : args.around_matrix);
  const int64_t columns = own ? args.own : args.neighbors;
  if (thread == 0) team.missing = 0;

  uint32_t a[S::kInRegisters ? kParts : 1][S::kInRegisters ? kSteps : 1][4];
  if constexpr (S::kInRegisters) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = wg::kRows * part + warp % 4 * 16 + i % 2 * 8 + g;
          a[part][k][i] =
              matrix_word<T>(matrix, args.width, columns, 8 * k + i / 2 * 4 + t, column);
        }
      }
    }
  } else {
    constexpr int kHalf = S::kMatrixBytes / 2;
    store_matrix<T, S::kPanels>(matrices, static_cast<const T*>(args.own_matrix), args.width,
                                args.own);
    store_matrix<T, S::kPanels>(matrices + kHalf, static_cast<const T*>(args.around_matrix),
                                args.width, args.neighbors);
    wg::publish();
  }
  __syncthreads();

  const int teams = S::kTeams * static_cast<int>(gridDim.x);
  const int team_number = team_of_block * static_cast<int>(gridDim.x) + blockIdx.x;
  const int groups = static_cast<int>(args.groups), size = static_cast<int>(args.group);
  const int per_team = (groups - 1) / teams + 1;
  const int64_t first_group = int64_t{team_number} * per_team;
  if (first_group >= groups) return;
  const int begin = static_cast<int>(first_group) * size;
  const int end = static_cast<int>(min(first_group + per_team, args.groups)) * size;
  const int tiles = (end - begin - 1) / kRows + 1;
  const int team_barrier = 1 + team_of_block, own_barrier = 8 + static_cast<int>(threadIdx.x) / 128;

  // The lane's column once four lanes have added up their four columns' sums.
  const int column = t / 2 * wg::kRows + warp % 4 * 16 + t % 2 * 8 + g;
  const int64_t out_width = args.own + args.neighbors;
  T* out = static_cast<T*>(args.out) + first_group * out_width + (own ? 0 : args.own) + column;
  const bool stores = column < columns;
  float sums[4] = {};
  int left = size;  // rows of the group from a slot's on
  int group = static_cast<int>(first_group);
  const int end_group = end / size;
  const float inverse_size = args.mean ? 1 / static_cast<float>(size) : 1;
  bool missing = false;
  const auto finish_group = [&](float (&totals)[4]) {
    float value = scatter_sums<4>(totals, t, kFullWarp);
    if (group < end_group) {  // beyond the last one there are rows of no place
      float inverse = inverse_size;
      if (missing && args.mean) inverse = 1 / static_cast<float>(max(count_nodes(args, group), 1));
      if (stores) *out = narrow<T, float>(value * inverse);
    }
    ++group;
    out += out_width;
  };

  const unsigned stages =
      shared_address(base) + team_of_block * S::kStages * static_cast<unsigned>(S::kStageBytes);
  const uint64_t matrix_at = wg::describe(shared_address(matrices) +
                                          (own ? 0 : static_cast<unsigned>(S::kMatrixBytes) / 2));
  const uint64_t stages_at = wg::describe(stages + (own ? 0 : S::kInputBytes));
  Input<T, S> input(args, team, stages, own, begin, end);
#pragma unroll
  for (int tile = 0; tile < S::kStages - 1; ++tile) input.start(tile);
  for (int tile = 0; tile < tiles; ++tile) {
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
        multiply<S::kInRegisters>(c[part], a[S::kInRegisters ? part : 0][S::kInRegisters ? k : 0],
                                  panel_at, b, k > 0, Tag<T>{});
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
      there = team.nodes[tile % S::kStages][thread] != 0;
      team.scales[thread] = inverse_root(square);
      if (!there) team.missing = 1;
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
    missing = team.missing != 0;

#pragma unroll
    for (int j = 0; j < kSlots / 2; ++j) {
      const float2 scales = *reinterpret_cast<const float2*>(&team.scales[8 * j + 2 * t]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int slot = 2 * j + i;
        const float scale = i == 0 ? scales.x : scales.y;
        if (left > 4) {
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[k] += value(slot, k) * scale;
          left -= 4;
        } else {  // the group's last rows, and perhaps the next one's first
          float totals[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float v = value(slot, k) * scale;
            totals[k] = sums[k] + (t < left ? v : 0.f);
            sums[k] = t < left ? 0.f : v;
          }
          finish_group(totals);
          left += size - 4;
        }
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

// The variants, of rows of kPanels panels.
template <typename T, int kPanels>
cudaError_t start_variant(const SageLayerArgs& args, const Launch& launch, int64_t variant) {
  cudaError_t error = launch.load ? cudaSuccess : cudaErrorInvalidValue;
  const auto offer = [&](int64_t number, auto tiling) {
    if (launch.load && error != cudaSuccess) return;
    if (launch.load || variant == number) error = start<T, decltype(tiling)>(args, launch);
  };
  offer(1, Tiling<kPanels, 64, 2, 4 / kPanels, false>{});
  offer(2, Tiling<kPanels, 32, 4, 4 / kPanels, false>{});
  offer(3, Tiling<kPanels, 32, 2, 4, true>{});
  if constexpr (kPanels == 1) offer(4, Tiling<kPanels, 64, 2, 4, true>{});
  return error;
}

}  // namespace

cudaError_t launch_sage_layer_wgmma(const SageLayerArgs& args, const Launch& launch,
                                    int64_t variant) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool narrow = args.width * static_cast<int64_t>(sizeof(T)) <= wg::kPanelBytes;
    if (launch.load || narrow) JAXGNN_TRY((start_variant<T, 1>(args, launch, variant)));
    if (launch.load || !narrow) JAXGNN_TRY((start_variant<T, 2>(args, launch, variant)));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::sampling
