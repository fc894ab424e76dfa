// The blocks' sums of the gradient of a projection's weights for Hopper, by products of warpgroups:
// two of them have 64 features of x each, and both all kAcross features of g.
//
// 16-bit rows lie in shared memory as they do in global memory: products read both operands by
// columns. TF32's do not, so that x comes to them in registers, and g is turned on its way to
// shared memory.
#include <algorithm>

#include "cuda/core/mma.cuh"
#include "cuda/core/rows.cuh"
#include "cuda/core/wgmma.cuh"
#include "cuda/projection/projection.h"
#include "cuda/projection/staged_rows.cuh"

namespace jaxgnn::projection {
namespace {

namespace wg = warpgroup;

constexpr int kThreads = 256;
constexpr int kDown = 2 * wg::kRows;  // features of x
constexpr int kRows = 32;             // of a stage

// A multiprocessor's blocks: sums of 256 features are half of its registers.
constexpr int blocks_at_once(int across) { return across == 256 ? 1 : 2; }

// The sums of a warpgroup's features of x.
template <int kAcross>
__device__ inline void write_sums(const Params& p, const Share& share,
                                  const float (&sums)[kAcross / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* out = p.partials + int64_t(share.block) * p.in_features * p.out_features;
  const bool pairs = p.out_features % 2 == 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t f = share.down + 16 * warp + lane / 4 + 8 * h;
    if (f >= p.in_features) continue;
    float* row = out + f * p.out_features;
#pragma unroll
    for (int j = 0; j < kAcross / 8; ++j) {
      const int64_t column = share.across + 8 * j + lane % 4 * 2;
      const float one = sums[4 * j + 2 * h], other = sums[4 * j + 2 * h + 1];
      if (pairs && column < p.out_features) {
        *reinterpret_cast<float2*>(row + column) = float2{one, other};
      } else {
        if (column < p.out_features) row[column] = one;
        if (column + 1 < p.out_features) row[column + 1] = other;
      }
    }
  }
}

// Rows in panels of 64 16-bit features each, as products read them by columns.
template <int kFeatures>
struct Panels {
  static constexpr int kRows = projection::kRows, kRowBytes = kFeatures * 2;
  static constexpr int kPanel = kRows * wg::kPanelBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static __device__ int place(int row, int at) {
    return at / wg::kPanelBytes * kPanel + wg::swizzled(row, at % wg::kPanelBytes / 16) + at % 16;
  }
};

// What a block of kAcross features of g does, and its shared memory.
template <typename T, int kAcross>
struct Tiling {
  using X = Panels<kDown>;
  using G = Panels<kAcross>;
  static constexpr int kStages = kAcross == 256 ? 7 : 6;
  static constexpr int kShared = kStages * (X::kBytes + G::kBytes) + wg::kAtomBytes;

  template <int kCopy>
  static __device__ void sum(const Params& p, unsigned base) {
    const Share share = share_of<kDown, kAcross>(p);
    const int steps = (share.rows - 1) / kRows + 1;
    Copies<X, kCopy, kThreads> x(p.x, share.begin, share.down * int{sizeof(T)});
    Copies<G, kCopy, kThreads> g(p.g, share.begin, share.across * int{sizeof(T)});
    const auto stage = [&](int step) {
      if (step < steps) {
        const unsigned to = base + step % kStages * (X::kBytes + G::kBytes);
        x.stage(to, share.rows - step * kRows);
        g.stage(to + X::kBytes, share.rows - step * kRows);
      }
      commit();
    };
    // Two stages less than there are: the products of the last step may still read theirs.
    constexpr int kAhead = kStages - 2;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) stage(s);

