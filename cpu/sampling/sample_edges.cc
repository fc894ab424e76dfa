// Which edges each row takes. Integer arithmetic alone: compiled once, for no instruction set.
#include <algorithm>

#include "cpu/core/rows.h"
#include "cpu/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

// The words of a row one after the other: four are a block.
class RowWords {
 public:
  RowWords(uint32_t id, const uint32_t* key) : id_(id), key_(key) {}

  uint32_t at(uint32_t draw) {
    if (draw / 4 != number_) {
      number_ = draw / 4;
      block_ = philox4x32({{id_, number_, 0, 1}}, key_[0], key_[1]);
    }
    return block_.words[draw % 4];
  }

  // As draw_pair.
  WordPair pair(uint32_t draw) { return {at(2 * draw), at(2 * draw + 1)}; }

 private:
  uint32_t id_;
  const uint32_t* key_;
  uint32_t number_ = 0xffffffffu;  // of no block
  PhiloxWords block_ = {};
};

// The columns of drawn edges lie anywhere: each is prefetched when its edge is drawn, and read when
// others have been.
class Columns {
 public:
  explicit Columns(const SampleArgs& args) : args_(args) {}

  ~Columns() {
    for (uint64_t i = count_ < kAhead ? 0 : count_ - kAhead; i < count_; ++i) write(i);
  }

  void put(int64_t place, int64_t edge) {
    if (args_.rows.columns == nullptr) {
      args_.columns[place] = static_cast<int32_t>(edge);
      return;
    }
    if (count_ >= kAhead) write(count_);
    const int64_t width = args_.rows.wide_columns ? 8 : 4;
    __builtin_prefetch(static_cast<const char*>(args_.rows.columns) + edge * width);
    places_[count_ % kAhead] = place;
    edges_[count_++ % kAhead] = edge;
  }

 private:
  static constexpr uint64_t kAhead = 32;

  void write(uint64_t i) const {
    const int64_t column = column_of(args_.rows, edges_[i % kAhead]);
    args_.columns[places_[i % kAhead]] = static_cast<int32_t>(column);
  }

  const SampleArgs& args_;
  uint64_t count_ = 0;
  int64_t places_[kAhead], edges_[kAhead];
};

struct Output {
  const SampleArgs& args;
  int64_t begin;  // of the row
  Columns& columns;

  void put(int64_t place, int64_t edge) const {
    const int64_t e = begin + edge;
    if (args.columns != nullptr) columns.put(place, e);
    if (args.edges == nullptr) return;
    if (args.wide_edges) {
      static_cast<int64_t*>(args.edges)[place] = e;
    } else {
      static_cast<int32_t*>(args.edges)[place] = static_cast<int32_t>(e);
    }
  }
};

// The cells of alias tables lie anywhere, too: each is prefetched when it is drawn.
class Cells {
 public:
  Cells(const SampleArgs& args, Columns& columns) : args_(args), columns_(columns) {}

  ~Cells() {
    for (uint64_t i = count_ < kAhead ? 0 : count_ - kAhead; i < count_; ++i) write(i);
  }

  void put(int64_t place, WordPair pair, int64_t begin, uint32_t d) {
    if (count_ >= kAhead) write(count_);
    __builtin_prefetch(args_.alias_table + begin + below(pair.first, d));
    draws_[count_++ % kAhead] = {place, begin, pair, d};
  }

 private:
  static constexpr uint64_t kAhead = 32;

  struct Draw {
    int64_t place, begin;
    WordPair pair;
    uint32_t d;
  };

  void write(uint64_t i) const {
    const Draw& draw = draws_[i % kAhead];
    Output{args_, draw.begin, columns_}.put(draw.place,
                                            edge_of_pair(args_, draw.pair, draw.begin, draw.d));
  }

  const SampleArgs& args_;
  Columns& columns_;
  uint64_t count_ = 0;
  Draw draws_[kAhead];
};

