#include "cpu/tiles/layout.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpu/host/host_parallel.h"

namespace jaxgnn::host {
namespace {

constexpr int64_t kBlockWindows = 16;  // that a thread takes at once; hubs make them unequal

// The columns of one window and which of its rows read them. Finding a column's number takes one
// access to a table over all columns: fewer than sorting would.
class WindowColumns {
 public:
  explicit WindowColumns(int32_t num_columns)
      : numbers_(static_cast<std::size_t>(num_columns), -1) {}

  void begin() {
    for (const int32_t column : columns_) numbers_[static_cast<std::size_t>(column)] = -1;
    columns_.clear();
    masks_.clear();
  }
  void add(int32_t column, int row) {
    int32_t& number = numbers_[static_cast<std::size_t>(column)];
    if (number < 0) {
      number = static_cast<int32_t>(columns_.size());
      columns_.push_back(column);
      masks_.push_back(0);
    }
    masks_[static_cast<std::size_t>(number)] |= uint64_t{1} << row;
  }
  int64_t size() const { return static_cast<int64_t>(columns_.size()); }
  int32_t column(int64_t number) const { return columns_[static_cast<std::size_t>(number)]; }
  int rows_of(int64_t number) const {
    return __builtin_popcountll(masks_[static_cast<std::size_t>(number)]);
  }
  // Of a column of the window; may be changed once all are collected.
  int32_t& number(int32_t column) { return numbers_[static_cast<std::size_t>(column)]; }

 private:
  std::vector<int32_t> numbers_;  // of each column of the graph, or -1
  std::vector<int32_t> columns_;
  std::vector<uint64_t> masks_;
};

class Layout {
 public:
  Layout(const int32_t* row_offsets, const int32_t* columns, const int32_t* order, int32_t num_rows,
         int32_t num_columns, int32_t min_edges)
      : offsets_(row_offsets),
        columns_(columns),
        order_(order),
        num_rows_(num_rows),
        num_columns_(num_columns),
        min_edges_(min_edges),
        num_windows_((int64_t{num_rows} + kTileRows - 1) / kTileRows) {}

