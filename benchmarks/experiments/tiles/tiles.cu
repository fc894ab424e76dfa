// Tiles for the shared columns of 64-row windows, today's row kernel for the rest: two rivals.
//
//   tiles INPUTS [--check-only]
//
// INPUTS is from inputs.py (the shape of reddit, F = 256). Prints a table; the last lines are the
// summary. A self-check on small graphs comes first; rows of the table whose check failed say so.
//
// Predictions, H200, F = 256, whole product: bfloat16 6.1 -> 3.4 ms, float32 12.06 -> 7.2.
// By part, from 57 / 114 ps an edge of the rest and N entries (columns of a window with >= T
// edges):
//   T = 2: 70 % of edges in 14.3 M entries; rest 34.4 M edges: 1.96 (bf16) / 3.92 ms (f32)
//   T = 4: 54 % in 6.0 M;                   rest 52.7 M:       3.0 / 6.0
//   T = 8: 39 % in 2.6 M;                   rest 69.9 M:       4.0 / 8.0
// Each kernel's own prediction stands above it.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cpu/host/generate.h"
#include "cpu/host/graph.h"
#include "cpu/host/host_parallel.h"
#include "cpu/host/windows.h"

namespace host = jaxgnn::host;
using bf16 = __nv_bfloat16;

#define CHECK(call)                                                                    \
  do {                                                                                 \
    const cudaError_t e_ = (call);                                                     \
    if (e_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (0)

constexpr int kWindow = 64;       // rows
constexpr int kBatch = 16;        // entries: K of the mma
constexpr int kSlice = 128;       // bytes of a row that a block works on
constexpr int kChunk = 255;       // entries of a chunk of the CUDA-core rival; row 255 is zero
constexpr int kChunkWords = 896;  // of index lists in a chunk, 4 edges each
constexpr int kPartEntries = 6144;

// ---------------------------------------------------------------------------------------------
// Device helpers.

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void copy16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy4(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void mma(float (&c)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Register r of the 16 of a 64 x 16 mask: two bfloat16, each 0 or 2.
__device__ inline uint32_t mask_register(uint32_t word, int r) {
  return (r == 0 ? word >> 1 : word << (r - 1)) & 0x40004000u;
}
// Where the mask has row R (0..63) and entry k (0..15): lane and bit. The A fragment of
// m16n8k16: a_i holds rows g + 8 (i & 1), columns 2 t + 8 (i >> 1) and the next, g = lane / 4.
inline void mask_place(int row, int k, int& lane, int& bit) {
  const int tile = row / 16, within = row % 16;
  const int i = within / 8 + 2 * (k / 8);
  lane = within % 8 * 4 + k % 8 / 2;
  bit = (k % 2 ? 31 : 15) - (4 * tile + i);
}

struct TileArgs {
  const int32_t* senders;  // of the entries
  const uint32_t* masks;   // [batches, 32]
  const int4* parts;       // batch begin, end, slot
  const void* x;           // [nodes + 1, width], the last row zero
  float* slots;            // [slots, 64, width]
  int width;
};

// Adds the sums of four warps; the first one has them at the end.
template <int N>
__device__ inline void add_warps(float (&sums)[N], float* shared, int warp, int lane) {
  wait<0>();
  __syncthreads();
#pragma unroll
  for (int half = 2; half >= 1; half /= 2) {
    if (warp >= half && warp < 2 * half) {
      float* mine = shared + (warp - half) * N * 32 + lane;
#pragma unroll
      for (int i = 0; i < N; ++i) mine[i * 32] = sums[i];
    }
    __syncthreads();
    if (warp < half) {
      const float* other = shared + warp * N * 32 + lane;
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += other[i * 32];
    }
    __syncthreads();
  }
}

// Variant 1, bfloat16. Four warps take a part of a window and 64 features (128 bytes of a row);
// each takes every fourth batch of 16 entries, has 64 x 64 sums and a ring of S stages of its own.
// Prediction at T = 2: 14.3 M entries x 512 B = 7.3 GB from L2 = 0.8 ms, tensor cores 0.8 ms,
// slots 0.1: 1.1 ms if they overlap well, 1.5 if not. Whole: 3.1 to 3.5.
template <int S>
__global__ void __launch_bounds__(128, 3) tensor_bf16(TileArgs p) {
  constexpr int kStage = kBatch * kSlice + 128;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned mine = shared_address(shared) + warp * S * kStage;
  const int4 part = p.parts[blockIdx.x];
  const int first = part.x + warp;
  const int batches = (part.y - first + 3) / 4;  // not above 0 if this warp has none
  const unsigned row_bytes = p.width * 2;
  const char* x = static_cast<const char*>(p.x) + blockIdx.y * kSlice + (lane & 7) * 16;

  float acc[4 * 8 * 4];
#pragma unroll
  for (int i = 0; i < 128; ++i) acc[i] = 0;

  const auto sender_of = [&](int i) {
    return i < batches ? __ldg(p.senders + int64_t(first + 4 * i) * kBatch + (lane & 15)) : 0;
  };
  const auto copy_in = [&](int i, int stage, int sender) {
    if (i < batches) {
      const unsigned to = mine + stage * kStage;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = lane / 8 + 4 * j;
        const int s = __shfl_sync(~0u, sender, row);
        copy16(to + row * kSlice + ((lane ^ row) & 7) * 16, x + int64_t(s) * row_bytes);
      }
      copy4(to + kBatch * kSlice + lane * 4, p.masks + int64_t(first + 4 * i) * 32 + lane);
    }
    commit();
  };

  int ahead[S - 1];
#pragma unroll
  for (int s = 0; s < S - 1; ++s) ahead[s] = sender_of(s);
#pragma unroll
  for (int s = 0; s < S - 1; ++s) copy_in(s, s, ahead[s]);
  int sender = sender_of(S - 1);
  int stage = 0, next = S - 1;
  // Lane's row in ldmatrix: matrices are (k 0-7, n 0-7), (k 8-15, n 0-7), and the same of n 8-15.
  const int k = lane & 15, half = lane >> 4;
#pragma unroll 1
  for (int i = 0; i < batches; ++i) {
    wait<S - 2>();
    __syncwarp();
    copy_in(i + S - 1, next, sender);
    sender = sender_of(i + S);
    const unsigned at = mine + stage * kStage;
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at + kBatch * kSlice + lane * 4));
    uint32_t a[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) a[r] = mask_register(word, r);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, at + k * kSlice + (((2 * n + half) ^ k) & 7) * 16);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        mma(*reinterpret_cast<float (*)[4]>(acc + (m * 8 + 2 * n) * 4), a + 4 * m, b[0], b[1]);
        mma(*reinterpret_cast<float (*)[4]>(acc + (m * 8 + 2 * n + 1) * 4), a + 4 * m, b[2], b[3]);
      }
    }
    stage = stage + 1 == S ? 0 : stage + 1;
    next = next + 1 == S ? 0 : next + 1;
  }
  add_warps(acc, reinterpret_cast<float*>(shared), warp, lane);
  if (warp != 0) return;
  const int g = lane / 4, t = lane % 4;
  float* out = p.slots + (int64_t(part.z) * kWindow + g) * p.width + blockIdx.y * 64 + 2 * t;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float* c = acc + (m * 8 + n) * 4;
      float* to = out + int64_t(m * 16) * p.width + n * 8;
      *reinterpret_cast<float2*>(to) = make_float2(0.5f * c[0], 0.5f * c[1]);
      *reinterpret_cast<float2*>(to + int64_t(8) * p.width) = make_float2(0.5f * c[2], 0.5f * c[3]);
    }
  }
}