    // As the compiler knows it to be the same in all lanes.
    const int group = __shfl_sync(kFullWarp, threadIdx.x / wg::kThreads, 0);
    float sums[kAcross / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait<kAhead - 1>();
      wg::publish();
      __syncthreads();  // what all have copied is there
      const unsigned from = base + step % kStages * (X::kBytes + G::kBytes);
      const uint64_t a = wg::describe_columns(from + group * X::kPanel, X::kPanel);
      const uint64_t b = wg::describe_columns(from + X::kBytes, G::kPanel);
      wg::begin();
#pragma unroll
      for (int row = 0; row < kRows; row += 16) {
        const int within = row * wg::kPanelBytes / 16;
        wg::multiply_columns(sums, a + within, b + within, true, Tag<T>{});
      }
      wg::commit();
      wg::wait_for_products<1>();
      stage(step + kAhead);  // where all have waited for the products
    }
    wg::wait_for_products();
    wg::after_products(sums);
    write_sums<kAcross>(p, share, sums);
  }
};

// g's stages, turned: a panel has 32 rows' values of each feature. A thread has squares of four
// rows by four features in registers; eight lanes store 16 bytes each to different banks, and the
// lanes of a row load 128 bytes.
template <int kAcross, int kCopy>
class TurnedCopies {
 public:
  __device__ TurnedCopies(const Operand& operand, int64_t first, int64_t begin)
      : feature_(warp() % kGroups * 32 + lane() / 8 * 8 + lane() % 2 * 4),
        quad_(lane() / 2 % 4 + warp() / kGroups * 4),
        row_bytes_(operand.row_bytes),
        left_(static_cast<int>(
            max(int64_t{0}, min(operand.row_bytes - begin - feature_ * 4, int64_t{16})))),
        from_(operand.data + (first + quad_ * 4) * operand.row_bytes + begin + feature_ * 4) {}

  // Loads the next stage; zeros beyond the `rows` that are left, and the features that there are.
  __device__ void load(int rows) {
    if (idle()) return;
#pragma unroll
    for (int i = 0; i < kSquares; ++i) {
      const char* from = from_ + i * 16 * row_bytes_;
#pragma unroll
      for (int row = 0; row < 4; ++row) {
        const bool there = (quad_ + 4 * i) * 4 + row < rows;
#pragma unroll
        for (int at = 0; at < 16; at += kCopy) {
          load_or_zeros(values_[i][row] + at / 4, from + at, there && at < left_);
        }
        from += row_bytes_;
      }
    }
    from_ += kRows * row_bytes_;
  }

  __device__ void store(unsigned to) const {
    if (idle()) return;
#pragma unroll
    for (int i = 0; i < kSquares; ++i) {
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        uint32_t words[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) words[row] = tf32(values_[i][row][f]);
        store_shared(to + wg::swizzled(feature_ + f, quad_ + 4 * i), words);
      }
    }
  }

 private:
  static constexpr int kGroups = kAcross / 32;  // of features, a warp's
  static constexpr int kSquares = kGroups == 8 ? 2 : 1;
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ bool idle() const { return kGroups < 4 && quad_ >= kRows / 4; }

  static __device__ void load_or_zeros(float* to, const char* from, bool there) {
    if constexpr (kCopy == 16) {
      const float4 v = there ? __ldg(reinterpret_cast<const float4*>(from)) : float4{0, 0, 0, 0};
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (kCopy == 8) {
      const float2 v = there ? __ldg(reinterpret_cast<const float2*>(from)) : float2{0, 0};
      to[0] = v.x, to[1] = v.y;
    } else {
      to[0] = there ? __ldg(reinterpret_cast<const float*>(from)) : 0;
    }
  }

  int feature_, quad_;  // of the first square; four rows each
  int64_t row_bytes_;
  int left_;  // bytes of the square's features
  const char* from_;
  float values_[kSquares][4][4];
};

template <int kAcross>
struct Tiling<float, kAcross> {
  using X = Staged<kRows, kDown, 4, 32>;  // lanes of four rows read different banks
  static constexpr int kXStages = kAcross == 256 ? 4 : 3, kGStages = 3;
  static constexpr int kGBytes = kAcross * wg::kPanelBytes;
  static constexpr int kShared = kGStages * kGBytes + kXStages * X::kBytes + wg::kAtomBytes;