  int64_t count_columns() const {
    std::vector<int64_t> counts(static_cast<std::size_t>(num_windows_));
    over_windows([&](int64_t w, WindowColumns& window) {
      collect(w, window);
      counts[static_cast<std::size_t>(w)] = window.size();
    });
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  TileLayout run() {
    TileLayout out;
    out.edge_places = Buffer<int32_t>(num_rows_ > 0 ? offsets_[num_rows_] : 0);
    out.rest_offsets = Buffer<int32_t>(int64_t{num_rows_} + 1);
    std::vector<int64_t> entries(static_cast<std::size_t>(num_windows_));
    std::vector<int64_t> distinct(static_cast<std::size_t>(num_windows_));
    over_windows([&](int64_t w, WindowColumns& window) {
      collect(w, window);
      distinct[static_cast<std::size_t>(w)] = window.size();
      entries[static_cast<std::size_t>(w)] = choose(w, window, out);
    });

    std::vector<int64_t> batches(1, 0);
    for (const int64_t count : entries) {
      out.num_entries += count;
      batches.push_back(batches.back() + (count + kBatchEntries - 1) / kBatchEntries);
    }
    if (batches.back() * kBatchEntries > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("tiles: 2^31 entries or more");
    }
    out.num_columns = std::accumulate(distinct.begin(), distinct.end(), int64_t{0});
    out.rest_offsets[0] = 0;
    for (int64_t place = 0; place < num_rows_; ++place) {
      out.rest_offsets[place + 1] += out.rest_offsets[place];
    }
    out.columns = Buffer<int32_t>(batches.back() * kBatchEntries);
    out.masks = Buffer<uint32_t>(batches.back() * kBatchWords);
    out.rest_columns = Buffer<int32_t>(out.rest_offsets[num_rows_]);
    const int threads = num_chunks(num_windows_, kBlockWindows);
    parallel_items((num_windows_ + kBlockWindows - 1) / kBlockWindows, threads, [&](int64_t block) {
      const int64_t end = std::min((block + 1) * kBlockWindows, num_windows_);
      for (int64_t w = block * kBlockWindows; w < end; ++w) {
        const std::size_t i = static_cast<std::size_t>(w);
        write(w, batches[i], batches[i + 1], entries[i], out);
      }
    });
    cut(batches, out);
    return out;
  }

 private:
  // f(window, scratch) for each window; a thread's scratch takes 4 bytes a column.
  template <class F>
  void over_windows(const F& f) const {
    const int threads = num_chunks(num_windows_, kBlockWindows);
    const int64_t blocks = (num_windows_ + kBlockWindows - 1) / kBlockWindows;
    std::atomic<int64_t> next{0};
    parallel(threads, [&](int) {
      WindowColumns window(num_columns_);
      for (int64_t block = next++; block < blocks; block = next++) {
        const int64_t end = std::min((block + 1) * kBlockWindows, num_windows_);
        for (int64_t w = block * kBlockWindows; w < end; ++w) f(w, window);
      }
    });
  }

  // f(row of the window, place, first edge, end) for each row of a window.
  template <class F>
  void over_rows(int64_t w, const F& f) const {
    const int64_t end = std::min<int64_t>((w + 1) * kTileRows, num_rows_);
    for (int64_t place = w * kTileRows; place < end; ++place) {
      const int32_t row = order_[place];
      f(static_cast<int>(place % kTileRows), place, offsets_[row], offsets_[row + 1]);
    }
  }

  void collect(int64_t w, WindowColumns& window) const {
    window.begin();
    over_rows(w, [&](int r, int64_t, int32_t begin, int32_t end) {
      for (int32_t e = begin; e < end; ++e) window.add(columns_[e], r);
    });
  }

  // Chooses the window's entries and returns their number. Edges get their entry, counted from the
  // window's first, or -1; rows the number of their other edges.
  int64_t choose(int64_t w, WindowColumns& window, TileLayout& out) const {
    std::vector<std::pair<int, int32_t>> shared;  // rows, column
    for (int64_t i = 0; i < window.size(); ++i) {
      if (window.rows_of(i) >= min_edges_) shared.emplace_back(window.rows_of(i), window.column(i));
    }
    if (const std::size_t last = shared.size() % kBatchEntries; last != 0) {
      // Columns are distinct, so there are no ties: most rows first, then by column.
      const auto middle = shared.end() - static_cast<std::ptrdiff_t>(last);
      std::nth_element(shared.begin(), middle, shared.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
      });
      int64_t edges = 0;
      for (auto i = middle; i != shared.end(); ++i) edges += i->first;
      if (edges < int64_t{kBatchEntries} * min_edges_) shared.erase(middle, shared.end());
    }
    // Ascending columns: windows that run concurrently then read the same ones.
    std::sort(shared.begin(), shared.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
    for (int64_t i = 0; i < window.size(); ++i) window.number(window.column(i)) = -1;
    for (std::size_t i = 0; i < shared.size(); ++i) {
      window.number(shared[i].second) = static_cast<int32_t>(i);
    }
    std::vector<uint64_t> seen(shared.size(), 0);
    over_rows(w, [&](int r, int64_t place, int32_t begin, int32_t end) {
      const uint64_t bit = uint64_t{1} << r;
      int32_t rest = 0;
      for (int32_t e = begin; e < end; ++e) {
        int32_t number = window.number(columns_[e]);
        if (number >= 0 && (seen[static_cast<std::size_t>(number)] & bit) != 0) number = -1;
        if (number >= 0) seen[static_cast<std::size_t>(number)] |= bit;
        out.edge_places[e] = number;
        rest += number < 0;
      }
      out.rest_offsets[place + 1] = rest;
    });
    return static_cast<int64_t>(shared.size());
  }

  void write(int64_t w, int64_t first, int64_t end, int64_t entries, TileLayout& out) const {
    int32_t* const columns = out.columns.data() + first * kBatchEntries;
    uint32_t* const masks = out.masks.data() + first * kBatchWords;
    std::fill_n(masks, (end - first) * kBatchWords, uint32_t{0});
    over_rows(w, [&](int r, int64_t place, int32_t begin, int32_t row_end) {
      int32_t next = out.rest_offsets[place];
      for (int32_t e = begin; e < row_end; ++e) {
        int32_t& edge = out.edge_places[e];
        if (edge < 0) {
          out.rest_columns[next] = columns_[e];
          edge = -1 - next++;
          continue;
        }
        columns[edge] = columns_[e];
        const MaskBit at = mask_bit(r, edge % kBatchEntries);
        masks[edge / kBatchEntries * kBatchWords + at.lane] |= at.bit;
        edge += static_cast<int32_t>(first * kBatchEntries);
      }
    });
    for (int64_t i = entries; i < (end - first) * kBatchEntries; ++i) columns[i] = columns[i - 1];
  }

  void cut(const std::vector<int64_t>& batches, TileLayout& out) const {
    struct Part {
      int32_t first, end, slot, window;
    };
    std::vector<Part> parts;
    out.slot_offsets = Buffer<int32_t>(num_windows_ + 1);
    out.slot_offsets[0] = 0;
    for (int64_t w = 0; w < num_windows_; ++w) {
      const int64_t first = batches[static_cast<std::size_t>(w)];
      const int64_t size = batches[static_cast<std::size_t>(w) + 1] - first;
      const int64_t pieces = (size + kPartBatches - 1) / kPartBatches;
      for (int64_t i = 0; i < pieces; ++i) {
        parts.push_back({static_cast<int32_t>(first + size * i / pieces),
                         static_cast<int32_t>(first + size * (i + 1) / pieces),
                         static_cast<int32_t>(parts.size()), static_cast<int32_t>(w)});
      }
      out.slot_offsets[w + 1] = static_cast<int32_t>(parts.size());
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return a.end - a.first > b.end - b.first;
    });
    out.parts = Buffer<int32_t>(4 * static_cast<int64_t>(parts.size()));
    int32_t* to = out.parts.data();
    for (const Part& part : parts) {
      for (const int32_t v : {part.first, part.end, part.slot, part.window}) *to++ = v;
    }
  }

  const int32_t* offsets_;
  const int32_t* columns_;
  const int32_t* order_;
  const int32_t num_rows_;
  const int32_t num_columns_;
  const int32_t min_edges_;
  const int64_t num_windows_;
};

}  // namespace

TileLayout lay_out_tiles(const int32_t* row_offsets, const int32_t* columns, const int32_t* order,
                         int32_t num_rows, int32_t num_columns, int32_t min_edges) {
  return Layout(row_offsets, columns, order, num_rows, num_columns, min_edges).run();
}

int64_t count_window_columns(const int32_t* row_offsets, const int32_t* columns,
                             const int32_t* order, int32_t num_rows, int32_t num_columns) {
  return Layout(row_offsets, columns, order, num_rows, num_columns, 1).count_columns();
}

}  // namespace jaxgnn::host