// Variant 1, float32 as the sum of three bfloat16 by truncation (exact), 32 features a block. The
// tensor core's sums, which it truncates, are added to float32 registers every P batches.
// Prediction at T = 2: tensor cores 2.4 ms, 14.6 GB from L2 1.6, 150 instructions for 48 products
// hidden below them: 2.6 to 3.2 ms. Whole: 6.6 to 7.2. P = 4 costs 8 % more than P = 16; errors
// 2e-7 (P = 4), 5e-7 (16) relative, on positive numbers 1e-6 (16).
template <int S, int P>
__global__ void __launch_bounds__(128, 3) tensor_f32(TileArgs p) {
  constexpr int kRow = kSlice + 16;  // conflict-free: 2 rows are 8 banks apart
  constexpr int kStage = kBatch * kRow + 128;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned mine = shared_address(shared) + warp * S * kStage;
  const int4 part = p.parts[blockIdx.x];
  const int first = part.x + warp;
  const int batches = (part.y - first + 3) / 4;
  const unsigned row_bytes = p.width * 4;
  const char* x = static_cast<const char*>(p.x) + blockIdx.y * kSlice + (lane & 7) * 16;

  float acc[4 * 4 * 4], sums[4 * 4 * 4];
#pragma unroll
  for (int i = 0; i < 64; ++i) acc[i] = sums[i] = 0;

  const auto sender_of = [&](int i) {
    return i < batches ? __ldg(p.senders + int64_t(first + 4 * i) * kBatch + (lane & 15)) : 0;
  };
  const auto copy_in = [&](int i, int stage, int sender) {
    if (i < batches) {
      const unsigned to = mine + stage * kStage;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = lane / 8 + 4 * j;
        const int s = __shfl_sync(~0u, sender, row);
        copy16(to + row * kRow + (lane & 7) * 16, x + int64_t(s) * row_bytes);
      }
      copy4(to + kBatch * kRow + lane * 4, p.masks + int64_t(first + 4 * i) * 32 + lane);
    }
    commit();
  };

  int ahead[S - 1];
#pragma unroll
  for (int s = 0; s < S - 1; ++s) ahead[s] = sender_of(s);
#pragma unroll
  for (int s = 0; s < S - 1; ++s) copy_in(s, s, ahead[s]);
  int sender = sender_of(S - 1);
  int stage = 0, next = S - 1;
  const int g = lane / 4, t = lane % 4;
  const unsigned offset = 2 * t * kRow + g * 4;
#pragma unroll 1
  for (int i = 0; i < batches; ++i) {
    wait<S - 2>();
    __syncwarp();
    copy_in(i + S - 1, next, sender);
    sender = sender_of(i + S);
    const unsigned at = mine + stage * kStage;
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at + kBatch * kRow + lane * 4));
    uint32_t a[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) a[r] = mask_register(word, r);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[3][2];  // high, middle, low; entries k and k + 8
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t v[3][2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          float value;
          asm volatile("ld.shared.f32 %0, [%1];"
                       : "=f"(value)
                       : "r"(at + offset + (8 * h + q) * kRow + n * 32));
          const uint32_t high = __float_as_uint(value) & 0xFFFF0000u;
          const float rest = value - __uint_as_float(high);
          const uint32_t middle = __float_as_uint(rest) & 0xFFFF0000u;
          v[0][q] = high;
          v[1][q] = middle;
          v[2][q] = __float_as_uint(rest - __uint_as_float(middle));
        }
#pragma unroll
        for (int u = 0; u < 3; ++u) b[u][h] = __byte_perm(v[u][0], v[u][1], 0x7632);
      }
#pragma unroll
      for (int u = 2; u >= 0; --u) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          mma(*reinterpret_cast<float (*)[4]>(acc + (m * 4 + n) * 4), a + 4 * m, b[u][0], b[u][1]);
        }
      }
    }
    if ((i + 1) % P == 0) {
#pragma unroll
      for (int c = 0; c < 64; ++c) {
        sums[c] += acc[c];
        acc[c] = 0;
      }
    }
    stage = stage + 1 == S ? 0 : stage + 1;
    next = next + 1 == S ? 0 : next + 1;
  }
#pragma unroll
  for (int c = 0; c < 64; ++c) sums[c] += acc[c];
  add_warps(sums, reinterpret_cast<float*>(shared), warp, lane);
  if (warp != 0) return;
  float* out = p.slots + (int64_t(part.z) * kWindow + g) * p.width + blockIdx.y * 32 + 2 * t;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float* c = sums + (m * 4 + n) * 4;
      float* to = out + int64_t(m * 16) * p.width + n * 8;
      *reinterpret_cast<float2*>(to) = make_float2(0.5f * c[0], 0.5f * c[1]);
      *reinterpret_cast<float2*>(to + int64_t(8) * p.width) = make_float2(0.5f * c[2], 0.5f * c[3]);
    }
  }
}

__device__ inline void add16(float (&sums)[4], const uint4& v, float*) {
  sums[0] += __uint_as_float(v.x);
  sums[1] += __uint_as_float(v.y);
  sums[2] += __uint_as_float(v.z);
  sums[3] += __uint_as_float(v.w);
}
__device__ inline void add16(float (&sums)[8], const uint4& v, bf16*) {
  const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[2 * i] += __uint_as_float(w[i] << 16);
    sums[2 * i + 1] += __uint_as_float(w[i] & 0xFFFF0000u);
  }
}

struct ChunkArgs {
  const int32_t* senders;  // of the entries
  const int4* chunks;      // entry begin, entries, word begin, words
  const uint32_t* words;   // index lists: four entries of the chunk a word; 255 is none
  const uint32_t* lists;   // [chunks, 64]: first word << 16 | words
  const int4* parts;       // chunk begin, end, slot
  const void* x;
  float* slots;
  int width;
};
constexpr int kChunkStage = 256 * kSlice + kChunkWords * 4 + kWindow * 4;

