// Philox4x32-10, a counter-based generator (Salmon et al., SC 2011, section 3.3): four random words
// for a counter of four words and a key of two. What is drawn for an edge, or for an entry of a
// matrix, depends on nothing else, so that it need not be stored, and
// jaxgnn/ops/_core/dropout_mask.py draws the same.
//
// Free of any platform's types: CPU and CUDA kernels include this file. In an anonymous namespace,
// as the CPU's are compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace jaxgnn {
namespace {

struct PhiloxWords {
  uint32_t words[4];
};

JAXGNN_HOST_DEVICE PhiloxWords philox4x32(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.words[0], c1 = counter.words[1];
  uint32_t c2 = counter.words[2], c3 = counter.words[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Four heads of an edge, or four columns of a row, share a block of words.
constexpr uint32_t kHeadsPerBlock = 4;
constexpr uint32_t kColumnsPerBlock = 4;

// The words of an edge (or a row), given by the halves of its number, for the heads (or columns) of
// a block.
JAXGNN_HOST_DEVICE PhiloxWords dropout_block(uint32_t edge_low, uint32_t edge_high, uint32_t block,
                                             uint32_t key0, uint32_t key1) {
  return philox4x32({{edge_low, edge_high, block, 0}}, key0, key1);
}

// What the kept are multiplied by, so that the mean stays.
JAXGNN_HOST_DEVICE double keep_scale(uint32_t drop_below) {
  return 0x1p32 / (0x1p32 - static_cast<double>(drop_below));
}

}  // namespace
}  // namespace jaxgnn
