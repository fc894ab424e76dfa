// Receivers in windows of 64 or fewer, with what each window reads: every sender once, with a mask
// of the receivers that it has edges to. MaxK's GPU kernels read a sender's CBSR row, or reduce
// into it, once a window instead of once an edge.
//
// Plain pointers in, owned buffers out; the same result for any number of threads.
#pragma once

#include <cstdint>

#include "cpu/host/graph.h"

namespace jaxgnn::host {

constexpr int kWindowRows = 64;  // at most: a bit of a mask each

struct Windows {
  Buffer<int32_t> rows;     // [num_windows, window_rows]: the receivers in the order that groups
                            // them; -1 is padding, at the end
  Buffer<int32_t> parts;    // [num_parts, 4]: window; its entries' begin and end; place among the
                            // partial results, or -1
  Buffer<int32_t> senders;  // [num_entries]
  Buffer<uint32_t> masks;   // [num_entries, 2]: bit r: an edge to the window's receiver r
  // With edges, else empty: the graph's edge at each place, entry by entry and in an entry by
  // receiver; and for a window's entries of n edges each, n in [0, window_rows], where they lie:
  // entry e from slots[n] + n e on (modulo 2^32).
  Buffer<int32_t> edges;  // [num_edges]
  Buffer<int32_t> slots;  // [num_windows, window_rows + 1]
  int32_t num_partials = 0;
};

// Groups window_rows receivers, from 1 to 64, that share senders, so that a window's edges have few
// distinct senders: by labels spread over the graph (in a rectangular one between receivers and
// senders in turn), then by degree. Entries are sorted by the work of their window and, in a
// window, by their number of edges, both descending. A repeated edge is a separate entry.
// `order`: all receivers in an order to group them by, in place of labels and degree; or null.
//
// A window with many entries is split into parts, consecutive in `parts`, whose results are added
// (the only part of a window has no slot). This balances the load and bounds a receiver's edges in
// a part, which keeps fixed-point sums accurate.
//
// Throws std::length_error if there are 2^31 entries or more, or with edges 2^31 edges.
template <class Index>
Windows build_windows(const Index* row_offsets, const int32_t* senders, int32_t num_receivers,
                      int32_t num_senders, bool with_edges, int window_rows = kWindowRows,
                      const int32_t* order = nullptr);

// The receivers grouped in this way, the groups by descending number of edges: rows that run
// concurrently then read the same senders, and the longest rows start first.
template <class Index>
Buffer<int32_t> order_rows(const Index* row_offsets, const int32_t* senders, int32_t num_receivers,
                           int32_t num_senders);

}  // namespace jaxgnn::host