// Variant 2: a chunk of 255 entries is staged (while the one before is added), and 8 lanes own
// each of the 64 rows: exact float32 sums in registers, in a fixed order.
// Prediction at T = 2, float32: 82 GB of shared memory at 28 TB/s = 2.9 ms, 20 % lost where the
// four rows of a warp differ: 3.5 ms; bfloat16: 41 GB = 1.5 ms but 22 instructions an edge of 8
// lanes, 2.0 ms: 2.3 ms. Whole: 7.4 and 4.3.
template <typename T>
__global__ void __launch_bounds__(512, 3) cuda_cores(ChunkArgs p) {
  constexpr int V = 16 / sizeof(T);
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned base = shared_address(shared);
  const int tid = threadIdx.x, row = tid / 8, j = tid % 8;
  if (tid < 64) {  // row 255 of both stages
    uint32_t* zero = reinterpret_cast<uint32_t*>(shared + (tid / 32) * kChunkStage + 255 * kSlice);
    zero[tid % 32] = 0;
  }
  const int4 part = p.parts[blockIdx.x];
  const unsigned row_bytes = p.width * sizeof(T);
  const char* x = static_cast<const char*>(p.x) + blockIdx.y * kSlice + j * 16;
  const auto copy_in = [&](int c, int stage) {
    if (c < part.y) {
      const int4 chunk = __ldg(p.chunks + c);
      const unsigned to = base + stage * kChunkStage;
      int sender[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int entry = row + 64 * i;
        sender[i] = entry < chunk.y ? __ldg(p.senders + chunk.x + entry) : -1;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (sender[i] >= 0) {
          copy16(to + (row + 64 * i) * kSlice + j * 16, x + int64_t(sender[i]) * row_bytes);
        }
      }
      if (tid * 4 < chunk.w) {  // word counts are multiples of 4; at most 896
        copy16(to + 256 * kSlice + tid * 16, p.words + chunk.z + tid * 4);
      }
      if (tid >= 496) {
        copy16(to + 256 * kSlice + kChunkWords * 4 + (tid - 496) * 16,
               p.lists + int64_t(c) * kWindow + (tid - 496) * 4);
      }
    }
    commit();
  };
  float sums[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = 0;
  copy_in(part.x, 0);
  int stage = 0;
#pragma unroll 1
  for (int c = part.x; c < part.y; ++c) {
    copy_in(c + 1, stage ^ 1);
    wait<1>();
    __syncthreads();
    const unsigned char* at = shared + stage * kChunkStage;
    const uint32_t list =
        reinterpret_cast<const uint32_t*>(at + 256 * kSlice + kChunkWords * 4)[row];
    const uint32_t* words = reinterpret_cast<const uint32_t*>(at + 256 * kSlice) + (list >> 16);
    const unsigned char* rows = at + j * 16;
    const int n = list & 0xFFFF;
#pragma unroll 2
    for (int k = 0; k < n; ++k) {
      const uint32_t four = words[k];
      uint4 v[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        v[u] = *reinterpret_cast<const uint4*>(rows + ((four >> (8 * u)) & 255u) * kSlice);
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) add16(sums, v[u], static_cast<T*>(nullptr));
    }
    __syncthreads();
    stage ^= 1;
  }
  float* out = p.slots + (int64_t(part.z) * kWindow + row) * p.width + blockIdx.y * (8 * V) + j * V;
#pragma unroll
  for (int i = 0; i < V; i += 4) {
    *reinterpret_cast<float4*>(out + i) =
        make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  }
}

struct RestArgs {
  const int32_t* rows;        // the row at each place of the order
  const int32_t* begins;      // [places + 1], multiples of 4
  const int32_t* senders;     // padded by the zero row
  const int32_t* slot_begin;  // [windows + 1], or null: no slots
  const float* slots;
  const void* x;
  void* y;
  int num_rows;
  int width;
};

// The rest, with what the tiles made: a warp a row, four groups of 8 lanes, slices of 128 bytes.
// Prediction with all edges (no tiles): 12.6 ms float32, 6.4 to 6.7 bfloat16.
template <typename T>
__global__ void __launch_bounds__(64, 16) rest_rows(RestArgs p) {
  constexpr int V = 16 / sizeof(T);
  const int place = blockIdx.x * 2 + threadIdx.x / 32;
  if (place >= p.num_rows) return;
  const int lane = threadIdx.x % 32, group = lane / 8, j = lane % 8;
  const unsigned row_bytes = p.width * sizeof(T);
  const char* x = static_cast<const char*>(p.x) + blockIdx.y * kSlice + j * 16;
  float sums[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = 0;
  const int end = p.begins[place + 1];
  int e = p.begins[place] + 4 * group;
  const auto load = [&](int sender) {
    return __ldg(reinterpret_cast<const uint4*>(x + size_t(unsigned(sender)) * row_bytes));
  };
  for (; e + 16 < end; e += 32) {
    const int4 a = __ldg(reinterpret_cast<const int4*>(p.senders + e));
    const int4 b = __ldg(reinterpret_cast<const int4*>(p.senders + e + 16));
    const uint4 v[8] = {load(a.x), load(a.y), load(a.z), load(a.w),
                        load(b.x), load(b.y), load(b.z), load(b.w)};
#pragma unroll
    for (int u = 0; u < 8; ++u) add16(sums, v[u], static_cast<T*>(nullptr));
  }
  if (e < end) {
    const int4 a = __ldg(reinterpret_cast<const int4*>(p.senders + e));
    const uint4 v[4] = {load(a.x), load(a.y), load(a.z), load(a.w)};
#pragma unroll
    for (int u = 0; u < 4; ++u) add16(sums, v[u], static_cast<T*>(nullptr));
  }
  if (p.slot_begin != nullptr) {
    const int window = place / kWindow, r = place % kWindow;
    for (int s = p.slot_begin[window] + group; s < p.slot_begin[window + 1]; s += 4) {
      const float* from =
          p.slots + (int64_t(s) * kWindow + r) * p.width + blockIdx.y * (8 * V) + j * V;
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + i);
        sums[i] += v.x, sums[i + 1] += v.y, sums[i + 2] += v.z, sums[i + 3] += v.w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[i] += __shfl_xor_sync(~0u, sums[i], 8);
    sums[i] += __shfl_xor_sync(~0u, sums[i], 16);
  }
  if (group != 0) return;
  T* out = static_cast<T*>(p.y) + int64_t(p.rows[place]) * p.width + blockIdx.y * (8 * V) + j * V;
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(out) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  } else {
    uint4 packed;
    uint32_t* w = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(sums[2 * i], sums[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&two);
    }
    *reinterpret_cast<uint4*>(out) = packed;
  }
}

// ---------------------------------------------------------------------------------------------
// Host: the graph and its tiles.

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

struct Graph {
  int n = 0;
  std::vector<int64_t> offsets;
  std::vector<int32_t> senders;
  std::vector<int32_t> order;  // rows in label groups
};

struct Tiles {
  int threshold = 0;
  int64_t tile_edges = 0, entries = 0, shared = 0;  // entries with and without padding
  std::vector<int32_t> senders;                     // padded to batches by the zero row
  std::vector<uint32_t> masks;
  std::vector<int4> parts;
  std::vector<int32_t> slot_begin;
  std::vector<int32_t> chunk_senders;
  std::vector<int4> chunks;
  std::vector<uint32_t> words, lists;
  std::vector<int4> chunk_parts;
  std::vector<int32_t> chunk_slot_begin;
  std::vector<int32_t> rest_begins, rest_senders;
};

struct WindowTiles {  // one window's share of Tiles, indices relative to the window
  std::vector<int32_t> senders;
  std::vector<uint32_t> masks;
  std::vector<int32_t> chunk_senders;
  std::vector<int4> chunks;
  std::vector<uint32_t> words, lists;
  std::vector<int32_t> rest[kWindow];
  int64_t tile_edges = 0, shared = 0;
};

void build_window(const Graph& g, int w, int threshold, std::vector<uint64_t>& keys,
                  WindowTiles& out) {
  keys.clear();
  for (int r = 0; r < kWindow && w * kWindow + r < g.n; ++r) {
    const int32_t row = g.order[w * kWindow + r];
    for (int64_t e = g.offsets[row]; e < g.offsets[row + 1]; ++e) {
      keys.push_back(uint64_t(uint32_t(g.senders[e])) << 6 | unsigned(r));
    }
  }
  std::sort(keys.begin(), keys.end());
  struct Entry {
    int32_t sender;
    uint64_t mask;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < keys.size();) {
    std::size_t j = i;
    while (j < keys.size() && keys[j] >> 6 == keys[i] >> 6) ++j;
    const int32_t sender = static_cast<int32_t>(keys[i] >> 6);
    uint64_t mask = 0;
    for (std::size_t e = i; e < j; ++e) mask |= uint64_t{1} << (keys[e] & 63);
    const bool tile = __builtin_popcountll(mask) >= threshold;
    uint64_t seen = tile ? 0 : ~uint64_t{0};  // a repeated edge goes to the rest
    for (std::size_t e = i; e < j; ++e) {
      const uint64_t bit = uint64_t{1} << (keys[e] & 63);
      if (seen & bit) out.rest[keys[e] & 63].push_back(sender);
      seen |= bit;
    }
    if (tile) {
      entries.push_back({sender, mask});
      out.tile_edges += __builtin_popcountll(mask);
    }
    i = j;
  }
  out.shared = static_cast<int64_t>(entries.size());
  // Batches of 16.
  for (std::size_t first = 0; first < entries.size(); first += kBatch) {
    uint32_t words[32] = {};
    for (int k = 0; k < kBatch; ++k) {
      const bool real = first + k < entries.size();
      out.senders.push_back(real ? entries[first + k].sender : g.n);
      for (int r = 0; real && r < kWindow; ++r) {
        if (entries[first + k].mask >> r & 1) {
          int lane, bit;
          mask_place(r, k, lane, bit);
          words[lane] |= 1u << bit;
        }
      }
    }
    out.masks.insert(out.masks.end(), words, words + 32);
  }
  // Chunks of at most 255 entries and 896 words.
  for (std::size_t first = 0; first < entries.size();) {
    std::vector<uint8_t> rows[kWindow];
    int words = 0;
    std::size_t end = first;
    for (; end < entries.size() && end - first < kChunk; ++end) {
      int more = 0;
      for (uint64_t m = entries[end].mask; m; m &= m - 1) {
        more += rows[__builtin_ctzll(m)].size() % 4 == 0;
      }
      if (words + more > kChunkWords) break;
      words += more;
      for (uint64_t m = entries[end].mask; m; m &= m - 1) {
        rows[__builtin_ctzll(m)].push_back(static_cast<uint8_t>(end - first));
      }
    }
    const int begin = static_cast<int>(out.words.size());
    for (auto& row : rows) {
      while (row.size() % 4) row.push_back(255);
      out.lists.push_back(uint32_t(out.words.size() - begin) << 16 | uint32_t(row.size() / 4));
      for (std::size_t i = 0; i < row.size(); i += 4) {
        out.words.push_back(row[i] | row[i + 1] << 8 | row[i + 2] << 16 |
                            uint32_t(row[i + 3]) << 24);
      }
    }
    while (out.words.size() % 4) out.words.push_back(~0u);
    out.chunks.push_back(make_int4(static_cast<int>(first), static_cast<int>(end - first), begin,
                                   static_cast<int>(out.words.size()) - begin));
    first = end;
  }
  for (const Entry& e : entries) out.chunk_senders.push_back(e.sender);
}

// Cuts `count` items of a window from `first` on into parts of at most `most`.
void cut(int64_t first, int64_t count, int64_t most, std::vector<int4>& parts,
         std::vector<int32_t>& slot_begin) {
  const int64_t pieces = (count + most - 1) / most;
  for (int64_t i = 0; i < pieces; ++i) {
    parts.push_back(make_int4(static_cast<int>(first + count * i / pieces),
                              static_cast<int>(first + count * (i + 1) / pieces),
                              static_cast<int>(parts.size()), 0));
  }
  slot_begin.push_back(static_cast<int32_t>(parts.size()));
}

template <class V>
void append(V& to, const V& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Tiles build_tiles(const Graph& g, int threshold) {
  const int windows = (g.n + kWindow - 1) / kWindow;
  std::vector<WindowTiles> each(windows);
  const int threads = host::num_chunks(windows, 1);
  std::vector<std::vector<uint64_t>> keys(threads);
  std::atomic<int> next{0};
  host::parallel(threads, [&](int t) {
    for (int w = next++; w < windows; w = next++) build_window(g, w, threshold, keys[t], each[w]);
  });
  Tiles out;
  out.threshold = threshold;
  out.slot_begin.push_back(0);
  out.chunk_slot_begin.push_back(0);
  out.rest_begins.push_back(0);
  for (int w = 0; w < windows; ++w) {
    WindowTiles& t = each[w];
    const int64_t batch = static_cast<int64_t>(out.masks.size() / 32);
    cut(batch, static_cast<int64_t>(t.masks.size() / 32), kPartEntries / kBatch, out.parts,
        out.slot_begin);
    append(out.senders, t.senders);
    append(out.masks, t.masks);
    const int entry = static_cast<int>(out.chunk_senders.size());
    const int word = static_cast<int>(out.words.size());
    const int64_t chunk = static_cast<int64_t>(out.chunks.size());
    cut(chunk, static_cast<int64_t>(t.chunks.size()), kPartEntries / kChunk, out.chunk_parts,
        out.chunk_slot_begin);
    for (int4 c : t.chunks) {
      c.x += entry;
      c.z += word;
      out.chunks.push_back(c);
    }
    append(out.chunk_senders, t.chunk_senders);
    append(out.words, t.words);
    append(out.lists, t.lists);
    for (int r = 0; r < kWindow && w * kWindow + r < g.n; ++r) {
      append(out.rest_senders, t.rest[r]);
      while (out.rest_senders.size() % 4) out.rest_senders.push_back(g.n);
      out.rest_begins.push_back(static_cast<int32_t>(out.rest_senders.size()));
    }
    out.tile_edges += t.tile_edges;
    out.shared += t.shared;
    t = WindowTiles();
  }
  out.entries = static_cast<int64_t>(out.senders.size());
  const auto longest = [](const int4& a, const int4& b) { return a.y - a.x > b.y - b.x; };
  std::stable_sort(out.parts.begin(), out.parts.end(), longest);
  std::stable_sort(out.chunk_parts.begin(), out.chunk_parts.end(), longest);
  return out;
}

// What the tiles and the rest hold, decoded: is it every edge once?
bool decode(const Graph& g, const Tiles& t) {
  std::vector<char> placed(g.n, 0);  // the order holds every row once
  if (static_cast<int>(g.order.size()) != g.n) return false;
  for (const int32_t row : g.order) {
    if (row < 0 || row >= g.n || placed[row]++) return false;
  }
  std::vector<uint64_t> want, tensor, cores;
  for (int place = 0; place < g.n; ++place) {
    const int32_t row = g.order[place];
    for (int64_t e = g.offsets[row]; e < g.offsets[row + 1]; ++e) {
      want.push_back(uint64_t(place) << 32 | uint32_t(g.senders[e]));
    }
    for (int32_t e = t.rest_begins[place]; e < t.rest_begins[place + 1]; ++e) {
      if (t.rest_senders[e] == g.n) continue;
      tensor.push_back(uint64_t(place) << 32 | uint32_t(t.rest_senders[e]));
    }
  }
  cores = tensor;
  const int windows = (g.n + kWindow - 1) / kWindow;
  std::vector<int> window_of_slot, window_of_chunk_slot;
  for (int w = 0; w < windows; ++w) {
    for (int s = t.slot_begin[w]; s < t.slot_begin[w + 1]; ++s) window_of_slot.push_back(w);
    for (int s = t.chunk_slot_begin[w]; s < t.chunk_slot_begin[w + 1]; ++s) {
      window_of_chunk_slot.push_back(w);
    }
  }
  for (const int4& part : t.parts) {
    for (int b = part.x; b < part.y; ++b) {
      for (int r = 0; r < kWindow; ++r) {
        for (int k = 0; k < kBatch; ++k) {
          int lane, bit;
          mask_place(r, k, lane, bit);
          if (t.masks[b * 32 + lane] >> bit & 1) {
            tensor.push_back(uint64_t(window_of_slot[part.z] * kWindow + r) << 32 |
                             uint32_t(t.senders[b * kBatch + k]));
          }
        }
      }
    }
  }
  for (const int4& part : t.chunk_parts) {
    for (int c = part.x; c < part.y; ++c) {
      const int4 q = t.chunks[c];
      if (q.y > kChunk || q.w > kChunkWords || q.w % 4 || q.z % 4) return false;
      for (int r = 0; r < kWindow; ++r) {
        const uint32_t list = t.lists[int64_t(c) * kWindow + r];
        for (uint32_t k = 0; k < (list & 0xFFFF) * 4; ++k) {
          const uint32_t word = t.words[q.z + (list >> 16) + k / 4];
          const int i = word >> (8 * (k % 4)) & 255;
          if (i == 255) continue;
          if (i >= q.y) return false;
          cores.push_back(uint64_t(window_of_chunk_slot[part.z] * kWindow + r) << 32 |
                          uint32_t(t.chunk_senders[q.x + i]));
        }
      }
    }
  }
  for (auto* v : {&want, &tensor, &cores}) std::sort(v->begin(), v->end());
  return want == tensor && want == cores;
}

Graph small_graph(int n, int edges, bool repeated) {
  Graph g;
  g.n = n;
  std::vector<uint64_t> keys;
  for (int e = 0; e < edges; ++e) {
    const uint64_t h = mix(e + 17 * n);
    const uint64_t row = (h & 3) ? (h >> 8) % n : (h >> 8) % 5 % n;
    uint64_t column = mix(h) % n;
    if (h & 16) column = mix(h) % 90 % n;
    keys.push_back(row << 32 | column);
  }
  std::sort(keys.begin(), keys.end());
  if (!repeated) keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  g.offsets.assign(n + 1, 0);
  for (const uint64_t k : keys) {
    ++g.offsets[(k >> 32) + 1];
    g.senders.push_back(static_cast<int32_t>(k & 0xFFFFFFFFu));
  }
  for (int i = 0; i < n; ++i) g.offsets[i + 1] += g.offsets[i];
  // A stride without a common divisor with n: otherwise the order leaves rows out.
  int stride = 7;
  while (std::gcd(stride, n) != 1) ++stride;
  for (int i = 0; i < n; ++i) g.order.push_back(static_cast<int32_t>(int64_t(i) * stride % n));
  return g;
}

Graph read_graph(const char* path) {
  FILE* f = std::fopen(path, "rb");
  if (!f) {
    std::fprintf(stderr, "cannot open %s\n", path);
    std::exit(1);
  }
  const auto read = [&](void* to, std::size_t bytes) {
    if (std::fread(to, 1, bytes, f) != bytes) {
      std::fprintf(stderr, "%s: too short\n", path);
      std::exit(1);
    }
  };
  int64_t head[4];
  read(head, sizeof head);
  std::vector<int64_t> weights(head[0]), communities(head[2] + 1);
  std::vector<int32_t> ids(head[0]);
  read(weights.data(), weights.size() * 8);
  read(communities.data(), communities.size() * 8);
  read(ids.data(), ids.size() * 4);
  std::fclose(f);
  const double t0 = now();
  host::Sampling s;
  s.num_nodes = head[0];
  s.num_edges = head[1];
  s.undirected = true;
  s.seed = 1;
  s.relabel = ids.data();
  const host::Edges edges =
      host::chung_lu(weights.data(), communities.data(), head[2], head[3] / 1000.0, s);
  const double t1 = now();
  Graph g;
  g.n = static_cast<int>(head[0]);
  g.offsets.assign(edges.row_offsets.data(), edges.row_offsets.data() + g.n + 1);
  g.senders.assign(edges.senders.data(), edges.senders.data() + edges.senders.size());
  const host::Buffer<int32_t> order =
      host::order_rows(g.offsets.data(), g.senders.data(), g.n, g.n);
  g.order.assign(order.data(), order.data() + g.n);
  std::printf("graph: %d nodes, %zu edges; generated in %.1f s, grouped in %.1f s, %u threads\n",
              g.n, g.senders.size(), t1 - t0, now() - t1, std::thread::hardware_concurrency());
  return g;
}

// ---------------------------------------------------------------------------------------------
// The measurement.

template <class T>
struct Device {
  T* data = nullptr;
  Device() = default;
  explicit Device(std::size_t size) {
    CHECK(cudaMalloc(&data, std::max<std::size_t>(size, 1) * sizeof(T)));
  }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    CHECK(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(Device&& o) : data(o.data) { o.data = nullptr; }
  Device& operator=(Device&& o) {
    std::swap(data, o.data);
    return *this;
  }
  ~Device() { cudaFree(data); }
};

float median_ms(int warm, int runs, const std::function<void()>& f) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  for (int i = 0; i < warm; ++i) f();
  CHECK(cudaDeviceSynchronize());
  std::vector<float> ms(runs);
  for (float& m : ms) {
    CHECK(cudaEventRecord(a));
    f();
    CHECK(cudaEventRecord(b));
    CHECK(cudaEventSynchronize(b));
    CHECK(cudaEventElapsedTime(&m, a, b));
  }
  CHECK(cudaGetLastError());
  std::sort(ms.begin(), ms.end());
  CHECK(cudaEventDestroy(a));
  CHECK(cudaEventDestroy(b));
  return ms[runs / 2];
}

float rounded(float v) { return __bfloat162float(__float2bfloat16(v)); }

// Features: uniform in (-1, 1), or in (0, 1); the last row is zero.
std::vector<float> features(int n, int width, bool positive) {
  std::vector<float> x(static_cast<std::size_t>(n + 1) * width, 0.f);
  const int64_t size = int64_t(n) * width;
  host::parallel_for(size, host::num_chunks(size), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float u = static_cast<float>(mix(i) >> 40) * (1.f / (1 << 24));
      x[i] = positive ? u : 2 * u - 1;
    }
  });
  return x;
}