void fill(const SampleArgs& args, int64_t first, int64_t last) {
  if (args.columns != nullptr) std::fill(args.columns + first, args.columns + last, 0);
  if (args.edges == nullptr) return;
  if (args.wide_edges) {
    int64_t* edges = static_cast<int64_t*>(args.edges);
    std::fill(edges + first, edges + last, args.rows.num_edges);
  } else {
    int32_t* edges = static_cast<int32_t*>(args.edges);
    std::fill(edges + first, edges + last, static_cast<int32_t>(args.rows.num_edges));
  }
}

// Floyd's algorithm: for j = d - k ... d - 1 a number below j + 1, or j if that is taken. Source:
// Bentley and Floyd, "A sample of brilliance" (CACM 30, 1987).
class Floyd {
 public:
  Floyd() { std::fill(table_, table_ + kSlots, kFree); }

  void take(const Sample& sample, uint32_t id, uint32_t d, uint32_t k, const Output& out,
            int64_t place) {
    RowWords words(id, sample.key);
    if (k <= kFew) {
      for (uint32_t i = 0; i < k; ++i) {
        const uint32_t j = d - k + i;
        const uint32_t t = below(words.at(i), j + 1);
        bool repeated = false;
        for (uint32_t other = 0; other < i; ++other) repeated |= taken_[other] == t;
        taken_[i] = repeated ? j : t;
        out.put(place + i, taken_[i]);
      }
      return;
    }
    for (uint32_t i = 0; i < k; ++i) {
      const uint32_t j = d - k + i;
      const uint32_t t = below(words.at(i), j + 1);
      const uint32_t edge = insert(t) ? t : j;
      if (edge != t) insert(j);
      taken_[i] = edge;
      out.put(place + i, edge);
    }
    for (uint32_t i = 0; i < k; ++i) remove(taken_[i]);
  }

 private:
  static constexpr uint32_t kFew = 16;  // comparing them takes less time than a table
  static constexpr uint32_t kSlots = 2 * kMostEdges;
  static constexpr uint32_t kFree = 0xffffffffu;

  static uint32_t slot_of(uint32_t value) { return (value * 0x9E3779B1u) >> 19; }
  static_assert(kSlots == 1u << 13, "slot_of has 13 bits");

  // Whether it was not there.
  bool insert(uint32_t value) {
    uint32_t slot = slot_of(value);
    while (table_[slot] != kFree) {
      if (table_[slot] == value) return false;
      slot = (slot + 1) % kSlots;
    }
    table_[slot] = value;
    return true;
  }

  // All are removed together: chains need not be kept.
  void remove(uint32_t value) {
    uint32_t slot = slot_of(value);
    for (uint32_t tries = 0; table_[slot] != value; ++tries, slot = (slot + 1) % kSlots) {
      if (tries == kSlots) return;
    }
    table_[slot] = kFree;
  }

  uint32_t table_[kSlots];
  uint32_t taken_[kMostEdges];
};

// The k edges of a row whose words are the smallest, of equal ones the first: a heap of those so
// far with the largest on top. They come in the order of the row.
class Smallest {
 public:
  uint32_t take(const SampleArgs& args, uint32_t id, int64_t begin, uint32_t d, uint32_t k,
                const Output& out, int64_t place) {
    uint32_t count = 0;
    const bool labor = args.sample.strategy == Strategy::kLabor;
    RowWords words(id, args.sample.key);
    for (uint32_t j = 0; j < d; ++j) {
      const uint32_t sender = labor ? static_cast<uint32_t>(column_of(args.rows, begin + j)) : 0;
      const uint32_t word = labor ? order_word(args, id, j, begin, sender)
                                  : race_time(words.at(j), args.log_weights[begin + j]);
      if (word == kNever && !labor) continue;
      const uint64_t entry = uint64_t{word} << 32 | j;
      if (count < k) {
        heap_[count++] = entry;
        std::push_heap(heap_, heap_ + count);
      } else if (entry < heap_[0]) {
        std::pop_heap(heap_, heap_ + count);
        heap_[count - 1] = entry;
        std::push_heap(heap_, heap_ + count);
      }
    }
    std::sort(heap_, heap_ + count,
              [](uint64_t a, uint64_t b) { return uint32_t(a) < uint32_t(b); });
    for (uint32_t i = 0; i < count; ++i) out.put(place + i, uint32_t(heap_[i]));
    return count;
  }

