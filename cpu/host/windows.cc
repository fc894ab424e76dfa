#include "cpu/host/windows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpu/host/host_parallel.h"
#include "cpu/host/label_counter.h"

namespace jaxgnn::host {
namespace {

constexpr int kRounds = 4;     // of label propagation; more find few more sharers
constexpr int kTurns = 8;      // of receivers and senders, in a rectangular graph
constexpr int kBatches = 256;  // of receivers a round, which see each other's new labels
constexpr int64_t kRowGrain = 64;
constexpr int64_t kLongestPart = 1 << 15;  // entries; a window has about 10^4
constexpr int64_t kMostTerms = 1 << 12;    // edges of a receiver in a part, and its entries if more
constexpr int32_t kFewWindows = 1600;      // below which parts are cut by the time that they take
constexpr int64_t kBlocks = 264;           // that an H200 runs at once
constexpr int64_t kEntryCost = 1;          // beside an entry's edges, in edges
constexpr int64_t kLeastCost = 16'000;     // of a part, below which its start counts for more

template <class Index>
class Builder {
 public:
  // `given`: the receivers in an order whose neighbors share senders; null: `order_rows` finds one.
  Builder(const Index* row_offsets, const int32_t* senders, int32_t num_receivers,
          int32_t num_senders, int window_rows = kWindowRows, const int32_t* given = nullptr)
      : offsets_(row_offsets),
        senders_(senders),
        num_receivers_(num_receivers),
        num_senders_(num_senders),
        window_rows_(window_rows),
        num_windows_(
            static_cast<int32_t>((int64_t{num_receivers} + window_rows - 1) / window_rows)) {
    if (given != nullptr) {
      order_.assign(given, given + num_receivers);
    } else {
      order_rows();
    }
  }

  // See order_rows in the header.
  Buffer<int32_t> order() const {
    std::vector<int64_t> edges(static_cast<std::size_t>(num_windows_), 0);
    for (int64_t i = 0; i < num_receivers_; ++i) {
      edges[static_cast<std::size_t>(i / window_rows_)] +=
          degree(order_[static_cast<std::size_t>(i)]);
    }
    Buffer<int32_t> out(num_receivers_);
    int32_t* next = out.data();
    for (const int32_t w : by_falling(edges)) {
      for (int64_t i = int64_t{w} * window_rows_;
           i < std::min<int64_t>((int64_t{w} + 1) * window_rows_, num_receivers_); ++i) {
        *next++ = order_[static_cast<std::size_t>(i)];
      }
    }
    return out;
  }

  Windows build(bool with_edges) {
    if (with_edges && offsets_[num_receivers_] > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("build_windows: 2^31 edges or more");
    }
    Windows out;
    out.rows = Buffer<int32_t>(int64_t{num_windows_} * window_rows_);
    std::fill_n(std::copy(order_.begin(), order_.end(), out.rows.data()),
                out.rows.size() - num_receivers_, -1);
    const Sorted sorted = sort_windows(out);
    const std::vector<int64_t>& offsets = sorted.offsets;
    out.senders = Buffer<int32_t>(offsets.back());
    out.masks = Buffer<uint32_t>(2 * offsets.back());
    out.edges = Buffer<int32_t>(with_edges ? static_cast<int64_t>(offsets_[num_receivers_]) : 0);
    out.slots = Buffer<int32_t>(with_edges ? int64_t{num_windows_} * (window_rows_ + 1) : 0);
    std::vector<int64_t> first_edges;
    if (with_edges) first_edges = edges_before(out, sorted.windows);
    over_windows([&](int64_t begin, int64_t end) {
      Window window(num_senders_);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t w = sorted.windows[static_cast<std::size_t>(i)];
        const int64_t first = offsets[static_cast<std::size_t>(i)];
        window.collect(*this, out.rows.data() + w * window_rows_);
        window.write(out.senders.data() + first, out.masks.data() + 2 * first);
        if (with_edges) {
          window.write_edges(*this, out.rows.data() + w * window_rows_, first,
                             first_edges[static_cast<std::size_t>(i)], out.edges.data(),
                             out.slots.data() + w * (window_rows_ + 1));
        }
      }
    });
    cut(out, sorted);
    return out;
  }

