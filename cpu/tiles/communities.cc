#include "cpu/tiles/communities.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/host/host_parallel.h"
#include "cpu/host/label_counter.h"
#include "cpu/tiles/layout.h"

namespace jaxgnn::host {
namespace {

constexpr int kRounds = 8;          // in which every node may move; more find few more sharers
constexpr std::size_t kLevels = 3;  // of communities of communities
constexpr int kBatches = 256;       // of nodes a round, which see each other's new labels
constexpr int64_t kNodeGrain = 64;

using Numbers = std::vector<int32_t>;

std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

// What a community keeps of its members.
struct Coarse {
  std::vector<int64_t> offsets, degrees;  // a degree counts the edges inside, too
  Numbers neighbors, weights;
};

// A graph whose nodes are rows, or communities of them.
template <class Index>
struct Level {
  const Index* offsets;
  const int32_t* neighbors;
  const int32_t* weights;  // or null: all 1
  const int64_t* degrees;
  int32_t size;

  // counter.add of the label of each neighbor but `node` itself.
  void count(int32_t node, const Numbers& labels, LabelCounter& counter) const {
    for (Index e = offsets[node]; e < offsets[node + 1]; ++e) {
      if (neighbors[e] == node) continue;
      counter.add(labels[at(neighbors[e])], weights == nullptr ? 1 : weights[e]);
    }
  }
  int64_t entries(int32_t node) const { return offsets[node + 1] - offsets[node]; }
};

// Each node moves to the neighboring community that raises modularity most, until few move. Nodes
// of a batch decide at once; it is every kBatches-th node, as neighbors often have near numbers.
// Returns communities from 0 on, in the order of their first nodes, and their number.
template <class Index>
std::pair<Numbers, int32_t> move_nodes(const Level<Index>& level) {
  const int64_t n = level.size;
  Numbers labels(at(n)), next(at(n));
  std::iota(labels.begin(), labels.end(), 0);
  std::vector<int64_t> totals(level.degrees, level.degrees + n);
  const double all = static_cast<double>(std::accumulate(totals.begin(), totals.end(), int64_t{0}));

  const auto best = [&](int32_t node, LabelCounter& counter) {
    counter.begin(level.entries(node));
    level.count(node, labels, counter);
    const int32_t own = labels[at(node)];
    const auto degree = static_cast<double>(level.degrees[node]);
    const double expected = degree / all;  // share of a community's edges that come here by chance
    int32_t chosen = own, inside = 0;
    double score = 0;
    counter.over_labels([&](int32_t label, int32_t count) {
      if (label == own) inside = count;
    });
    score = inside - expected * (static_cast<double>(totals[at(own)]) - degree);
    counter.over_labels([&](int32_t label, int32_t count) {
      if (label == own) return;
      const double other = count - expected * static_cast<double>(totals[at(label)]);
      if (other > score) {
        score = other;
        chosen = label;
      }
    });
    return chosen;
  };

  const int64_t stride = std::min<int64_t>(kBatches, n);
  for (int round = 0; round < kRounds; ++round) {
    int64_t moved = 0;
    for (int64_t first = 0; first < stride; ++first) {
      const int64_t size = (n - first + stride - 1) / stride;
      parallel_for(size, num_chunks(size, kNodeGrain), [&](int64_t begin, int64_t end, int) {
        LabelCounter counter;
        for (int64_t k = begin; k < end; ++k) {
          const int64_t i = first + k * stride;
          next[at(i)] = best(static_cast<int32_t>(i), counter);
        }
      });
      for (int64_t i = first; i < n; i += stride) {
        if (labels[at(i)] == next[at(i)]) continue;
        totals[at(labels[at(i)])] -= level.degrees[i];
        labels[at(i)] = next[at(i)];
        totals[at(labels[at(i)])] += level.degrees[i];
        ++moved;
      }
    }
    if (moved * 200 < n) break;
  }

  Numbers number(at(n), -1);
  int32_t count = 0;
  for (int32_t& label : labels) {
    int32_t& of_label = number[at(label)];
    if (of_label < 0) of_label = count++;
    label = of_label;
  }
  return {std::move(labels), count};
}

// Sorts `order` by key, stably, by counting.
void sort_by(Numbers& order, const Numbers& keys, int64_t num_keys) {
  std::vector<int64_t> place(at(num_keys + 1), 0);
  for (const int32_t i : order) ++place[at(keys[at(i)]) + 1];
  for (int64_t k = 0; k < num_keys; ++k) place[at(k + 1)] += place[at(k)];
  Numbers sorted(order.size());
  for (const int32_t i : order) sorted[at(place[at(keys[at(i)])]++)] = i;
  order = std::move(sorted);
}

// The graph of the communities.
template <class Index>
Coarse merge(const Level<Index>& level, const Numbers& labels, int32_t num_communities) {
  Numbers members(at(level.size));
  std::iota(members.begin(), members.end(), 0);
  sort_by(members, labels, num_communities);
  std::vector<int64_t> first(at(num_communities) + 1, 0);
  for (const int32_t label : labels) ++first[at(label) + 1];
  for (int64_t c = 0; c < num_communities; ++c) first[at(c + 1)] += first[at(c)];

  Coarse out;
  out.degrees.resize(at(num_communities));
  out.offsets.assign(at(num_communities) + 1, 0);
  const int chunks = num_chunks(num_communities, 1);
  std::vector<Numbers> neighbors(at(chunks)), weights(at(chunks));
  parallel_for(num_communities, chunks, [&](int64_t begin, int64_t end, int chunk) {
    LabelCounter counter;
    for (int64_t c = begin; c < end; ++c) {
      int64_t entries = 0, degree = 0;
      for (int64_t k = first[at(c)]; k < first[at(c + 1)]; ++k) {
        entries += level.entries(members[at(k)]);
        degree += level.degrees[members[at(k)]];
      }
      out.degrees[at(c)] = degree;
      counter.begin(std::min<int64_t>(entries, num_communities));
      for (int64_t k = first[at(c)]; k < first[at(c + 1)]; ++k) {
        level.count(members[at(k)], labels, counter);
      }
      int64_t& size = out.offsets[at(c + 1)];
      counter.over_labels([&](int32_t label, int32_t count) {
        if (label == c) return;
        neighbors[at(chunk)].push_back(label);
        weights[at(chunk)].push_back(count);
        ++size;
      });
    }
  });
  for (int64_t c = 0; c < num_communities; ++c) out.offsets[at(c + 1)] += out.offsets[at(c)];
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Numbers &n = neighbors[at(chunk)], &w = weights[at(chunk)];
    out.neighbors.insert(out.neighbors.end(), n.begin(), n.end());
    out.weights.insert(out.weights.end(), w.begin(), w.end());
  }
  return out;
}

// The communities of each row, those of the finest level first, each with their number.
std::vector<std::pair<Numbers, int32_t>> communities(const Level<int32_t>& rows) {
  std::vector<std::pair<Numbers, int32_t>> levels{move_nodes(rows)};
  Coarse coarse = merge(rows, levels[0].first, levels[0].second);
  while (levels.size() < kLevels) {
    const auto& [of_row, count] = levels.back();
    const Level<int64_t> level{coarse.offsets.data(), coarse.neighbors.data(),
                               coarse.weights.data(), coarse.degrees.data(), count};
    const auto [labels, merged] = move_nodes(level);
    if (merged == count) break;
    Numbers next(of_row.size());
    for (std::size_t r = 0; r < next.size(); ++r) next[r] = labels[at(of_row[r])];
    coarse = merge(level, labels, merged);
    levels.emplace_back(std::move(next), merged);
  }
  return levels;
}

}  // namespace

