#include "cpu/tiles/translate.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpu/host/host_parallel.h"

namespace jaxgnn::host {
namespace {

constexpr int64_t kBlockEdges = 1 << 15;  // that a thread takes at a time, about

// The edges of a window sorted by column, equal columns in edge order.
class WindowSort {
 public:
  // The keys are (column << 32 | edge of the window), so that any sort of them is stable. A row
  // whose columns ascend is one run, and runs are merged in pairs: log2(rows) passes.
  const uint64_t* sort(const int32_t* columns, int64_t size) {
    resize(size);
    runs_.assign(1, 0);
    uint64_t* keys = keys_.data();
    int32_t last = std::numeric_limits<int32_t>::min();
    for (int64_t e = 0; e < size; ++e) {
      const int32_t column = columns[e];
      if (column < last) runs_.push_back(e);
      last = column;
      keys[e] = uint64_t{static_cast<uint32_t>(column)} << 32 | static_cast<uint32_t>(e);
    }
    runs_.push_back(size);
    uint64_t *from = keys_.data(), *to = other_.data();
    while (runs_.size() > 2) {
      std::size_t kept = 0;
      for (std::size_t run = 0; run + 1 < runs_.size(); run += 2) {
        const int64_t begin = runs_[run], middle = runs_[run + 1];
        const int64_t end = run + 2 < runs_.size() ? runs_[run + 2] : middle;
        merge(from + begin, from + middle, from + end, to + begin);
        runs_[kept++] = begin;
      }
      runs_[kept++] = size;
      runs_.resize(kept);
      std::swap(from, to);
    }
    return from;
  }

 private:
  // Without branches on the keys, which no processor would predict.
  static void merge(const uint64_t* a, const uint64_t* a_end, const uint64_t* b_end, uint64_t* to) {
    const uint64_t* b = a_end;
    while (a < a_end && b < b_end) {
      const uint64_t left = *a, right = *b;
      const bool take_left = left < right;
      *to++ = take_left ? left : right;
      a += take_left;
      b += !take_left;
    }
    to = std::copy(a, a_end, to);
    std::copy(b, b_end, to);
  }

  void resize(int64_t size) {
    if (static_cast<int64_t>(keys_.size()) >= size) return;
    keys_.resize(static_cast<std::size_t>(size));
    other_.resize(static_cast<std::size_t>(size));
  }

  std::vector<uint64_t> keys_;
  std::vector<uint64_t> other_;
  std::vector<int64_t> runs_;  // where they begin, and the end
};

template <class Index>
class Translator {
 public:
  Translator(const Index* row_offsets, const int32_t* columns_in, int64_t num_rows, int32_t rows,
             int32_t columns)
      : offsets_(row_offsets),
        columns_in_(columns_in),
        num_rows_(num_rows),
        rows_(rows),
        columns_(columns),
        num_windows_((num_rows + rows - 1) / rows) {}

  Translation<Index> run() {
    const int64_t num_edges = num_rows_ > 0 ? offsets_[num_rows_] : 0;
    Translation<Index> out;
    out.window_blocks = Buffer<int32_t>(num_windows_);
    out.window_blocks_before = Buffer<int32_t>(num_windows_);
    out.edge_columns = Buffer<int32_t>(num_edges);
    out.column_offsets = Buffer<Index>(num_windows_ + 1);
    // A window's columns are first written where its edges begin: they are no more than those.
    const Buffer<int32_t> sparse(num_edges);
    const int threads = num_chunks(num_edges, kBlockEdges);
    const int64_t blocks = std::max<int64_t>(num_edges / kBlockEdges, 1);
    std::vector<Counts> counts(static_cast<std::size_t>(threads), Counts(rows_));
    std::atomic<int64_t> next{0};
    parallel(threads, [&](int thread) {
      WindowSort sorter;
      Counts& count = counts[static_cast<std::size_t>(thread)];
      for (int64_t block = next++; block < blocks; block = next++) {
        // Windows that begin in the block-th part of the edges; hubs make parts of equal length
        // in windows unequal.
        const int64_t end = first_window(block + 1, blocks, num_edges);
        for (int64_t w = first_window(block, blocks, num_edges); w < end; ++w) {
          condense(w, sorter, sparse.data(), out, count);
        }
      }
    });

    out.column_offsets[0] = 0;
    for (int64_t w = 0; w < num_windows_; ++w) {
      out.column_offsets[w + 1] += out.column_offsets[w];
    }
    out.columns = Buffer<int32_t>(out.column_offsets[num_windows_]);
    parallel_for(num_windows_, threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t w = begin; w < end; ++w) {
        const int64_t first = out.column_offsets[w];
        std::copy_n(sparse.data() + edges_begin(w), out.column_offsets[w + 1] - first,
                    out.columns.data() + first);
      }
    });

