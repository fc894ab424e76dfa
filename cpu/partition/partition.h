// Splits the nodes of a graph into parts: restreaming greedy, and what a split costs.
//
// Memory is proportional to the nodes: edges are read where they lie, in order, so that they may be
// a mapped file. Results do not depend on the number of threads.
#pragma once

#include <cstdint>

namespace jaxgnn::host {

// Edges by receiver: row i of `senders` lists who sends to i.
template <class Index>
struct Rows {
  const int64_t* offsets;
  const Index* senders;
  int64_t num_nodes;
};

struct Balance {
  int parts;
  int64_t max_nodes;  // of a part
  int64_t max_edges;
};

// Writes the part of each node. A part exceeds `balance` only where the greedy order left no part
// with room: callers check. Throws std::invalid_argument for offsets that fall and for senders that
// are no nodes.
template <class Index>
void stream_partition(const Rows<Index>& rows, const Balance& balance, int passes, uint64_t seed,
                      int num_threads, int32_t* owner);

// Adds to halo[p * parts + q] the nodes that q owns and a row of p reads, and returns the cut: the
// edges whose sender and receiver have different owners.
template <class Index>
int64_t count_halo(const Rows<Index>& rows, const int32_t* owner, int parts, int num_threads,
                   int64_t* halo);

}  // namespace jaxgnn::host