Buffer<int32_t> order_by_communities(const int32_t* row_offsets, const int32_t* columns,
                                     int32_t num_rows) {
  std::vector<int64_t> degrees(at(num_rows));
  for (int64_t i = 0; i < num_rows; ++i) degrees[at(i)] = row_offsets[i + 1] - row_offsets[i];
  Numbers order(at(num_rows));
  std::iota(order.begin(), order.end(), 0);
  const int64_t most = num_rows == 0 ? 0 : *std::max_element(degrees.begin(), degrees.end());
  Numbers keys(at(num_rows));
  for (int64_t i = 0; i < num_rows; ++i) keys[at(i)] = static_cast<int32_t>(most - degrees[at(i)]);
  sort_by(order, keys, most + 1);
  if (most > 0) {
    const Level<int32_t> rows{row_offsets, columns, nullptr, degrees.data(), num_rows};
    for (const auto& [of_row, count] : communities(rows)) sort_by(order, of_row, count);
    // Rows without edges share nothing.
    for (int64_t i = 0; i < num_rows; ++i) keys[at(i)] = degrees[at(i)] == 0 ? 1 : 0;
    sort_by(order, keys, 2);
  }

  const int64_t whole = num_rows / kTileRows;
  std::vector<int64_t> edges(at(whole), 0);
  for (int64_t i = 0; i < whole * kTileRows; ++i)
    edges[at(i / kTileRows)] += degrees[at(order[at(i)])];
  std::vector<int64_t> windows(at(whole));
  std::iota(windows.begin(), windows.end(), int64_t{0});
  std::stable_sort(windows.begin(), windows.end(),
                   [&](int64_t a, int64_t b) { return edges[at(a)] > edges[at(b)]; });
  Buffer<int32_t> out(num_rows);
  int32_t* next = out.data();
  for (const int64_t w : windows) {
    next = std::copy_n(order.begin() + w * kTileRows, kTileRows, next);
  }
  std::copy(order.begin() + whole * kTileRows, order.end(), next);
  return out;
}

}  // namespace jaxgnn::host