    out.edge_histogram = Buffer<Index>(rows_ + int64_t{1});
    std::fill_n(out.edge_histogram.data(), rows_ + int64_t{1}, Index{0});
    for (const Counts& count : counts) {
      for (int32_t i = 0; i <= rows_; ++i) {
        out.edge_histogram[i] += static_cast<Index>(count.histogram[static_cast<std::size_t>(i)]);
      }
      out.num_entries += count.entries;
    }
    return out;
  }

 private:
  struct Counts {
    explicit Counts(int32_t rows) : histogram(static_cast<std::size_t>(rows) + 1, 0) {}
    std::vector<int64_t> histogram;
    int64_t entries = 0;
  };

  // Of a window up to num_windows: the window after the last begins where the edges end.
  int64_t edges_begin(int64_t window) const {
    return offsets_[std::min<int64_t>(window * rows_, num_rows_)];
  }

  // The first window from which on less than (blocks - block) / blocks of the edges are left.
  int64_t first_window(int64_t block, int64_t blocks, int64_t num_edges) const {
    if (block == 0) return 0;
    if (block == blocks) return num_windows_;
    const int64_t edge = num_edges / blocks * block;
    int64_t low = 0, high = num_windows_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (edges_begin(middle) < edge) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  void condense(int64_t w, WindowSort& sorter, int32_t* sparse, Translation<Index>& out,
                Counts& count) const {
    const int64_t begin = edges_begin(w), size = edges_begin(w + 1) - begin;
    if (size > std::numeric_limits<uint32_t>::max()) {
      throw std::length_error("translate: a window of 2^32 edges or more");
    }
    const uint64_t* keys = sorter.sort(columns_in_ + begin, size);
    const auto column_of = [&](int64_t i) { return static_cast<int64_t>(keys[i] >> 32); };
    int32_t* ranks = out.edge_columns.data() + begin;
    int32_t* distinct = sparse + begin;
    int32_t rank = 0, before = 0;
    int64_t uncovered = 0;  // the first column right of the blocks before
    int64_t entries = 0;
    for (int64_t i = 0; i < size; ++rank) {
      const int64_t column = column_of(i), first = i;
      distinct[rank] = static_cast<int32_t>(column);
      if (column >= uncovered) {
        ++before;
        uncovered = column + columns_;
      }
      // A column's edges come row by row; those of the row that ends at `row_end` are one entry.
      int64_t row = w * rows_, row_end = 0;
      for (bool more = true; more; ++i) {
        const int64_t e = static_cast<uint32_t>(keys[i]);
        ranks[e] = rank;
        more = i + 1 < size && column_of(i + 1) == column;
        if (e < row_end) continue;
        ++entries;
        while (more && row_end <= e) row_end = offsets_[++row] - begin;
      }
      ++count.histogram[static_cast<std::size_t>(std::min<int64_t>(i - first, rows_))];
    }
    out.window_blocks[w] = static_cast<int32_t>((int64_t{rank} + columns_ - 1) / columns_);
    out.window_blocks_before[w] = before;
    out.column_offsets[w + 1] = rank;
    count.entries += entries;
  }

  const Index* offsets_;
  const int32_t* columns_in_;
  const int64_t num_rows_;
  const int32_t rows_;
  const int32_t columns_;
  const int64_t num_windows_;
};

}  // namespace

template <class Index>
Translation<Index> translate(const Index* row_offsets, const int32_t* edge_columns_in,
                             int64_t num_rows, int32_t rows, int32_t columns) {
  return Translator<Index>(row_offsets, edge_columns_in, num_rows, rows, columns).run();
}

template Translation<int32_t> translate(const int32_t*, const int32_t*, int64_t, int32_t, int32_t);
template Translation<int64_t> translate(const int64_t*, const int32_t*, int64_t, int32_t, int32_t);

}  // namespace jaxgnn::host
