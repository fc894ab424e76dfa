// The sum of the rows of neighbors that are drawn with replacement, without a list of them.
//
// A group of lanes takes a place: it draws, lists edges and how often each was drawn in shared
// memory, has their senders in place of the edges, and adds the senders' rows, 16 bytes a lane. In
// rows of few edges the draws are counted edge by edge, so that a neighbor that is drawn several
// times is read once. Instructions bound it as much as memory does: a warp's groups go through all
// steps side by side, and four rows of each are in flight.
#include "common/sampling.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/core/shared.cuh"
#include "cuda/sampling/embedding.h"

namespace jaxgnn::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 12;  // of a multiprocessor: with more the loads of four rows do not fit
// Of rows of so many times the draws the draws are counted: beyond it seven of eight are distinct.
constexpr uint32_t kCountedRows = 4;
// To draw and to list is a warp's work whatever its groups are: fewer lanes a place do it for more
// places at once, and each reads more of a row. Up to so many draws a lane has two pieces of a row,
// and 4 lanes take a place where the mean row has so few edges.
constexpr int64_t kFewDraws = 32, kShortRows = 4;

// A group's shared memory: entries, each an edge or its sender and how often it was drawn, then a
// byte for each edge that is counted. Four edges are side by side, then their four numbers.
class Entries {
 public:
  static constexpr uint32_t kTimes = 16;  // bytes from the edges to the numbers

  __device__ Entries(const void* shared, uint32_t group, uint32_t size)
      : entries_(shared_address(shared) + group * bytes(size)),
        counts_(entries_ + bytes_of_entries(size)) {
    asm volatile("" : "+r"(entries_), "+r"(counts_));  // or they would be computed at each use
  }

  static __host__ __device__ uint32_t bytes(uint32_t size) {
    return bytes_of_entries(size) + (size + 3) / 4 * 4 * kCountedRows;
  }
  __device__ uint32_t entry(uint32_t i) const { return entries_ + 4 * (i + (i & ~3u)); }
  __device__ uint32_t counts(uint32_t edge) const { return counts_ + (edge & ~3u); }

 private:
  static __host__ __device__ uint32_t bytes_of_entries(uint32_t size) {
    return (size + 3) / 4 * 32;
  }

  uint32_t entries_, counts_;  // addresses
};

// Lists the draws of a place with `degree` edges: of each edge once if they are counted, with the
// number in the upper half of the entry. The result is how many there are. By all lanes of a warp.
template <int kLanes>
__device__ uint32_t list_draws(const Entries& list, uint32_t local, uint32_t size, uint32_t degree,
                               bool counted, uint32_t id, const uint32_t* key) {
  const uint32_t end = counted ? degree : 0;
  for (uint32_t edge = 4 * local; edge < end; edge += 4 * kLanes) {
    store_shared(list.counts(edge), 0u);
  }
  __syncwarp();
  if (degree > 0) {
    for (uint32_t first = 4 * local; first < size; first += 4 * kLanes) {
      const PhiloxWords block = philox4x32({{id, first / 4, 0, 1}}, key[0], key[1]);
      // The order of draw_word.
      uint32_t edges[4] = {block.words[0], block.words[1], block.words[2], block.words[3]};
#pragma unroll
      for (int k = 0; k < 4; ++k) edges[k] = below(edges[k], degree);
      // Or each branch would compute them.
      asm volatile("" : "+r"(edges[0]), "+r"(edges[1]), "+r"(edges[2]), "+r"(edges[3]));
      if (counted) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          if (first + k < size) add_shared(list.counts(edges[k]), 1 << edges[k] % 4 * 8);
        }
      } else {
        store_shared(list.entry(first), edges);  // up to three too many, which nothing reads
      }
    }
  }
  __syncwarp();
  uint32_t listed = counted ? 0 : size;
  for (uint32_t base = 0; __any_sync(kFullWarp, base < end); base += 4 * kLanes) {
    const uint32_t edge = base + 4 * local;
    const uint32_t four = edge < end ? load_shared(list.counts(edge)) : 0;
    const uint32_t drawn = four + 0x7f7f7f7fu & 0x80808080u;  // the edges that were
    uint32_t up_to = __popc(drawn);
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) {
      const uint32_t before = __shfl_up_sync(kFullWarp, up_to, offset, kLanes);
      if (local >= offset) up_to += before;
    }
    uint32_t i = listed + up_to - __popc(drawn);
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t entry = (four >> 8 * k & 0xff) << 16 | (edge + k);
      if (drawn >> (8 * k + 7) & 1) store_shared(list.entry(i++), entry);
    }
    listed += __shfl_sync(kFullWarp, up_to, kLanes - 1, kLanes);
  }
  __syncwarp();
  return listed;
}