template <typename T>
std::vector<T> converted(const std::vector<float>& x) {
  std::vector<T> out(x.size());
  const int64_t size = static_cast<int64_t>(x.size());
  host::parallel_for(size, host::num_chunks(size), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (sizeof(T) == 4) {
        out[i] = x[i];
      } else {
        out[i] = __float2bfloat16(x[i]);
      }
    }
  });
  return out;
}

struct Oracle {
  std::vector<int> rows;
  std::vector<double> sums;  // [rows, width]
};
Oracle oracle(const Graph& g, const std::vector<float>& x, int width, bool narrow, int count) {
  Oracle o;
  for (int i = 0; i < std::min(count, g.n); ++i) {
    o.rows.push_back(count >= g.n ? i : static_cast<int>(mix(i + 99) % g.n));
  }
  o.sums.assign(o.rows.size() * width, 0.0);
  host::parallel_items(static_cast<int64_t>(o.rows.size()),
                       std::max(1u, std::thread::hardware_concurrency()), [&](int64_t i) {
                         double* sum = o.sums.data() + i * width;
                         for (int64_t e = g.offsets[o.rows[i]]; e < g.offsets[o.rows[i] + 1]; ++e) {
                           const float* row = x.data() + int64_t(g.senders[e]) * width;
                           for (int c = 0; c < width; ++c)
                             sum[c] += narrow ? rounded(row[c]) : row[c];
                         }
                       });
  return o;
}