  template <int kCopy>
  static __device__ void sum(const Params& p, unsigned base) {
    const Share share = share_of<kDown, kAcross>(p);
    const int steps = (share.rows - 1) / kRows + 1;
    Copies<X, kCopy, kThreads> x(p.x, share.begin, share.down * 4);
    TurnedCopies<kAcross, kCopy> g(p.g, share.begin, share.across * 4);
    const unsigned x_base = base + kGStages * kGBytes;
    const auto stage = [&](int step) {
      if (step < steps) x.stage(x_base + step % kXStages * X::kBytes, share.rows - step * kRows);
      commit();
    };
    const auto load = [&](int step) {
      if (step < steps) g.load(share.rows - step * kRows);
    };
#pragma unroll
    for (int s = 0; s < kXStages - 1; ++s) stage(s);
    load(0);
    g.store(base);
    load(1);

    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned own = x_base + lane % 4 * X::kDistance + (16 * warp + lane / 4) * 4;
    float sums[kAcross / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
    unsigned slot = 0;  // of g
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait<kXStages - 2>();
      wg::publish();
      __syncthreads();  // the step's stages are there
      stage(step + kXStages - 1);
      wg::wait_for_products();
      wg::after_products(sums);
      uint32_t a[kRows / 8][4];
#pragma unroll
      for (int k = 0; k < kRows / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned at = own + step % kXStages * X::kBytes;
          const int row = 8 * k + i / 2 * 4, feature = i % 2 * 8;
          a[k][i] = tf32(__uint_as_float(load_shared(at + row * X::kDistance + feature * 4)));
        }
      }
      const uint64_t b = wg::describe(base + slot * kGBytes);
      wg::begin();
#pragma unroll
      for (int k = 0; k < kRows / 8; ++k) {
        wg::multiply(sums, a[k], b + k * wg::kStepBytes / 16, true);
      }
      wg::commit();
      // The other warpgroup may still run the products of this step and of the one before, which
      // read the other two slots.
      slot = slot + 1 == kGStages ? 0 : slot + 1;
      if (step + 1 < steps) g.store(base + slot * kGBytes);
      load(step + 2);
    }
    wg::wait_for_products();
    wg::after_products(sums);
    write_sums<kAcross>(p, share, sums);
  }
};

template <typename T, int kAcross, int kCopy>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kAcross))
    sum_products_wgmma(const Params p) {
  extern __shared__ int4 shared[];
  const unsigned at = shared_address(shared);
  Tiling<T, kAcross>::template sum<kCopy>(p, at + (-at & (wg::kAtomBytes - 1)));
}

template <typename T, int kAcross>
cudaError_t start(const WeightGradientArgs& args, const Launch& launch, int processors,
                  int64_t& num_blocks) {
  constexpr int kShared = Tiling<T, kAcross>::kShared;
  static_assert((kShared + 1024) * blocks_at_once(kAcross) <= 228 * 1024);
  Params p = params_of<kDown, kAcross>(args, sizeof(T), args.num_blocks);
  if (!launch.load) {
    const int64_t most = int64_t{processors} * blocks_at_once(kAcross) / p.tiles;
    num_blocks = p.num_blocks = std::max(std::min(most, args.num_blocks), int64_t{1});
  }
  const unsigned grid = p.tiles * static_cast<unsigned>(p.num_blocks);
  return with_copies(launch, p, [&](auto copied) {
    const auto kernel = sum_products_wgmma<T, kAcross, copied>;
    return launch_large_kernel<kShared>(launch, kernel, grid, kThreads, kShared, p);
  });
}

}  // namespace

cudaError_t launch_products_wgmma(const WeightGradientArgs& args, const Launch& launch,
                                  int processors, int64_t& num_blocks) {
  return with_type(NarrowTypes{}, launch, args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (launch.load || args.out_features > 128) {
      JAXGNN_TRY((start<T, 256>(args, launch, processors, num_blocks)));
      if (!launch.load) return cudaSuccess;
    }
    if (launch.load || args.out_features > 64) {
      JAXGNN_TRY((start<T, 128>(args, launch, processors, num_blocks)));
      if (!launch.load) return cudaSuccess;
    }
    return start<T, 64>(args, launch, processors, num_blocks);
  });
}

}  // namespace jaxgnn::projection
