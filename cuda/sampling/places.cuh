// Places of a sample: a place's row, what is read of an edge, and where it goes.
#pragma once

#include "common/sampling.h"
#include "cuda/core/rows.cuh"

namespace jaxgnn::sampling {
namespace {

// A place's row, and where its edges go.
struct Place {
  int64_t begin;  // the row's first edge
  uint32_t degree;
  uint32_t taken;
  int32_t first, last;  // the range of the output
};

__device__ inline Place find_place(const SampleArgs& args, int64_t place) {
  Place found{0, 0, 0, 0, 0};
  if (place >= args.num_places) return found;
  const int32_t first = args.offsets[place], last = args.offsets[place + 1];
  if (first < 0 || first > last || last > args.capacity) return found;
  const int64_t row = args.places == nullptr ? place : args.places[place];
  found.first = first;
  found.last = last;
  if (row < 0 || row >= args.rows.num_rows) return found;
  const int64_t begin = load_offset(args.rows, row), end = load_offset(args.rows, row + 1);
  if (begin < 0 || end > args.rows.num_edges || begin > end) return found;
  found.begin = begin;
  found.degree = static_cast<uint32_t>(end - begin);
  found.taken = min(edges_taken(args.sample, found.degree), static_cast<uint32_t>(last - first));
  return found;
}

// An entry's edge, and its column.
struct Entry {
  int64_t edge;
  int32_t column;
};

__device__ inline Entry read_entry(const SampleArgs& args, int64_t edge, bool valid) {
  if (!valid) return {args.rows.num_edges, 0};
  const bool wanted = args.columns != nullptr;
  return {edge, wanted ? static_cast<int32_t>(load_column(args.rows, edge)) : 0};
}

__device__ inline void write_entry(const SampleArgs& args, int64_t at, const Entry& entry) {
  if (args.columns != nullptr) args.columns[at] = entry.column;
  if (args.edges == nullptr) return;
  if (args.wide_edges) {
    static_cast<int64_t*>(args.edges)[at] = entry.edge;
  } else {
    static_cast<int32_t*>(args.edges)[at] = static_cast<int32_t>(entry.edge);
  }
}

// What is left of the capacity beyond the last place, by all threads of a kernel.
__device__ inline void fill_tail(const SampleArgs& args) {
  const int64_t used = args.num_places > 0 ? args.offsets[args.num_places] : 0;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  int64_t place = (used > 0 ? used : 0) + int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; place < args.capacity; place += stride) {
    write_entry(args, place, {args.rows.num_edges, 0});
  }
}

}  // namespace
}  // namespace jaxgnn::sampling