struct Errors {
  double relative = 0, largest = 0;  // in the norm; of the largest value
};
template <typename T>
double tolerance() {
  return sizeof(T) == 2 ? 4e-3 : 2e-6;
}

// Where the result is not finite or differs by more than `bound` of the largest value: the first
// few places, with how many rows and values.
template <typename T>
void print_differences(const Graph& g, const Oracle& o, const T* device_y, int width,
                       double bound) {
  double most = 0;
  for (const double v : o.sums) most = std::max(most, std::fabs(v));
  std::vector<T> y(width);
  int64_t rows = 0, values = 0, lost = 0;
  for (std::size_t i = 0; i < o.rows.size(); ++i) {
    CHECK(cudaMemcpy(y.data(), device_y + int64_t(o.rows[i]) * width, width * sizeof(T),
                     cudaMemcpyDeviceToHost));
    bool first = true;
    for (int c = 0; c < width; ++c) {
      const double v = static_cast<float>(y[c]), want = o.sums[i * width + c];
      if (std::fabs(v - want) <= bound * std::max(most, 1e-300)) continue;
      ++values;
      lost += !std::isfinite(v);
      if (!first) continue;
      first = false;
      if (++rows > 5) continue;
      const auto place = std::find(g.order.begin(), g.order.end(), o.rows[i]) - g.order.begin();
      std::printf("    row %d (place %ld, degree %ld), column %d: %.9g, expected %.9g\n", o.rows[i],
                  static_cast<long>(place),
                  static_cast<long>(g.offsets[o.rows[i] + 1] - g.offsets[o.rows[i]]), c, v, want);
    }
  }
  std::printf(
      "    %ld values (%ld not finite) in %ld of %zu rows differ by more than %.0e of %.3g\n",
      static_cast<long>(values), static_cast<long>(lost), static_cast<long>(rows), o.rows.size(),
      bound, most);
}

