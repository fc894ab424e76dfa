// The sum of the rows of neighbors that are drawn with replacement, without a list of them.
//
// A group of lanes takes a place: it draws, lists the drawn edges' senders in shared memory, and
// adds their rows, 8 or 16 bytes a lane. In rows of few edges the draws are counted edge by edge,
// so that a neighbor that is drawn several times is read once, and senders are read side by side.
#include "common/sampling.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/embedding.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int kInFlight = 4;  // rows of x that a lane loads at once
constexpr int kBlocks = 16;   // of a multiprocessor: what is in flight is of many places
// Of rows of so many times the draws the draws are counted: beyond it seven of eight are distinct.
constexpr uint32_t kCountedRows = 4;

// A neighbor and how often it was drawn.
using Drawn = uint2;

// The shared memory of a group: the list, and 16 bits for each edge that is counted.
inline size_t shared_of_group(int64_t size) {
  return size * sizeof(Drawn) + size * kCountedRows * sizeof(uint16_t);
}

// A lane has kBytes of a row.
template <typename T, int kLanes, int kBytes>
__global__ void __launch_bounds__(kThreads, kBlocks) drawn_rows(const DrawnRowsArgs args) {
  constexpr int V = kBytes / sizeof(T), kGroups = kThreads / kLanes;
  extern __shared__ Drawn shared[];
  const int group = threadIdx.x / kLanes, local = threadIdx.x % kLanes;
  const int64_t place = int64_t(blockIdx.x) * kGroups + group;
  if (place >= args.num_places) return;
  const int shift = threadIdx.x % 32 / kLanes * kLanes;
  const unsigned ones = kLanes == 32 ? kFullWarp : (1u << kLanes % 32) - 1;
  const unsigned lanes = ones << shift;  // those of the group
  const uint32_t size = static_cast<uint32_t>(args.size);
  Drawn* list = shared + group * size;
  uint32_t* counts =
      reinterpret_cast<uint32_t*>(shared + kGroups * size) + group * size * kCountedRows / 2;

  const int64_t row = args.places[place];
  const uint32_t id = args.ids[place];
  uint32_t listed = 0;
  if (row >= 0 && row < args.rows.num_rows) {
    const int64_t begin = load_offset(args.rows, row), end = load_offset(args.rows, row + 1);
    const uint32_t degree = static_cast<uint32_t>(end > begin ? end - begin : 0);
    const auto each_draw = [&](auto f) {  // a lane takes the four words of a block
      for (uint32_t first = 4 * local; first < size; first += 4 * kLanes) {
        const PhiloxWords block = philox4x32({{id, first / 4, 0, 1}}, args.key[0], args.key[1]);
        // The order of draw_word.
        const uint32_t words[4] = {block.words[0], block.words[1], block.words[2], block.words[3]};
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          if (first + k < size) f(first + k, below(words[k], degree));
        }
      }
    };
    if (degree <= 1) {
      const int64_t column = degree == 1 ? load_column(args.rows, begin) : row;
      if (local == 0) list[0] = {static_cast<uint32_t>(column), size};
      listed = column < args.num_columns ? 1 : 0;
    } else if (degree <= kCountedRows * size) {
      for (uint32_t word = local; 2 * word < degree; word += kLanes) counts[word] = 0;
      __syncwarp(lanes);
      each_draw([&](uint32_t, uint32_t edge) {
        atomicAdd(counts + edge / 2, edge % 2 == 0 ? 1u : 1u << 16);
      });
      __syncwarp(lanes);
      for (uint32_t base = 0; base < degree; base += kLanes) {
        const uint32_t edge = base + local;
        uint32_t count = 0;
        if (edge < degree) count = counts[edge / 2] >> (edge % 2 * 16) & 0xffffu;
        const unsigned drawn = (__ballot_sync(lanes, count > 0) & lanes) >> shift;
        if (count > 0) {
          list[listed + __popc(drawn & ((1u << local) - 1))] = {
              static_cast<uint32_t>(load_column(args.rows, begin + edge)), count};
        }
        listed += __popc(drawn);
      }
    } else {
      each_draw([&](uint32_t draw, uint32_t edge) {
        list[draw] = {static_cast<uint32_t>(load_column(args.rows, begin + edge)), 1};
      });
      listed = size;
    }
    __syncwarp(lanes);
  }

  const unsigned row_bytes = static_cast<unsigned>(args.width * sizeof(T));
  for (int64_t f = local * V; f < args.width; f += kLanes * V) {
    const T* x = static_cast<const T*>(args.x) + f;
    float sums[V];
#pragma unroll
    for (int i = 0; i < V; ++i) sums[i] = 0;
    for (uint32_t e = 0; e < listed; e += kInFlight) {
      Vector<T, V> rows[kInFlight];
      float times[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        rows[u].word = {};
        times[u] = 0;
        if (e + u < listed) {
          const Drawn drawn = list[e + u];
          rows[u] = load_vector<T, V>(row_of(x, drawn.x, row_bytes));
          times[u] = static_cast<float>(drawn.y);
        }
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) add_scaled<T, V, float>(times[u], rows[u], sums);
    }
    if (args.mean) {
      const float count = static_cast<float>(size);
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i] = sums[i] / count;
    }
    store_vector<T, V, float>(static_cast<T*>(args.out) + place * args.width + f, sums);
  }
}