 private:
  int64_t degree(int32_t row) const { return offsets_[row + 1] - offsets_[row]; }

  template <class F>
  void over_windows(const F& f) const {
    const int chunks = num_chunks(num_windows_, 4);
    parallel_for(num_windows_, chunks, [&](int64_t begin, int64_t end, int) { f(begin, end); });
  }

  // The entries of one window.
  class Window {
   public:
    explicit Window(int32_t num_senders) : place_(static_cast<std::size_t>(num_senders), -1) {}

    void collect(const Builder& b, const int32_t* rows) {
      for (const int32_t sender : senders_) place_[static_cast<std::size_t>(sender)] = -1;
      senders_.clear();
      masks_.clear();
      entries_.clear();
      for (int r = 0; r < b.window_rows_; ++r) {
        if (rows[r] < 0) continue;
        const uint64_t bit = uint64_t{1} << r;
        for (Index e = b.offsets_[rows[r]]; e < b.offsets_[rows[r] + 1]; ++e) {
          int32_t& place = place_[static_cast<std::size_t>(b.senders_[e])];
          // A repeated edge finds its bit set and starts a new entry, which takes the sender over.
          if (place < 0 || (masks_[static_cast<std::size_t>(place)] & bit) != 0) {
            place = static_cast<int32_t>(senders_.size());
            senders_.push_back(b.senders_[e]);
            masks_.push_back(0);
          }
          masks_[static_cast<std::size_t>(place)] |= bit;
          entries_.push_back(place);
        }
      }
    }
    int64_t size() const { return static_cast<int64_t>(senders_.size()); }
    int64_t num_edges() const { return static_cast<int64_t>(entries_.size()); }

    // By falling number of edges (a counting sort, stable).
    void write(int32_t* senders, uint32_t* masks) const {
      Places place = count();
      int64_t total = 0;
      for (int64_t& p : place) total += std::exchange(p, total);
      for (std::size_t i = 0; i < senders_.size(); ++i) {
        const int64_t to = place[key(masks_[i])]++;
        senders[to] = senders_[i];
        masks[2 * to] = static_cast<uint32_t>(masks_[i]);
        masks[2 * to + 1] = static_cast<uint32_t>(masks_[i] >> 32);
      }
    }

    // The edges in the order in which `write` leaves the entries, which begin at `first_entry`; the
    // edges' places begin at `first_edge`.
    void write_edges(const Builder& b, const int32_t* rows, int64_t first_entry, int64_t first_edge,
                     int32_t* edges, int32_t* slots) {
      Places place = count();
      int64_t entry = first_entry, slot = first_edge;
      for (std::size_t i = 0; i < place.size(); ++i) {
        const int64_t size = kWindowRows - static_cast<int64_t>(i), entries = place[i];
        if (size <= b.window_rows_) {
          slots[size] = static_cast<int32_t>(static_cast<uint32_t>(slot - size * entry));
        }
        place[i] = slot;
        slot += size * entries;
        entry += entries;
      }
      slots_.clear();
      for (const uint64_t mask : masks_) {
        slots_.push_back(place[key(mask)]);
        place[key(mask)] += __builtin_popcountll(mask);
      }
      // As collected: by receiver, so that an entry's edges come in the order of its bits.
      std::size_t i = 0;
      for (int r = 0; r < b.window_rows_; ++r) {
        if (rows[r] < 0) continue;
        for (Index e = b.offsets_[rows[r]]; e < b.offsets_[rows[r] + 1]; ++e, ++i) {
          edges[slots_[static_cast<std::size_t>(entries_[i])]++] = static_cast<int32_t>(e);
        }
      }
    }

   private:
    // For entries by falling number of edges, as many places as there are such numbers.
    using Places = std::array<int64_t, kWindowRows + 1>;
    static std::size_t key(uint64_t mask) {
      return static_cast<std::size_t>(kWindowRows - __builtin_popcountll(mask));
    }
    Places count() const {
      Places entries{};
      for (const uint64_t mask : masks_) ++entries[key(mask)];
      return entries;
    }