// Puts the senders in place of the edges from `begin` on, and how often each was drawn behind them.
template <int kLanes>
__device__ void find_senders(const Entries& list, uint32_t local, uint32_t listed, bool counted,
                             const Rows& rows, int64_t begin) {
  const auto edge_of = [&](uint32_t word) { return begin + (counted ? word & 0xffff : word); };
  const auto times_of = [&](uint32_t word) {
    return __float_as_uint(counted ? static_cast<float>(word >> 16) : 1.f);
  };
  for (uint32_t i = local; i < listed; i += 2 * kLanes) {
    // Two at once.
    const bool two = i + kLanes < listed;
    const uint32_t first = list.entry(i), second = list.entry(i + kLanes);
    const uint32_t word = load_shared(first), other = two ? load_shared(second) : word;
    const int64_t sender = load_column(rows, edge_of(word));
    const int64_t other_sender = load_column(rows, edge_of(other));
    store_shared(first + Entries::kTimes, times_of(word));
    if (two) store_shared(second + Entries::kTimes, times_of(other));
    store_shared(first, static_cast<uint32_t>(sender));
    if (two) store_shared(second, static_cast<uint32_t>(other_sender));
  }
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks) drawn_rows(const DrawnRowsArgs args) {
  constexpr int V = 16 / sizeof(T), kGroups = kThreads / kLanes;
  extern __shared__ uint4 shared[];
  const uint32_t local = threadIdx.x % kLanes, size = static_cast<uint32_t>(args.size);
  const int64_t place = int64_t(blockIdx.x) * kGroups + threadIdx.x / kLanes;
  const bool inside = place < args.num_places;
  const Entries list(shared, threadIdx.x / kLanes, size);

  const int64_t row = inside ? args.places[place] : -1;
  const bool of_node = row >= 0 && row < args.rows.num_rows;
  int64_t begin = 0;
  uint32_t degree = 0;
  if (of_node) {
    begin = load_offset(args.rows, row);
    const int64_t end = load_offset(args.rows, row + 1);
    degree = static_cast<uint32_t>(end > begin ? end - begin : 0);
  }
  const bool counted = degree <= kCountedRows * size;
  const uint32_t id = *args.first_id + static_cast<uint32_t>(place);
  uint32_t listed = list_draws<kLanes>(list, local, size, degree, counted, id, args.key);
  find_senders<kLanes>(list, local, listed, counted, args.rows, begin);
  if (of_node && degree == 0 && row < args.num_columns) {
    if (local == 0) {
      store_shared(list.entry(0), static_cast<uint32_t>(row));
      store_shared(list.entry(0) + Entries::kTimes, __float_as_uint(static_cast<float>(size)));
    }
    listed = 1;
  }
  __syncwarp();
  if (!inside) return;

  const unsigned row_bytes = static_cast<unsigned>(args.width * sizeof(T));
  for (int f = local * V; f < static_cast<int>(args.width); f += kLanes * V) {
    const T* x = static_cast<const T*>(args.x) + f;
    float sums[V];
#pragma unroll
    for (int i = 0; i < V; ++i) sums[i] = 0;
    uint32_t from = list.entry(0), left = listed;
#pragma unroll 1
    for (; left >= 4; left -= 4, from += 32) {
      const uint4 senders = load_shared16(from);
      const Vector<T, V> rows[4] = {load_vector<T, V>(row_of(x, senders.x, row_bytes)),
                                    load_vector<T, V>(row_of(x, senders.y, row_bytes)),
                                    load_vector<T, V>(row_of(x, senders.z, row_bytes)),
                                    load_vector<T, V>(row_of(x, senders.w, row_bytes))};
      const uint4 times = load_shared16(from + Entries::kTimes);
      add_scaled<T, V, float>(__uint_as_float(times.x), rows[0], sums);
      add_scaled<T, V, float>(__uint_as_float(times.y), rows[1], sums);
      add_scaled<T, V, float>(__uint_as_float(times.z), rows[2], sums);
      add_scaled<T, V, float>(__uint_as_float(times.w), rows[3], sums);
    }
    if (left > 0) {
      const uint4 senders = load_shared16(from), times = load_shared16(from + Entries::kTimes);
      Vector<T, V> rows[3];
      rows[0] = load_vector<T, V>(row_of(x, senders.x, row_bytes));
      rows[1].word = rows[2].word = {};
      if (left > 1) rows[1] = load_vector<T, V>(row_of(x, senders.y, row_bytes));
      if (left > 2) rows[2] = load_vector<T, V>(row_of(x, senders.z, row_bytes));
      add_scaled<T, V, float>(__uint_as_float(times.x), rows[0], sums);
      add_scaled<T, V, float>(left > 1 ? __uint_as_float(times.y) : 0, rows[1], sums);
      add_scaled<T, V, float>(left > 2 ? __uint_as_float(times.z) : 0, rows[2], sums);
    }
    if (args.mean) {
      const float inverse = __frcp_rn(static_cast<float>(size));
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i] *= inverse;
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
  const uint32_t id = *args.first_id + static_cast<uint32_t>(place);
  PhiloxWords words{};
  if (degree > 1) words = philox4x32({{id, block, 0, 1}}, args.key[0], args.key[1]);
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
                           groups * Entries::bytes(static_cast<uint32_t>(args.size)), args);
    };
    const bool short_rows = args.rows.num_edges <= kShortRows * args.rows.num_rows;
    const int64_t of_lane = args.size <= kFewDraws ? 2 : 1;  // pieces
    const int64_t needed = (pieces + of_lane - 1) / of_lane;
    const int lanes = needed > 16 ? 32 : needed > 8 ? 16 : short_rows ? 4 : 8;
    if (launch.load || lanes == 4) JAXGNN_TRY(start(drawn_rows<T, 4>, 4));
    if (launch.load || lanes == 8) JAXGNN_TRY(start(drawn_rows<T, 8>, 8));
    if (launch.load || lanes == 16) JAXGNN_TRY(start(drawn_rows<T, 16>, 16));
    if (launch.load || lanes == 32) JAXGNN_TRY(start(drawn_rows<T, 32>, 32));
    return cudaSuccess;
  });
}

}  // namespace jaxgnn::sampling