 private:
  uint64_t heap_[kMostEdges];
};

// What the rows of an item share.
struct Scratch {
  Floyd floyd;
  Smallest smallest;
};

constexpr int64_t kRowsAhead = 8;

// A row out of range is prefetched as any address may be.
void prefetch_bounds(const Rows& rows, int64_t row) {
  const int64_t width = rows.wide_offsets ? 8 : 4;
  __builtin_prefetch(static_cast<const char*>(rows.offsets) + row * width);
}

void sample_place(const SampleArgs& args, int64_t place, Columns& columns, Cells& cells,
                  Scratch* scratch) {
  const Rows& rows = args.rows;
  const Sample& sample = args.sample;
  const int64_t first = args.offsets[place], last = args.offsets[place + 1];
  if (first < 0 || last > args.capacity || first > last) return;
  const int64_t row = args.places == nullptr ? place : args.places[place];
  const bool inside = row >= 0 && row < rows.num_rows;
  const int64_t begin = inside ? row_begin(rows, row) : 0;
  const int64_t end = inside ? row_begin(rows, row + 1) : 0;
  const uint32_t d = static_cast<uint32_t>(max_of(end - begin, 0));
  uint32_t taken = static_cast<uint32_t>(min_of(edges_taken(sample, d), last - first));
  const uint32_t id = id_of(args, place);
  const Output out{args, begin, columns};
  if (with_replacement(sample)) {
    RowWords words(id, sample.key);
    if (sample.strategy == Strategy::kAlias) {
      for (uint32_t j = 0; j < taken; ++j) cells.put(first + j, words.pair(j), begin, d);
    } else {
      for (uint32_t j = 0; j < taken; ++j) {
        out.put(first + j, edge_of_word(args, words.at(j), begin, d));
      }
    }
  } else if (taken == d) {
    for (uint32_t j = 0; j < taken; ++j) out.put(first + j, j);
  } else if (sample.strategy == Strategy::kRandom) {
    scratch->floyd.take(sample, id, d, taken, out, first);
  } else if (takes_smallest(sample)) {
    taken = taken > 0 ? scratch->smallest.take(args, id, begin, d, taken, out, first) : 0;
  } else {
    const Steps steps = steps_of(sample, id, d);
    uint32_t edge = steps.first;
    for (uint32_t j = 0; j < taken; ++j) {
      out.put(first + j, edge);
      edge = edge >= d - steps.step ? edge - (d - steps.step) : edge + steps.step;
    }
  }
  fill(args, first + taken, last);
}

}  // namespace

void sample_edges(const SampleArgs& args, const Executor& executor) {
  const int64_t places = args.num_places;
  const int64_t items = item_count(executor, places, 64);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t first = places * item / items, last = places * (item + 1) / items;
    Columns columns(args);
    Cells cells(args, columns);
    const auto take = [&](Scratch* scratch) {
      for (int64_t place = first; place < last; ++place) {
        if (args.places != nullptr) {
          prefetch_bounds(args.rows, args.places[min_of(place + kRowsAhead, last - 1)]);
        }
        sample_place(args, place, columns, cells, scratch);
      }
    };
    if (args.sample.strategy == Strategy::kRandom || takes_smallest(args.sample)) {
      Scratch scratch;
      take(&scratch);
    } else {
      take(nullptr);
    }
  });
  const int64_t used = places > 0 ? args.offsets[places] : 0;
  fill(args, min_of(max_of(used, 0), args.capacity), args.capacity);
}

}  // namespace jaxgnn::sampling
