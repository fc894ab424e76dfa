// Random graphs of exact size, sampled in parallel.
//
// Every random number is a hash of (seed, purpose, counter), so that a graph depends only on its
// arguments and not on the number of threads. No Python here: plain pointers in, owned buffers out.
// Arguments that would be unsafe throw std::invalid_argument.
#pragma once

#include <cstdint>

#include "cpu/host/graph.h"

namespace jaxgnn::host {

// Edges by receiver: row i of `senders`, ascending, lists who sends to i.
struct Edges {
  Buffer<int64_t> row_offsets;
  Buffer<int32_t> senders;
};

struct Sampling {
  int64_t num_nodes = 0;
  int64_t num_edges = 0;    // distinct, no self-loops; of an undirected graph both directions
  bool undirected = false;  // then num_edges is even
  uint64_t seed = 0;
  const int32_t* relabel = nullptr;  // new ids of the nodes, or null
  int num_threads = 0;               // 0: the number of hardware threads
};

// Both ends of an edge are drawn in proportion to `weights`: the first among all nodes, the second
// with probability `intra_share` among the first one's community, else among all. Communities are
// the ranges between consecutive `community_offsets` (before relabeling).
Edges chung_lu(const int64_t* weights, const int64_t* community_offsets, int64_t num_communities,
               double intra_share, const Sampling& sampling);

// Node i has degrees[i] ends of edges, which are joined at random, so that nearly every node has
// its degree: self-loops and duplicates, of which there are few, are replaced by edges between
// nodes drawn by degree. Undirected; sampling.num_edges is the degrees' sum.
Edges configuration(const int64_t* degrees, const Sampling& sampling);

// A network of roads: nodes in order along roads of two nodes or more, which end with probability
// `junction_share` after each node; the other edges join ends of roads with nodes at a distance d <
// 2^16 in that order, P(d) ~ 1 / d. Undirected.
Edges roads(double junction_share, const Sampling& sampling);

// Recursive matrix: `levels` times, the quadrant of an edge is drawn with probabilities a, b, c and
// 1 - a - b - c. sampling.num_nodes is 2^levels.
Edges rmat(int levels, double a, double b, double c, const Sampling& sampling);

// Disjoint chains, the ranges between consecutive `chain_offsets`: nine edges in ten join nodes d
// apart along a chain, P(d) ~ exp(-d / 12) / d for d up to 40, the others any two nodes of one.
Edges chains(const int64_t* chain_offsets, int64_t num_chains, const Sampling& sampling);

// Stochastic block model: an edge from a node of block s to another of block r with probability
// p[r * num_blocks + s], independently; undirected: each pair once, by p[r][s] with s <= r.
Edges block_model(const int64_t* block_offsets, int64_t num_blocks, const double* p,
                  bool undirected, uint64_t seed, int num_threads);

// A permutation of 0 .. size - 1.
void permutation(int64_t size, uint64_t seed, int32_t* out);

}  // namespace jaxgnn::host