template <typename T>
Errors errors(const Oracle& o, const T* device_y, int width) {
  double difference = 0, norm = 0, worst = 0, most = 0;
  std::vector<T> y(width);
  for (std::size_t i = 0; i < o.rows.size(); ++i) {
    CHECK(cudaMemcpy(y.data(), device_y + int64_t(o.rows[i]) * width, width * sizeof(T),
                     cudaMemcpyDeviceToHost));
    for (int c = 0; c < width; ++c) {
      double v;
      if constexpr (sizeof(T) == 4) {
        v = y[c];
      } else {
        v = __bfloat162float(y[c]);
      }
      const double want = o.sums[i * width + c], d = v - want;
      difference += d * d;
      norm += want * want;
      worst = std::max(worst, std::isfinite(d) ? std::fabs(d) : 1e300);
      most = std::max(most, std::fabs(want));
    }
  }
  Errors e{std::sqrt(difference / std::max(norm, 1e-300)), worst / std::max(most, 1e-300)};
  if (!std::isfinite(e.relative)) e.relative = 1e300;
  return e;
}

struct Data {  // on the device
  Device<int32_t> rows, senders, slot_begin, chunk_senders, chunk_slot_begin, rest_begins,
      rest_senders;
  Device<uint32_t> masks, words, lists;
  Device<int4> parts, chunks, chunk_parts;
  Device<float> slots;
  Data(const Graph& g, const Tiles& t, int width)
      : rows(g.order),
        senders(t.senders),
        slot_begin(t.slot_begin),
        chunk_senders(t.chunk_senders),
        chunk_slot_begin(t.chunk_slot_begin),
        rest_begins(t.rest_begins),
        rest_senders(t.rest_senders),
        masks(t.masks),
        words(t.words),
        lists(t.lists),
        parts(t.parts),
        chunks(t.chunks),
        chunk_parts(t.chunk_parts),
        slots(std::max(t.parts.size(), t.chunk_parts.size()) * kWindow * width) {}
};

template <class F>
void allow_shared(F* kernel, int bytes) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

constexpr int kStagesBf16 = 6, kStagesF32 = 5;
constexpr int kSharedBf16 = 4 * kStagesBf16 * (kBatch * kSlice + 128);
constexpr int kSharedF32 = 4 * kStagesF32 * (kBatch * (kSlice + 16) + 128);
static_assert(kSharedBf16 >= 2 * 128 * 32 * 4 && kSharedF32 >= 2 * 64 * 32 * 4, "for add_warps");

