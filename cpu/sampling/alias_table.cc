// A row of d edges has d cells of 2^32 units. A cell has units of its own edge below the threshold,
// and of its alias from there on: Walker, "An efficient method for generating discrete random
// variables with general distributions" (1977), built in linear time after Vose (1991).
//
// All is integers, so that jaxgnn/ops/_sampling/alias.py builds the same table in NumPy:
//
// 1. Weights become integers by a power of 2 that all edges of the row share, as large as leaves
//    their sum W below 2^62.
// 2. Of the row's d 2^32 units each of its n edges with a weight has one, and the other
//    T = d 2^32 - n are split at floor(T S / W), where S are the weights' sums so far. Their sum is
//    exact, and no edge with a weight is without a unit.
// 3. Edges with less than a cell keep their units in their own, in the row's order. What is left of
//    it belongs to the first edge with a cell or more, until less than a cell is left to that: then
//    its own cell is filled up by the next of these.
#include "cpu/sampling/alias_table.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/host/host_parallel.h"

namespace jaxgnn::host {
namespace {

constexpr uint64_t kCell = uint64_t{1} << 32;
constexpr int kSumBits = 62;
constexpr int64_t kEdgesPerItem = 1 << 15;

// A weight is mantissa 2^exponent; a mantissa of 0 is no weight.
struct Weight {
  uint32_t mantissa;
  int exponent;  // at least 1
};

int bit_length(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

// By its bits: infinity is 2^128, and what is negative or no number is no weight.
Weight split(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  if (bits > 0x7F800000u) return {0, 1};
  const int exponent = static_cast<int>(bits >> 23);
  const uint32_t fraction = bits & 0x7FFFFF;
  return exponent > 0 ? Weight{fraction | 0x800000, exponent} : Weight{fraction, 1};
}

class RowTable {
 public:
  // `table` has two words a cell. Returns the number of edges with a weight.
  int32_t build(const float* weights, int64_t degree, uint32_t* table) {
    degree_ = degree;
    units_.resize(static_cast<std::size_t>(degree));
    const int32_t count = split_units(weights);
    if (count == 0) {
      for (int64_t i = 0; i < degree; ++i) set(table, i, kCell, i);
    } else {
      fill_cells(table);
    }
    return count;
  }

 private:
  int32_t split_units(const float* weights) {
    int32_t count = 0;
    int highest = 0;
    for (int64_t i = 0; i < degree_; ++i) {
      const Weight weight = split(weights[i]);
      if (weight.mantissa == 0) continue;
      ++count;
      highest = std::max(highest, weight.exponent + bit_length(weight.mantissa));
    }
    if (count == 0) return 0;
    const int up = kSumBits - bit_length(static_cast<uint64_t>(degree_)) - highest;
    uint64_t total = 0;
    for (int64_t i = 0; i < degree_; ++i) {
      const Weight weight = split(weights[i]);
      const int shift = up + weight.exponent;
      const uint64_t mantissa = weight.mantissa;
      units_[i] = shift >= 0 ? mantissa << shift : shift > -24 ? mantissa >> -shift : 0;
      total += units_[i];
    }
    const uint64_t shared = kCell * static_cast<uint64_t>(degree_) - static_cast<uint64_t>(count);
    // The remainder of T S by W: what is added to it at an edge is the edge's, less the remainder.
    uint64_t rest = 0;
    for (int64_t i = 0; i < degree_; ++i) {
      if (split(weights[i]).mantissa == 0) continue;  // units_[i] is 0
      const unsigned __int128 sum = static_cast<unsigned __int128>(shared) * units_[i] + rest;
      const uint64_t quotient = static_cast<uint64_t>(sum / total);
      rest = static_cast<uint64_t>(sum) - quotient * total;
      units_[i] = quotient + 1;
    }
    return count;
  }

  int64_t next(int64_t from, bool large) const {
    while (from < degree_ && (units_[from] >= kCell) != large) ++from;
    return from;
  }

  void fill_cells(uint32_t* table) const {
    int64_t small = next(0, false), large = next(0, true);
    uint64_t left = units_[large];  // there is one: the mean is a cell
    for (;;) {
      if (left < kCell) {
        const int64_t other = next(large + 1, true);
        set(table, large, left, other);
        left = units_[other] - (kCell - left);
        large = other;
      } else if (small < degree_) {
        set(table, small, units_[small], large);
        left -= kCell - units_[small];
        small = next(small + 1, false);
      } else {
        break;
      }
    }
    // A cell is left for each of the others.
    for (; large < degree_; large = next(large + 1, true)) set(table, large, kCell, large);
  }

  // A whole cell's threshold is 0 by its low word, and its alias is itself.
  static void set(uint32_t* table, int64_t cell, uint64_t threshold, int64_t alias) {
    table[2 * cell] = static_cast<uint32_t>(threshold);
    table[2 * cell + 1] = static_cast<uint32_t>(alias);
  }

  int64_t degree_ = 0;
  std::vector<uint64_t> units_;
};

}  // namespace

template <class Index>
void build_alias_table(const Index* row_offsets, int64_t num_rows, const float* weights,
                       int num_threads, uint32_t* table, int32_t* counts) {
  const int64_t edges = row_offsets[num_rows];
  const int64_t items = std::max<int64_t>(1, std::max(edges, num_rows) / kEdgesPerItem);
  // The rows that begin at an item's edges or, beyond the last edge, empty ones.
  const auto first_row = [&](int64_t item) {
    if (item == items) return num_rows;
    const Index edge = static_cast<Index>(edges * item / items);
    return std::lower_bound(row_offsets, row_offsets + num_rows, edge) - row_offsets;
  };
  parallel_items(items, num_threads, [&](int64_t item) {
    RowTable row;
    const int64_t end = first_row(item + 1);
    for (int64_t i = first_row(item); i < end; ++i) {
      const int64_t begin = row_offsets[i];
      counts[i] = row.build(weights + begin, row_offsets[i + 1] - begin, table + 2 * begin);
    }
  });
}

template void build_alias_table(const int32_t*, int64_t, const float*, int, uint32_t*, int32_t*);
template void build_alias_table(const int64_t*, int64_t, const float*, int, uint32_t*, int32_t*);

}  // namespace jaxgnn::host
