// Dropout's mask: a thread a word of it, which is eight blocks of Philox.
#include "common/philox.h"
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/dropout/dropout.h"

namespace jaxgnn::dropout {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = static_cast<int>(kColumnsPerWord / kColumnsPerBlock);

__global__ void __launch_bounds__(kThreads)
    fill_words(const MaskArgs args, const int64_t words, const int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t row, example = 0;
  if (count <= UINT32_MAX) {  // 64-bit division takes ten times as long
    row = static_cast<uint32_t>(i) / static_cast<uint32_t>(words);
  } else {
    row = i / words;
  }
  const int64_t word = i - row * words;
  if (args.num_keys > 1) {
    example = row / args.num_rows;
    row -= example * args.num_rows;
  }
  const auto low = static_cast<uint32_t>(row), high = static_cast<uint32_t>(row >> 32);
  const uint32_t key0 = __ldg(args.keys + 2 * example), key1 = __ldg(args.keys + 2 * example + 1);
  uint32_t bits = 0;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const auto block = static_cast<uint32_t>(word * kBlocks + b);
    const PhiloxWords drawn = dropout_block(low, high, block, key0, key1);
#pragma unroll
    for (int c = 0; c < static_cast<int>(kColumnsPerBlock); ++c) {
      const uint32_t kept = drawn.words[c] >= args.drop_below ? 1u : 0u;
      bits |= kept << (b * static_cast<int>(kColumnsPerBlock) + c);
    }
  }
  const int64_t spare = (word + 1) * kColumnsPerWord - args.width;
  if (spare > 0) bits &= ~0u >> spare;
  args.mask[i] = bits;
}

}  // namespace

cudaError_t launch_mask(const MaskArgs& args, const Launch& launch) {
  const int64_t words = words_of(args.width);
  const int64_t count = args.num_keys * args.num_rows * words;
  if (!launch.load && count == 0) return cudaSuccess;
  return launch_kernel(launch, fill_words, blocks_of(count, kThreads), kThreads, 0, args, words,
                       count);
}

}  // namespace jaxgnn::dropout