// A thread takes the four draws of a block of words.
__global__ void __launch_bounds__(kThreads) drawn_neighbors(const DrawnNeighborsArgs args) {
  const uint32_t size = static_cast<uint32_t>(args.size), blocks = (size + 3) / 4;
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t place = thread / blocks;
  if (place >= args.num_places) return;
  const uint32_t block = static_cast<uint32_t>(thread - place * blocks);
  const int64_t row = args.places[place];
  int64_t begin = 0;
  uint32_t degree = 0;
  int32_t otherwise = -1;
  if (row >= 0 && row < args.rows.num_rows) {
    begin = load_offset(args.rows, row);
    const int64_t end = load_offset(args.rows, row + 1);
    degree = static_cast<uint32_t>(end > begin ? end - begin : 0);
    otherwise = static_cast<int32_t>(row);
  }
  PhiloxWords words{};
  if (degree > 1) words = philox4x32({{args.ids[place], block, 0, 1}}, args.key[0], args.key[1]);
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t draw = 4 * block + k;
    if (draw >= size) continue;
    int32_t drawn = otherwise;
    if (degree > 0) {
      drawn = static_cast<int32_t>(load_column(args.rows, begin + below(words.words[k], degree)));
    }
    args.out[place * size + draw] = drawn;
  }
}

}  // namespace

cudaError_t launch_drawn_neighbors(const DrawnNeighborsArgs& args, const Launch& launch) {
  const int64_t threads = args.num_places * ((args.size + 3) / 4);
  return launch_kernel(launch, drawn_neighbors, blocks_of(threads, kThreads), kThreads, 0, args);
}

cudaError_t launch_drawn_rows(const DrawnRowsArgs& args, const Launch& launch) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t pieces = args.width * static_cast<int64_t>(sizeof(T)) / 16;
    const auto start = [&](auto kernel, int lanes) {
      const int groups = kThreads / lanes;
      return launch_kernel(launch, kernel, blocks_of(args.num_places, groups), kThreads,
                           groups * shared_of_group(args.size), args);
    };
    // Many draws of a narrow row take more lanes than the row needs: they, too, are side by side.
    const bool few = args.size <= 32;
    if (launch.load || (pieces <= 8 && few)) JAXGNN_TRY(start(drawn_rows<T, 8, 16>, 8));
    if (launch.load || (pieces <= 8 && !few)) JAXGNN_TRY(start(drawn_rows<T, 16, 8>, 16));
    if (launch.load || (pieces > 8 && pieces <= 16)) JAXGNN_TRY(start(drawn_rows<T, 16, 16>, 16));
    if (launch.load || pieces > 16) JAXGNN_TRY(start(drawn_rows<T, 32, 16>, 32));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::sampling
