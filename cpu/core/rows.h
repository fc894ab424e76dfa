// How the kernels walk a CSR and share it out: work items of equal cost in edges and rows.
//
// Included by translation units that are compiled for several instruction sets: everything here is
// in an anonymous namespace, so that no two of them share code.
#pragma once

#include <cstdint>

#include "common/rows.h"
#include "cpu/core/executor.h"
#include "cpu/core/simd.h"

namespace jaxgnn {
namespace {

// Calls f(T{}) for the run-time type.
template <class F>
JAXGNN_INLINE void with_type(Type type, const F& f) {
  switch (type) {
    case Type::kF32:
      return f(float{});
    case Type::kBF16:
      return f(bfloat16{});
    case Type::kF16:
      return f(float16{});
    case Type::kF64:
      return f(double{});
  }
}

template <class F>
void parallel_for(const Executor& executor, int64_t items, const F& body) {
  if (items == 1) {
    body(int64_t{0});
  } else if (items > 1) {
    executor.run(
        executor.self, items,
        [](void* data, int64_t item) { (*static_cast<const F*>(data))(item); },
        const_cast<F*>(&body));
  }
}

// Offsets are clamped to the edges, whatever the operand holds.
JAXGNN_INLINE int64_t row_begin(const Rows& csr, int64_t row) {
  const int64_t offset = csr.wide_offsets ? static_cast<const int64_t*>(csr.offsets)[row]
                                          : static_cast<const int32_t*>(csr.offsets)[row];
  return min_of(max_of(offset, 0), csr.num_edges);
}

JAXGNN_INLINE int64_t column_of(const Rows& csr, int64_t edge) {
  if (csr.columns == nullptr) return edge;
  return csr.wide_columns ? static_cast<const int64_t*>(csr.columns)[edge]
                          : static_cast<const int32_t*>(csr.columns)[edge];
}

// The graph's edge at a place of the rows.
template <class Args>
JAXGNN_INLINE int64_t edge_number(const Args& args, int64_t place) {
  if (args.permutation == nullptr) return place;
  return args.wide_permutation ? static_cast<const int64_t*>(args.permutation)[place]
                               : static_cast<const int32_t*>(args.permutation)[place];
}

// Rows longer than this are processed in chunks. Without a table, none is.
JAXGNN_INLINE int64_t longest_whole_row(const Rows& csr) {
  return csr.num_chunks > 0 ? csr.chunk_length : csr.num_edges;
}

// The first row that begins at or after `unit`, where every row and every edge is one unit.
inline int64_t row_at(const Rows& csr, int64_t unit) {
  int64_t low = 0, high = csr.num_rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (row_begin(csr, middle) + middle < unit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The row that holds `edge`: the last one that begins at or before it.
inline int64_t row_of(const Rows& csr, int64_t edge) {
  int64_t low = 0, high = csr.num_rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (row_begin(csr, middle) <= edge) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low > 0 ? low - 1 : 0;
}

// Writes the row of each of the edges [begin, end), of which the first is in `row` or a later one;
// returns the row of the last. Edges that no row holds count as the last row's.
inline int64_t write_row_ids(const Rows& csr, int64_t row, int64_t begin, int64_t end,
                             int32_t* out) {
  constexpr int kIds = kVectorBytes / static_cast<int>(sizeof(int32_t));
  for (int64_t edge = begin;; ++row) {
    const bool bounded = row + 1 < csr.num_rows;
    const int64_t stop = bounded ? min_of(row_begin(csr, row + 1), end) : end;
    // What a vector has beyond the row, the next rows write: most rows are one store.
    const auto ids = Vector<int32_t, kIds>{} + static_cast<int32_t>(row);
    int64_t at = edge;
    for (; at < stop && at + kIds <= end; at += kIds) {
      std::memcpy(out + (at - begin), &ids, sizeof(ids));
    }
    for (; at < stop; ++at) out[at - begin] = static_cast<int32_t>(row);
    edge = max_of(edge, stop);
    if (edge >= end) return row;
  }
}

// The number of items to cut `units` into, each of which costs `unit_bytes`: at most 8,192 units
// for balance, at least about 10 microseconds each, so that the scheduling overhead is negligible.
inline int64_t item_count(const Executor& executor, int64_t units, int64_t unit_bytes) {
  const int64_t least = max_of((int64_t{1} << 17) / max_of(unit_bytes, 1), 64);
  const int64_t share = units / (16 * max_of(executor.threads, 1));
  const int64_t grain = max_of(min_of(share, 8192), least);
  return max_of((units + grain - 1) / grain, 1);
}

// One work item of a row reduction: the rows [first, last) without those processed in chunks, or
// the chunk [begin, end) of the row `first`, to be reduced into partials[part].
struct Work {
  int64_t first, last;
  int64_t part;  // -1: whole rows
  int64_t begin, end;
};

// The chunk that is this part; padding is one of no row.
inline Work chunk_at(const Rows& csr, int64_t part) {
  const int64_t row = csr.chunks[part].row;
  if (row < 0 || row >= csr.num_rows) return {0, 0, part, 0, 0};
  const int64_t begin = row_begin(csr, row) + csr.chunks[part].part * csr.chunk_length;
  const int64_t end = min_of(begin + csr.chunk_length, row_begin(csr, row + 1));
  return {row, row + 1, part, begin, end};
}

// Calls body(slice, work) for all rows and parts of every slice, one slice after the other, so that
// what the threads gather from at a time is one slice of the features. `edge_bytes` is the cost of
// an edge in a slice.
template <class F>
void over_rows(const Rows& csr, const Executor& executor, int64_t slices, int64_t edge_bytes,
               const F& body) {
  const int64_t units = csr.num_edges + csr.num_rows;
  const int64_t blocks = item_count(executor, units, edge_bytes);
  const int64_t items = blocks + csr.num_chunks;
  parallel_for(executor, items * slices, [&](int64_t item) {
    const int64_t slice = item / items;
    const int64_t part = item % items;
    if (part >= csr.num_chunks) {
      const int64_t block = part - csr.num_chunks;
      const int64_t first = row_at(csr, units * block / blocks);
      const int64_t last =
          block + 1 == blocks ? csr.num_rows : row_at(csr, units * (block + 1) / blocks);
      if (first < last) body(slice, Work{first, last, -1, 0, 0});
      return;
    }
    const Work work = chunk_at(csr, part);
    if (work.first < work.last) body(slice, work);
  });
}

// Calls body(row, first, last) for every row that was taken in the parts [first, last).
template <class F>
void over_chunked_rows(const Rows& csr, const Executor& executor, const F& body) {
  parallel_for(executor, csr.num_chunks, [&](int64_t first) {
    const int64_t row = csr.chunks[first].row;
    if (row < 0 || row >= csr.num_rows || csr.chunks[first].part != 0) return;
    int64_t last = first + 1;
    while (last < csr.num_chunks && csr.chunks[last].row == row) ++last;
    body(row, first, last);
  });
}

// Adds the partial sums [first, last) of a row, each of `width` values, into the first one.
template <class A>
A* sum_parts(A* parts, int64_t width, int64_t first, int64_t last) {
  A* sums = parts + first * width;
  for (int64_t part = first + 1; part < last; ++part) {
    for (int64_t f = 0; f < width; ++f) sums[f] += parts[part * width + f];
  }
  return sums;
}

// Whether what narrow rows are gathered from stays in a cache so near that the loads of several
// edges at once hide its latency, and prefetches only cost.
inline bool stays_near(int64_t columns, int64_t row_bytes) {
  return row_bytes <= 32 && columns * row_bytes <= int64_t{1} << 20;
}

// Prefetch distance in edges of `bytes` each: 8 KiB in flight hide the memory latency and leave
// most of the L1 cache free.
constexpr int64_t prefetch_distance(int64_t edge_bytes) {
  return edge_bytes >= 2048 ? 4 : edge_bytes <= 256 ? 32 : 8192 / edge_bytes;
}

// Periodically prefetches the beginnings of the rows of x that several edges from e + distance on
// will read, at once, so that their TLB misses overlap.
template <class T>
JAXGNN_INLINE void prefetch_beginnings(const Rows& csr, int64_t e, int64_t distance, const T* x,
                                       int64_t width) {
  constexpr int64_t kTogether = 8;
  const int64_t first = e + distance + kTogether;
  if (e % kTogether != 0 || first + kTogether > csr.num_edges) return;
  if (csr.wide_columns) {
    for (int64_t i = 0; i < kTogether; ++i)
      __builtin_prefetch(x + column_of(csr, first + i) * width);
    return;
  }
  const int32_t* indices = static_cast<const int32_t*>(csr.columns) + first;
  JAXGNN_UNROLL
  for (int64_t i = 0; i < kTogether; ++i) __builtin_prefetch(x + indices[i] * width);
}

// Called before edge e is read: prefetches the `bytes` of x of an edge at the prefetch distance.
template <class T>
JAXGNN_INLINE void prefetch_ahead(const Rows& csr, int64_t e, const T* x, int64_t width,
                                  int64_t bytes) {
  const int64_t distance = prefetch_distance(bytes);
  prefetch_beginnings(csr, e, distance, x, width);
  const T* row = x + column_of(csr, min_of(e + distance, csr.num_edges - 1)) * width;
  const char* begin = reinterpret_cast<const char*>(row);
  for (int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(begin + offset);
  __builtin_prefetch(begin + bytes - 1);  // the last line, if the row does not begin with one
}

// Prefetches a constant number of bytes, unrolled.
template <int64_t kBytes, class T>
JAXGNN_INLINE void prefetch_bytes(const T* row) {
  const char* begin = reinterpret_cast<const char*>(row);
  JAXGNN_UNROLL
  for (int64_t offset = 0; offset < kBytes; offset += 64) __builtin_prefetch(begin + offset);
  __builtin_prefetch(begin + kBytes - 1);
}

// prefetch_ahead of a constant number of bytes.
template <int64_t kBytes, class T>
JAXGNN_INLINE void prefetch_ahead(const Rows& csr, int64_t e, const T* x, int64_t width) {
  constexpr int64_t kDistance = prefetch_distance(kBytes);
  prefetch_beginnings(csr, e, kDistance, x, width);
  prefetch_bytes<kBytes>(x + column_of(csr, min_of(e + kDistance, csr.num_edges - 1)) * width);
}

}  // namespace
}  // namespace jaxgnn