    std::vector<int32_t> place_;  // of a sender's entry, or -1
    std::vector<int32_t> senders_;
    std::vector<uint64_t> masks_;
    std::vector<int32_t> entries_;  // of each edge, as collected
    std::vector<int64_t> slots_;    // where each entry's next edge goes
  };

  // The number of edges of the windows before each of these.
  std::vector<int64_t> edges_before(const Windows& out, const std::vector<int32_t>& windows) const {
    std::vector<int64_t> before;
    int64_t total = 0;
    for (const int32_t w : windows) {
      before.push_back(total);
      for (int r = 0; r < window_rows_; ++r) {
        const int32_t row = out.rows[int64_t{w} * window_rows_ + r];
        if (row >= 0) total += degree(row);
      }
    }
    return before;
  }

  // Receivers by label, then by falling degree.
  void order_rows() {
    const std::vector<int32_t> labels = propagate_labels();
    order_.resize(static_cast<std::size_t>(num_receivers_));
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      const int32_t la = labels[static_cast<std::size_t>(a)];
      const int32_t lb = labels[static_cast<std::size_t>(b)];
      return la != lb ? la < lb : degree(a) > degree(b);
    });
  }

  // Each node takes the label that most of its neighbors have, large labels discounted by the root
  // of their size so that none floods the graph. Raghavan et al., Phys. Rev. E 76 (2007). In a
  // rectangular graph receivers and senders take labels from each other in turn.
  std::vector<int32_t> propagate_labels() const {
    const std::size_t n = static_cast<std::size_t>(num_senders_);
    std::vector<int32_t> labels(n), sizes(n, 1);
    std::iota(labels.begin(), labels.end(), 0);
    if (num_receivers_ == num_senders_) {
      for (int round = 0; round < kRounds; ++round) {
        spread(offsets_, senders_, num_receivers_, labels, labels, sizes);
      }
      return labels;
    }
    std::vector<int32_t> of_receivers(static_cast<std::size_t>(num_receivers_), -1);
    const Transpose transpose = make_transpose();
    for (int round = 0; round < kTurns; ++round) {
      spread(offsets_, senders_, num_receivers_, labels, of_receivers, sizes);
      if (round + 1 == kTurns) break;
      spread(transpose.offsets.data(), transpose.receivers.data(), num_senders_, of_receivers,
             labels, sizes);
    }
    return of_receivers;
  }

  // One round: each of the rows takes a label of its columns. `sizes`: the rows with each label.
  template <class Offset>
  void spread(const Offset* offsets, const int32_t* columns, int32_t num_rows,
              const std::vector<int32_t>& of_columns, std::vector<int32_t>& of_rows,
              std::vector<int32_t>& sizes) const {
    std::vector<int32_t> next(static_cast<std::size_t>(num_rows));
    const int64_t batch = std::max<int64_t>((num_rows + kBatches - 1) / kBatches, 1);
    for (int64_t first = 0; first < num_rows; first += batch) {
      const int64_t size = std::min<int64_t>(batch, num_rows - first);
      const int chunks = num_chunks(size, kRowGrain);
      parallel_for(size, chunks, [&](int64_t begin, int64_t end, int) {
        LabelCounter counter;
        for (int64_t i = first + begin; i < first + end; ++i) {
          counter.begin(static_cast<int64_t>(offsets[i + 1] - offsets[i]));
          for (Offset e = offsets[i]; e < offsets[i + 1]; ++e) {
            counter.add(of_columns[static_cast<std::size_t>(columns[e])]);
          }
          next[static_cast<std::size_t>(i)] =
              best_label(of_rows[static_cast<std::size_t>(i)], sizes, counter);
        }
      });
      for (int64_t i = first; i < first + size; ++i) {
        int32_t& label = of_rows[static_cast<std::size_t>(i)];
        if (label >= 0) --sizes[static_cast<std::size_t>(label)];
        label = next[static_cast<std::size_t>(i)];
        if (label >= 0) ++sizes[static_cast<std::size_t>(label)];
      }
    }
  }

  // A row without edges keeps its own.
  static int32_t best_label(int32_t own, const std::vector<int32_t>& sizes,
                            const LabelCounter& counter) {
    int32_t best = own;
    double best_score = 0;
    counter.over_labels([&](int32_t label, int32_t count) {
      const int32_t size = std::max(sizes[static_cast<std::size_t>(label)], 1);
      const double score = count / std::sqrt(static_cast<double>(size));
      if (score > best_score) {
        best_score = score;
        best = label;
      }
    });
    return best;
  }

  // The receivers of each sender.
  struct Transpose {
    std::vector<int64_t> offsets;
    std::vector<int32_t> receivers;
  };
  Transpose make_transpose() const {
    const int64_t num_edges = static_cast<int64_t>(offsets_[num_receivers_]);
    Transpose out{std::vector<int64_t>(static_cast<std::size_t>(num_senders_) + 1, 0),
                  std::vector<int32_t>(static_cast<std::size_t>(num_edges))};
    for (int64_t e = 0; e < num_edges; ++e) ++out.offsets[static_cast<std::size_t>(senders_[e])];
    int64_t total = 0;
    for (int64_t& offset : out.offsets) offset = total += offset;  // where each sender's end
    for (int32_t i = num_receivers_; i-- > 0;) {
      for (Index e = offsets_[i + 1]; e-- > offsets_[i];) {
        int64_t& place = out.offsets[static_cast<std::size_t>(senders_[e])];
        out.receivers[static_cast<std::size_t>(--place)] = i;
      }
    }
    return out;
  }

  // The windows sorted by descending size, ties by index.
  static std::vector<int32_t> by_falling(const std::vector<int64_t>& sizes) {
    std::vector<int32_t> windows(sizes.size());
    std::iota(windows.begin(), windows.end(), 0);
    std::stable_sort(windows.begin(), windows.end(), [&](int32_t a, int32_t b) {
      return sizes[static_cast<std::size_t>(a)] > sizes[static_cast<std::size_t>(b)];
    });
    return windows;
  }

  // The windows by descending cost, so that the longest starts first, and where the entries of each
  // begin, and the last end.
  struct Sorted {
    std::vector<int32_t> windows;
    std::vector<int64_t> offsets;
  };
  Sorted sort_windows(const Windows& out) const {
    std::vector<int64_t> sizes(static_cast<std::size_t>(num_windows_)), costs(sizes.size());
    over_windows([&](int64_t begin, int64_t end) {
      Window window(num_senders_);
      for (int64_t w = begin; w < end; ++w) {
        window.collect(*this, out.rows.data() + w * window_rows_);
        sizes[static_cast<std::size_t>(w)] = window.size();
        costs[static_cast<std::size_t>(w)] = kEntryCost * window.size() + window.num_edges();
      }
    });
    Sorted sorted{by_falling(costs), {0}};
    for (const int32_t w : sorted.windows) {
      sorted.offsets.push_back(sorted.offsets.back() + sizes[static_cast<std::size_t>(w)]);
    }
    if (sorted.offsets.back() > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("build_windows: 2^31 entries or more");
    }
    return sorted;
  }

  void cut(Windows& out, const Sorted& sorted) const {
    std::vector<int32_t> parts;
    const auto add = [&](int32_t w, int64_t begin, int64_t end, int32_t place) {
      for (const int64_t v : {int64_t{w}, begin, end}) parts.push_back(static_cast<int32_t>(v));
      parts.push_back(place);
    };
    const bool few = num_windows_ < kFewWindows;
    const std::vector<int64_t> costs = few ? costs_before(out) : std::vector<int64_t>();
    for (std::size_t i = 0; i < sorted.windows.size(); ++i) {
      const int32_t w = sorted.windows[i];
      const int64_t begin = sorted.offsets[i], end = sorted.offsets[i + 1];
      // An entry has at most one edge to a receiver.
      const int64_t longest = most_edges(out, w) > kMostTerms ? kMostTerms : kLongestPart;
      const std::vector<int64_t> ends =
          few ? cut_by_cost(costs, begin, end, longest) : cut_evenly(begin, end, longest);
      int64_t first = begin;
      for (const int64_t last : ends) {
        add(w, first, last, ends.size() == 1 ? -1 : out.num_partials++);
        first = last;
      }
    }
    out.parts = Buffer<int32_t>(static_cast<int64_t>(parts.size()));
    std::copy(parts.begin(), parts.end(), out.parts.data());
  }

  // The edges of the receiver of a window that has most.
  int64_t most_edges(const Windows& out, int32_t w) const {
    int64_t most = 0;
    for (int r = 0; r < window_rows_; ++r) {
      const int32_t row = out.rows[int64_t{w} * window_rows_ + r];
      if (row >= 0) most = std::max(most, degree(row));
    }
    return most;
  }

  // Where the parts of a window end, each of the same number of entries.
  static std::vector<int64_t> cut_evenly(int64_t begin, int64_t end, int64_t longest) {
    const int64_t size = end - begin, count = std::max<int64_t>((size + longest - 1) / longest, 1);
    std::vector<int64_t> ends;
    for (int64_t i = 1; i <= count; ++i) ends.push_back(begin + size * i / count);
    return ends;
  }

  // The same by the time that entries take, of a graph with few windows: where a GPU's blocks take
  // a window or two each, one long part would set the time of all. A part takes at most what is
  // left for each block, so that the last ones are short.
  static std::vector<int64_t> cut_by_cost(const std::vector<int64_t>& costs, int64_t begin,
                                          int64_t end, int64_t longest) {
    const auto cost = [&](int64_t e) { return costs[static_cast<std::size_t>(e)]; };
    const int64_t most = std::max((costs.back() - cost(begin)) / kBlocks, kLeastCost);
    std::vector<int64_t> ends;
    if (begin == end) ends.push_back(end);
    while (begin < end) {
      const int64_t rest = cost(end) - cost(begin);
      const int64_t wanted = cost(begin) + rest / std::max<int64_t>((rest + most - 1) / most, 1);
      const auto next = std::lower_bound(costs.begin() + begin + 1, costs.begin() + end, wanted);
      begin = std::min<int64_t>(next - costs.begin(), begin + longest);
      begin = ends.emplace_back(std::min(begin, end));
    }
    return ends;
  }

  // The cost of the entries before each, and of all.
  static std::vector<int64_t> costs_before(const Windows& out) {
    std::vector<int64_t> costs(1, 0);
    for (int64_t e = 0; e < out.senders.size(); ++e) {
      const uint64_t mask = out.masks[2 * e] | uint64_t{out.masks[2 * e + 1]} << 32;
      costs.push_back(costs.back() + kEntryCost + __builtin_popcountll(mask));
    }
    return costs;
  }

  const Index* offsets_;
  const int32_t* senders_;
  const int32_t num_receivers_;
  const int32_t num_senders_;
  const int window_rows_;
  const int32_t num_windows_;
  std::vector<int32_t> order_;
};

}  // namespace

template <class Index>
Windows build_windows(const Index* row_offsets, const int32_t* senders, int32_t num_receivers,
                      int32_t num_senders, bool with_edges, int window_rows, const int32_t* order) {
  return Builder<Index>(row_offsets, senders, num_receivers, num_senders, window_rows, order)
      .build(with_edges);
}

template <class Index>
Buffer<int32_t> order_rows(const Index* row_offsets, const int32_t* senders, int32_t num_receivers,
                           int32_t num_senders) {
  return Builder<Index>(row_offsets, senders, num_receivers, num_senders).order();
}

template Windows build_windows(const int32_t*, const int32_t*, int32_t, int32_t, bool, int,
                               const int32_t*);
template Windows build_windows(const int64_t*, const int32_t*, int32_t, int32_t, bool, int,
                               const int32_t*);
template Buffer<int32_t> order_rows(const int32_t*, const int32_t*, int32_t, int32_t);
template Buffer<int32_t> order_rows(const int64_t*, const int32_t*, int32_t, int32_t);

}  // namespace jaxgnn::host
