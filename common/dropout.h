// The arguments of dropout's mask.
#pragma once

#include <cstdint>

namespace jaxgnn::dropout {

constexpr int64_t kColumnsPerWord = 32;
// Blocks of columns have 32-bit numbers (common/philox.h).
constexpr int64_t kMostColumns = int64_t{1} << 34;

// Bit c % 32 of mask[key, row, c / 32] is set if the value at (row, c) is kept. Bits beyond the
// width are 0.
struct MaskArgs {
  int64_t num_keys;
  int64_t num_rows;
  int64_t width;
  uint32_t drop_below;   // random words below this are dropped
  const uint32_t* keys;  // [K, 2]
  uint32_t* mask;        // [K, R, words_of(width)]
};

// In an anonymous namespace, as the CPU's kernels are compiled for several instruction sets.
namespace {
constexpr int64_t words_of(int64_t width) {
  return (width + kColumnsPerWord - 1) / kColumnsPerWord;
}
}  // namespace

}  // namespace jaxgnn::dropout