enum Variant { kNone, kTensor, kTensorOften, kCores };
const char* name_of(int v) {
  const char* names[] = {"rows alone", "tensor", "tensor, sums every 4", "CUDA cores"};
  return names[v];
}

template <typename T>
class Runner {
 public:
  Runner(const Graph& g, const Tiles& t, const Data& d, const T* x, T* y, int width)
      : g_(g),
        t_(t),
        d_(d),
        x_(x),
        y_(y),
        width_(width),
        slices_(static_cast<int>(width * sizeof(T) / kSlice)) {
    allow_shared(tensor_bf16<kStagesBf16>, kSharedBf16);
    allow_shared(tensor_f32<kStagesF32, 16>, kSharedF32);
    allow_shared(tensor_f32<kStagesF32, 4>, kSharedF32);
    allow_shared(cuda_cores<T>, 2 * kChunkStage);
  }
  void tiles(int variant, cudaStream_t stream = nullptr) const {
    if (variant == kNone) return;
    if (variant == kCores) {
      if (t_.chunk_parts.empty()) return;
      const ChunkArgs p{d_.chunk_senders.data, d_.chunks.data,
                        d_.words.data,         d_.lists.data,
                        d_.chunk_parts.data,   x_,
                        d_.slots.data,         width_};
      cuda_cores<T><<<dim3(static_cast<unsigned>(t_.chunk_parts.size()), slices_), 512,
                      2 * kChunkStage, stream>>>(p);
    } else {
      if (t_.parts.empty()) return;
      const dim3 grid(static_cast<unsigned>(t_.parts.size()), slices_);
      const TileArgs p{d_.senders.data, d_.masks.data, d_.parts.data, x_, d_.slots.data, width_};
      if constexpr (sizeof(T) == 2) {
        tensor_bf16<kStagesBf16><<<grid, 128, kSharedBf16, stream>>>(p);
      } else if (variant == kTensorOften) {
        tensor_f32<kStagesF32, 4><<<grid, 128, kSharedF32, stream>>>(p);
      } else {
        tensor_f32<kStagesF32, 16><<<grid, 128, kSharedF32, stream>>>(p);
      }
    }
    CHECK(cudaGetLastError());
  }
  void rest(int variant, cudaStream_t stream = nullptr) const {
    const RestArgs p{d_.rows.data,
                     d_.rest_begins.data,
                     d_.rest_senders.data,
                     variant == kNone    ? nullptr
                     : variant == kCores ? d_.chunk_slot_begin.data
                                         : d_.slot_begin.data,
                     d_.slots.data,
                     x_,
                     y_,
                     g_.n,
                     width_};
    rest_rows<T><<<dim3((g_.n + 1) / 2, slices_), 64, 0, stream>>>(p);
    CHECK(cudaGetLastError());
  }
  void poison() const {
    CHECK(cudaMemset(y_, 0xFF, std::size_t(g_.n) * width_ * sizeof(T)));  // NaN
    CHECK(cudaMemset(
        d_.slots.data, 0xFF,
        std::max(t_.parts.size(), t_.chunk_parts.size()) * kWindow * width_ * sizeof(float)));
  }

 private:
  const Graph& g_;
  const Tiles& t_;
  const Data& d_;
  const T* x_;
  T* y_;
  const int width_, slices_;
};

template <typename T>
std::vector<int> variants(const Tiles& t) {
  if (t.tile_edges == 0) return {kNone};
  if (sizeof(T) == 2) return {kTensor, kCores};
  return {kTensor, kTensorOften, kCores};
}

bool failed_checks[2][4] = {};  // [bfloat16][variant]: a self-check of it failed

struct Measured {
  int threshold;
  bool narrow, bad;
  int variant;
  float tile, rest, whole, both;
  double error;
};
std::vector<Measured> table;

void print_table() {
  std::printf("\n%-5s %-9s %-20s %8s %8s %8s %8s %9s\n", "T", "dtype", "rival", "tile ms",
              "rest ms", "whole ms", "at once", "error");
  for (const Measured& m : table) {
    char least[16] = "none", both[16] = "-";
    if (m.variant != kNone) {
      std::snprintf(least, sizeof least, "%d", m.threshold);
      std::snprintf(both, sizeof both, "%.3f", m.both);
    }
    std::printf("%-5s %-9s %-20s %8.3f %8.3f %8.3f %8s %9.1e%s%s\n", least,
                m.narrow ? "bfloat16" : "float32", name_of(m.variant), m.tile, m.rest, m.whole,
                both, m.error, m.bad ? "  WRONG" : "",
                failed_checks[m.narrow][m.variant] ? "  self-check FAILED" : "");
  }
  std::printf("\n");
  std::fflush(stdout);
}

template <typename T>
bool self_check(const Graph& g, const std::vector<float>& x, int threshold, int width) {
  const Tiles t = build_tiles(g, threshold);
  if (!decode(g, t)) {
    std::printf("self-check: tiles of %d nodes at %d do not hold every edge once\n", g.n,
                threshold);
    return false;
  }
  const Data d(g, t, width);
  const Device<T> dx(converted<T>(x));
  const Device<T> y(std::size_t(g.n) * width);
  const Oracle o = oracle(g, x, width, sizeof(T) == 2, g.n);
  bool ok = true;
  for (const int v : variants<T>(t)) {
    const Runner<T> run(g, t, d, dx.data, y.data, width);
    run.poison();
    run.tiles(v);
    run.rest(v);
    CHECK(cudaDeviceSynchronize());
    const Errors e = errors(o, y.data, width);
    const bool good = e.relative < tolerance<T>();
    std::printf("self-check %s: n %d, threshold %d, %zu + %zu parts, %s, %s: error %.2e\n",
                good ? "ok" : "FAILED", g.n, threshold, t.parts.size(), t.chunk_parts.size(),
                sizeof(T) == 2 ? "bfloat16" : "float32", name_of(v), e.relative);
    if (!good) {
      print_differences(g, o, y.data, width, tolerance<T>());
      failed_checks[sizeof(T) == 2][v] = true;
    }
    ok = ok && good;
  }
  return ok;
}

