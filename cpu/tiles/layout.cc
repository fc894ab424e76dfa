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
    places_ = Buffer<int32_t>(num_rows_ > 0 ? offsets_[num_rows_] : 0);
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
    out.rest_edges = Buffer<int32_t>(out.rest_offsets[num_rows_]);
    const std::vector<int64_t> before = cut(batches, out);
    const int threads = num_chunks(num_windows_, kBlockWindows);
    parallel_items((num_windows_ + kBlockWindows - 1) / kBlockWindows, threads, [&](int64_t block) {
      const int64_t end = std::min((block + 1) * kBlockWindows, num_windows_);
      for (int64_t w = block * kBlockWindows; w < end; ++w) {
        const std::size_t i = static_cast<std::size_t>(w);
        write(w, batches[i], batches[i + 1], entries[i], out);
        list_edges(w, batches[i + 1] - batches[i], before[i], out);
      }
    });
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
  int64_t choose(int64_t w, WindowColumns& window, TileLayout& out) {
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
        places_[e] = number;
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
        const int32_t edge = places_[e];
        if (edge < 0) {
          out.rest_columns[next] = columns_[e];
          out.rest_edges[next++] = e;
          continue;
        }
        columns[edge] = columns_[e];
        const MaskBit at = mask_bit(r, edge % kBatchEntries);
        masks[edge / kBatchEntries * kBatchWords + at.lane] |= at.bit;
      }
    });
    for (int64_t i = entries; i < (end - first) * kBatchEntries; ++i) columns[i] = columns[i - 1];
  }

  // The first batch of piece i of `pieces`, of a window of so many.
  static int64_t piece_begin(int64_t size, int64_t i, int64_t pieces) { return size * i / pieces; }

  // Cuts the windows' batches into parts. Returns the edges in tiles before each window.
  std::vector<int64_t> cut(const std::vector<int64_t>& batches, TileLayout& out) const {
    struct Part {
      int32_t first, end, slot, window;
    };
    std::vector<Part> parts;
    std::vector<int64_t> before(1, 0);
    out.slot_offsets = Buffer<int32_t>(num_windows_ + 1);
    out.slot_offsets[0] = 0;
    for (int64_t w = 0; w < num_windows_; ++w) {
      const int64_t first = batches[static_cast<std::size_t>(w)];
      const int64_t size = batches[static_cast<std::size_t>(w) + 1] - first;
      const int64_t pieces = (size + kPartBatches - 1) / kPartBatches;
      for (int64_t i = 0; i < pieces; ++i) {
        parts.push_back({static_cast<int32_t>(first + piece_begin(size, i, pieces)),
                         static_cast<int32_t>(first + piece_begin(size, i + 1, pieces)),
                         static_cast<int32_t>(parts.size()), static_cast<int32_t>(w)});
      }
      out.slot_offsets[w + 1] = static_cast<int32_t>(parts.size());
      int64_t edges = before.back();
      over_rows(w, [&](int, int64_t place, int32_t begin, int32_t end) {
        edges += end - begin - (out.rest_offsets[place + 1] - out.rest_offsets[place]);
      });
      before.push_back(edges);
    }
    const int64_t num_parts = static_cast<int64_t>(parts.size());
    out.stage_offsets = Buffer<int32_t>(num_parts + 1);
    out.stage_offsets[0] = 0;
    for (int64_t slot = 0; slot < num_parts; ++slot) {
      const Part& part = parts[static_cast<std::size_t>(slot)];
      out.stage_offsets[slot + 1] =
          out.stage_offsets[slot] + (part.end - part.first + kStageBatches - 1) / kStageBatches;
    }
    out.edge_counts = Buffer<uint8_t>(int64_t{out.stage_offsets[num_parts]} * kTileRows);
    out.edge_offsets = Buffer<int32_t>(kRowGroups * num_parts + 1);
    out.edge_offsets[kRowGroups * num_parts] = static_cast<int32_t>(before.back());
    out.edge_entries = Buffer<uint8_t>(before.back());
    out.edges = Buffer<int32_t>(before.back());

    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return a.end - a.first > b.end - b.first;
    });
    out.parts = Buffer<int32_t>(4 * num_parts);
    int32_t* to = out.parts.data();
    for (const Part& part : parts) {
      for (const int32_t v : {part.first, part.end, part.slot, part.window}) *to++ = v;
    }
    return before;
  }

  // Lists a window's edges that are in tiles, of `size` batches.
  void list_edges(int64_t w, int64_t size, int64_t before, TileLayout& out) const {
    const int32_t first_slot = out.slot_offsets[w];
    const int64_t pieces = out.slot_offsets[w + 1] - first_slot;
    if (pieces == 0) return;
    const int32_t first_stage = out.stage_offsets[first_slot];
    const int64_t stages = out.stage_offsets[first_slot + pieces] - first_stage;
    uint8_t* const counts = out.edge_counts.data() + int64_t{first_stage} * kTileRows;
    std::fill_n(counts, stages * kTileRows, uint8_t{0});
    // f(edge, where its stage and row are in `counts`, its entry in the stage), by row.
    const auto over_edges = [&](const auto& f) {
      over_rows(w, [&](int r, int64_t, int32_t begin, int32_t end) {
        const int64_t at = r % kRowGroups * (kTileRows / kRowGroups) + r / kRowGroups;
        int64_t piece = 0;
        for (int32_t e = begin; e < end; ++e) {
          const int64_t entry = places_[e], batch = entry / kBatchEntries;
          if (entry < 0) continue;
          while (batch < piece_begin(size, piece, pieces)) --piece;
          while (batch >= piece_begin(size, piece + 1, pieces)) ++piece;
          const int64_t within = entry - piece_begin(size, piece, pieces) * kBatchEntries;
          constexpr int64_t kStageEntries = int64_t{kStageBatches} * kBatchEntries;
          const int64_t stage =
              out.stage_offsets[first_slot + piece] - first_stage + within / kStageEntries;
          f(e, stage * kTileRows + at, static_cast<uint8_t>(within % kStageEntries));
        }
      });
    };
    over_edges([&](int32_t, int64_t place, uint8_t) { ++counts[place]; });
    std::vector<int64_t> next(static_cast<std::size_t>(stages * kTileRows));
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t slot = first_slot + piece;
      for (int64_t group = 0; group < kRowGroups; ++group) {
        out.edge_offsets[slot * kRowGroups + group] = static_cast<int32_t>(before);
        for (int64_t s = out.stage_offsets[slot]; s < out.stage_offsets[slot + 1]; ++s) {
          const int64_t at = ((s - first_stage) * kRowGroups + group) * (kTileRows / kRowGroups);
          for (int64_t i = at; i < at + kTileRows / kRowGroups; ++i) {
            next[static_cast<std::size_t>(i)] = before;
            before += counts[i];
          }
        }
      }
    }
    over_edges([&](int32_t edge, int64_t place, uint8_t entry) {
      const int64_t to = next[static_cast<std::size_t>(place)]++;
      out.edges[to] = edge;
      out.edge_entries[to] = entry;
    });
  }

  const int32_t* offsets_;
  const int32_t* columns_;
  const int32_t* order_;
  const int32_t num_rows_;
  const int32_t num_columns_;
  const int32_t min_edges_;
  const int64_t num_windows_;
  Buffer<int32_t> places_;  // of each edge: its entry, counted from the window's first, or -1
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
