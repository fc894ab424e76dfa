#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxgnn::host {

// Counts, or sums of weights, of the labels seen in one row: a hash table with at least two slots
// for each edge of the row, so its size depends on the row and not on the graph.
class LabelCounter {
 public:
  // Forgets what it has counted, and makes room for a row of `degree` edges or labels.
  void begin(int64_t degree) {
    for (const std::size_t place : seen_) places_[place] = {kNone, 0};
    seen_.clear();
    std::size_t size = std::max<std::size_t>(places_.size(), 16);
    while (static_cast<int64_t>(size) < 2 * degree) size *= 2;
    if (size > places_.size()) places_.assign(size, {kNone, 0});
  }
  void add(int32_t label, int32_t weight = 1) {
    const std::size_t mask = places_.size() - 1;
    std::size_t i = (static_cast<uint32_t>(label) * uint64_t{0x9E3779B97F4A7C15} >> 32) & mask;
    while (places_[i].label != label && places_[i].label != kNone) i = (i + 1) & mask;
    if (places_[i].label == kNone) {
      places_[i].label = label;
      seen_.push_back(i);
    }
    places_[i].count += weight;
  }
  // f(label, count) for each label, in the order in which they were first seen.
  template <class F>
  void over_labels(const F& f) const {
    for (const std::size_t i : seen_) f(places_[i].label, places_[i].count);
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Place {
    int32_t label;
    int32_t count;
  };
  std::vector<Place> places_;
  std::vector<std::size_t> seen_;
};

}  // namespace jaxgnn::host