template <typename T>
void measure(const Graph& g, const Tiles& t, const std::vector<float>& x, int width,
             const std::vector<float>* positive) {
  const Data d(g, t, width);
  const Device<T> y(std::size_t(g.n) * width);
  Device<T> dx(converted<T>(x));
  const Oracle o = oracle(g, x, width, sizeof(T) == 2, 1000);
  const char* type = sizeof(T) == 2 ? "bfloat16" : "float32";
  cudaStream_t one, two;
  CHECK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  cudaEvent_t start, end_one, end_two;
  for (cudaEvent_t* e : {&start, &end_one, &end_two}) {
    CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  }
  for (const int v : variants<T>(t)) {
    const Runner<T> run(g, t, d, dx.data, y.data, width);
    run.poison();
    run.tiles(v);
    run.rest(v);
    CHECK(cudaDeviceSynchronize());
    const Errors e = errors(o, y.data, width);
    const bool bad = !(e.relative < tolerance<T>());
    if (bad) print_differences(g, o, y.data, width, tolerance<T>());
    const float tile_ms = v == kNone ? 0 : median_ms(2, 15, [&] { run.tiles(v); });
    const float rest_ms = median_ms(2, 15, [&] { run.rest(v); });
    const float whole_ms = median_ms(2, 15, [&] {
      run.tiles(v);
      run.rest(v);
    });
    // Both at once, without adding the one to the other: what overlap could give.
    float both_ms = 0;
    if (v != kNone) {
      both_ms = median_ms(2, 15, [&] {
        CHECK(cudaEventRecord(start));
        CHECK(cudaStreamWaitEvent(one, start));
        CHECK(cudaStreamWaitEvent(two, start));
        run.tiles(v, one);
        run.rest(kNone, two);
        CHECK(cudaEventRecord(end_one, one));
        CHECK(cudaEventRecord(end_two, two));
        CHECK(cudaStreamWaitEvent(nullptr, end_one));
        CHECK(cudaStreamWaitEvent(nullptr, end_two));
      });
    }
    std::printf(
        "%-9s >=%-3d %-20s tile %6.3f ms  rest %6.3f ms  whole %6.3f ms  at once %6.3f ms"
        "  error %.2e, largest %.2e\n",
        type, t.threshold, name_of(v), tile_ms, rest_ms, whole_ms, both_ms, e.relative, e.largest);
    table.push_back(
        {t.threshold, sizeof(T) == 2, bad, v, tile_ms, rest_ms, whole_ms, both_ms, e.relative});
    std::fflush(stdout);
  }
  if (positive != nullptr) {
    const Oracle other = oracle(g, *positive, width, sizeof(T) == 2, 1000);
    dx = Device<T>(converted<T>(*positive));
    for (const int v : variants<T>(t)) {
      const Runner<T> run(g, t, d, dx.data, y.data, width);
      run.poison();
      run.tiles(v);
      run.rest(v);
      CHECK(cudaDeviceSynchronize());
      const Errors e = errors(other, y.data, width);
      std::printf("%-9s >=%-3d %-20s on positive features: error %.2e, largest %.2e\n", type,
                  t.threshold, name_of(v), e.relative, e.largest);
    }
  }
  for (cudaEvent_t e : {start, end_one, end_two}) CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(one));
  CHECK(cudaStreamDestroy(two));
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: tiles INPUTS [--check-only | --host-only]\n");
    return 2;
  }
  const double t0 = now();
  const std::string mode = argc > 2 ? argv[2] : "";
  constexpr int width = 256;
  const int none = 1 << 20;     // a threshold that no column reaches
  if (mode == "--host-only") {  // no GPU: is every edge held once?
    for (const auto& [n, edges] : {std::pair(1, 0), {70, 900}, {129, 40'000}, {3000, 90'000}}) {
      for (const int threshold : {1, 2, 8, none}) {
        const Graph g = small_graph(n, edges, n == 129);
        std::printf("%d nodes, %d: %s\n", n, threshold,
                    decode(g, build_tiles(g, threshold)) ? "ok" : "FAILED");
      }
    }
    const Graph g = read_graph(argv[1]);
    for (const int threshold : {2, 4, 8, none}) {
      const double b = now();
      const Tiles t = build_tiles(g, threshold);
      std::printf(
          ">= %d: %.1f %% of edges in %ld entries (%ld padded), %.2f each, %zu and %zu parts, %zu "
          "chunks, "
          "built in %.2f s: %s\n",
          threshold, 100.0 * t.tile_edges / g.senders.size(), t.shared, t.entries,
          double(t.tile_edges) / std::max<int64_t>(t.shared, 1), t.parts.size(),
          t.chunk_parts.size(), t.chunks.size(), now() - b, decode(g, t) ? "ok" : "FAILED");
    }
    return 0;
  }
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors, L2 %d MB, %zu KB shared memory\n", device.name,
              device.multiProcessorCount, device.l2CacheSize >> 20,
              device.sharedMemPerMultiprocessor >> 10);
  bool ok = true;
  {
    for (const auto& [n, edges] : {std::pair(1, 1), {70, 900}, {129, 40'000}, {3000, 300'000}}) {
      const Graph g = small_graph(n, edges, n == 129);
      const std::vector<float> x = features(n, width, false);
      for (const int threshold : {1, 4, none}) {
        ok = self_check<bf16>(g, x, threshold, width) && ok;
        ok = self_check<float>(g, x, threshold, width) && ok;
      }
    }
    if (!ok) std::printf("A self-check FAILED; the timings follow nevertheless.\n");
  }
  int blocks[4];
  allow_shared(tensor_bf16<kStagesBf16>, kSharedBf16);
  allow_shared(tensor_f32<kStagesF32, 16>, kSharedF32);
  allow_shared(cuda_cores<float>, 2 * kChunkStage);
  allow_shared(cuda_cores<bf16>, 2 * kChunkStage);
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks[0], tensor_bf16<kStagesBf16>, 128,
                                                      kSharedBf16));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks[1], tensor_f32<kStagesF32, 16>, 128,
                                                      kSharedF32));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks[2], cuda_cores<float>, 512,
                                                      2 * kChunkStage));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks[3], cuda_cores<bf16>, 512,
                                                      2 * kChunkStage));
  std::printf("blocks a multiprocessor: tensor bf16 %d, f32 %d; CUDA cores f32 %d, bf16 %d\n",
              blocks[0], blocks[1], blocks[2], blocks[3]);
  if (mode == "--check-only") return ok ? 0 : 1;

  const Graph g = read_graph(argv[1]);
  const std::vector<float> x = features(g.n, width, false);
  const std::vector<float> positive = features(g.n, width, true);
  std::fflush(stdout);
  for (const int threshold : {none, 2, 4, 8}) {
    if (now() - t0 > 140) {
      std::printf("no time left for >= %d\n", threshold);
      continue;
    }
    const double b = now();
    const Tiles t = build_tiles(g, threshold);
    std::printf(">= %d: %.1f %% of edges in %ld entries (%ld padded), %.2f each; built in %.1f s\n",
                threshold, 100.0 * t.tile_edges / g.senders.size(), t.shared, t.entries,
                double(t.tile_edges) / std::max<int64_t>(t.shared, 1), now() - b);
    measure<bf16>(g, t, x, width, nullptr);
    measure<float>(g, t, x, width, threshold == 2 ? &positive : nullptr);
    std::printf("at %.0f s\n", now() - t0);
    std::fflush(stdout);
  }
  print_table();
  for (const Measured& m : table) ok = ok && !m.bad;
  return ok ? 0 : 1;
}
