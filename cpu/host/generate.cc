#include "cpu/host/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpu/host/host_parallel.h"

namespace jaxgnn::host {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Random numbers by counter; streams of different purposes are independent.
class Stream {
 public:
  Stream(uint64_t seed, uint64_t purpose) : base_(mix(mix(seed + kGolden) + purpose * kGolden)) {}
  uint64_t operator()(uint64_t counter) const { return mix(base_ + (counter + 1) * kGolden); }

 private:
  uint64_t base_;
};

// Uniform below `range` (to within range / 2^64).
uint64_t below(uint64_t random, uint64_t range) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * range) >> 64);
}

// Uniform in (0, 1).
double unit(uint64_t random) { return (static_cast<double>(random >> 11) + 0.5) * 0x1p-53; }

// A probability as a bound on random numbers of 32 bits.
uint64_t threshold(double probability) {
  return static_cast<uint64_t>(std::llround(std::ldexp(probability, 32)));
}

int resolve_threads(int num_threads) {
  if (num_threads > 0) return std::min(num_threads, 256);
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u));
}

// An edge as one number that sorts by receiver, then sender.
constexpr uint64_t kNoEdge = std::numeric_limits<uint64_t>::max();
uint64_t pack(uint64_t receiver, uint64_t sender) { return receiver << 32 | sender; }
int64_t receiver_of(uint64_t key) { return static_cast<int64_t>(key >> 32); }
int32_t sender_of(uint64_t key) { return static_cast<int32_t>(key & 0xFFFFFFFF); }

// Sorts keys, dropping duplicates and kNoEdge: scatters them into buckets of rows small enough
// for the cache, and sorts each. `keys` is used up.
Buffer<uint64_t> sort_distinct(Buffer<uint64_t> keys, int64_t num_nodes, int num_threads) {
  const int64_t size = keys.size();
  const int64_t buckets = std::clamp<int64_t>(size >> 14, 1, 4096);
  const auto bucket_of = [&](uint64_t key) { return receiver_of(key) * buckets / num_nodes; };
  const int64_t pieces = num_threads;
  const auto piece = [&](int64_t i) { return size * i / pieces; };

  std::vector<int64_t> place(pieces * buckets);
  parallel_items(pieces, num_threads, [&](int64_t p) {
    int64_t* count = &place[p * buckets];
    for (int64_t i = piece(p); i < piece(p + 1); ++i) {
      if (keys[i] != kNoEdge) ++count[bucket_of(keys[i])];
    }
  });
  std::vector<int64_t> start(buckets + 1);
  int64_t total = 0;
  for (int64_t b = 0; b < buckets; ++b) {
    start[b] = total;
    for (int64_t p = 0; p < pieces; ++p) {
      total += std::exchange(place[p * buckets + b], total);
    }
  }
  start[buckets] = total;

  Buffer<uint64_t> sorted(total);
  parallel_items(pieces, num_threads, [&](int64_t p) {
    int64_t* next = &place[p * buckets];
    for (int64_t i = piece(p); i < piece(p + 1); ++i) {
      if (keys[i] != kNoEdge) sorted[next[bucket_of(keys[i])]++] = keys[i];
    }
  });
  std::vector<int64_t> distinct(buckets + 1);
  parallel_items(buckets, num_threads, [&](int64_t b) {
    uint64_t* first = sorted.data() + start[b];
    uint64_t* last = sorted.data() + start[b + 1];
    std::sort(first, last);
    distinct[b + 1] = std::unique(first, last) - first;
  });
  for (int64_t b = 0; b < buckets; ++b) distinct[b + 1] += distinct[b];
  keys.reset();
  Buffer<uint64_t> result(distinct[buckets]);
  parallel_items(buckets, num_threads, [&](int64_t b) {
    std::copy_n(sorted.data() + start[b], distinct[b + 1] - distinct[b],
                result.data() + distinct[b]);
  });
  return result;
}

Buffer<uint64_t> merge_distinct(const Buffer<uint64_t>& a, const Buffer<uint64_t>& b) {
  Buffer<uint64_t> merged(a.size() + b.size());
  const uint64_t* end =
      std::set_union(a.data(), a.data() + a.size(), b.data(), b.data() + b.size(), merged.data());
  Buffer<uint64_t> result(end - merged.data());
  std::copy_n(merged.data(), result.size(), result.data());
  return result;
}

// Keeps the `target` keys of smallest hash, in order: a uniform choice that no order of sampling
// biases.
Buffer<uint64_t> trim(Buffer<uint64_t> keys, int64_t target, uint64_t seed) {
  if (keys.size() <= target) return keys;
  const Stream hash(seed, 0);
  constexpr int kShift = 64 - 16;
  std::vector<int64_t> histogram(1 << 16);
  for (int64_t i = 0; i < keys.size(); ++i) ++histogram[hash(keys[i]) >> kShift];
  uint64_t cut = 0;
  int64_t kept = 0;
  while (kept + histogram[cut] <= target) kept += histogram[cut++];
  std::vector<uint64_t> boundary;
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (hash(keys[i]) >> kShift == cut) boundary.push_back(hash(keys[i]));
  }
  // The hash is a bijection of the keys: no ties.
  std::nth_element(boundary.begin(), boundary.begin() + (target - kept), boundary.end());
  const uint64_t bound = boundary[target - kept];
  Buffer<uint64_t> result(target);
  int64_t size = 0;
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (hash(keys[i]) < bound) result[size++] = keys[i];
  }
  return result;
}

// CSR of sorted distinct keys; undirected: of keys (receiver > sender) and their reverses.
Edges to_csr(const Buffer<uint64_t>& keys, int64_t num_nodes, bool undirected) {
  Edges edges{Buffer<int64_t>(num_nodes + 1), Buffer<int32_t>(keys.size() * (undirected ? 2 : 1))};
  std::fill_n(edges.row_offsets.data(), num_nodes + 1, int64_t{0});
  for (int64_t i = 0; i < keys.size(); ++i) {
    ++edges.row_offsets[receiver_of(keys[i]) + 1];
    if (undirected) ++edges.row_offsets[sender_of(keys[i]) + 1];
  }
  for (int64_t i = 0; i < num_nodes; ++i) edges.row_offsets[i + 1] += edges.row_offsets[i];
  // A row's smaller neighbors are the senders of its own keys, and come first; the larger ones are
  // the receivers of other rows' keys, and these rows come later: every row fills in order.
  std::vector<int64_t> next(edges.row_offsets.data(), edges.row_offsets.data() + num_nodes);
  for (int64_t i = 0; i < keys.size(); ++i) {
    const int64_t receiver = receiver_of(keys[i]);
    const int32_t sender = sender_of(keys[i]);
    edges.senders[next[receiver]++] = sender;
    if (undirected) edges.senders[next[sender]++] = static_cast<int32_t>(receiver);
  }
  return edges;
}

void check(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// Draws edges until the requested number of distinct edges is reached. sample(i) is a pair of node
// ids. The first round has `first_draws` draws, or with 0 a few more than edges are wanted.
template <class Sample>
Edges sample_distinct(const Sampling& s, const Sample& sample, int64_t first_draws = 0) {
  const int64_t n = s.num_nodes;
  check(n >= 2 && n < int64_t{1} << 31, "num_nodes: expected 2 to 2**31 - 1");
  const int64_t target = s.undirected ? s.num_edges / 2 : s.num_edges;
  check(s.num_edges >= 0 && (!s.undirected || s.num_edges % 2 == 0),
        "num_edges: expected 0 or more, even if undirected");
  check(s.num_edges <= n * (n - 1) / 2,
        "num_edges: expected at most half of all pairs, or sampling would not end");
  const int num_threads = resolve_threads(s.num_threads);

  Buffer<uint64_t> keys(0);
  int64_t drawn = 0;
  double yield = 1;
  while (keys.size() < target) {
    const double missing = static_cast<double>(target - keys.size());
    check(static_cast<double>(drawn) < 100.0 * static_cast<double>(target) + 1e6,
          "num_edges: too many for this distribution, whose likely edges are used up");
    // Edges to spare cost a trim of any of them: few where the first round's are those wanted.
    const int64_t spare = first_draws > 0 ? 16 : 1024;
    const int64_t draws = drawn == 0 && first_draws > 0
                              ? first_draws
                              : static_cast<int64_t>(missing / yield * 1.02) + spare;
    Buffer<uint64_t> fresh(draws);
    constexpr int64_t kBlock = 1 << 16;
    parallel_items((draws + kBlock - 1) / kBlock, num_threads, [&](int64_t block) {
      for (int64_t i = block * kBlock; i < std::min(draws, (block + 1) * kBlock); ++i) {
        auto [receiver, sender] = sample(static_cast<uint64_t>(drawn + i));
        if (receiver < 0 || receiver == sender) {
          fresh[i] = kNoEdge;
          continue;
        }
        if (s.relabel != nullptr) {
          receiver = s.relabel[receiver];
          sender = s.relabel[sender];
        }
        if (s.undirected && receiver < sender) std::swap(receiver, sender);
        fresh[i] = pack(static_cast<uint64_t>(receiver), static_cast<uint64_t>(sender));
      }
    });
    drawn += draws;
    fresh = sort_distinct(std::move(fresh), n, num_threads);
    const int64_t before = keys.size();
    keys = before == 0 ? std::move(fresh) : merge_distinct(keys, fresh);
    yield = std::max(0.05, static_cast<double>(keys.size() - before) / static_cast<double>(draws));
    if (before == 0 && first_draws > 0) yield = 1;  // of other draws than those that follow
  }
  keys = trim(std::move(keys), target, s.seed);
  return to_csr(keys, n, s.undirected);
}

using Pair = std::pair<int64_t, int64_t>;
constexpr Pair kNoPair{-1, -1};

// Draws in proportion to weights: a search of their running sum, begun from a table of where each
// of size() equal parts of the sum starts.
class Weighted {
 public:
  Weighted(const int64_t* weights, int64_t size) : sums_(size + 1), guide_(size + 1) {
    for (int64_t i = 0; i < size; ++i) {
      check(weights[i] >= 0 && weights[i] <= int64_t{1} << 40, "weights: expected 0 to 2**40");
      sums_[i + 1] = sums_[i] + static_cast<uint64_t>(weights[i]);
      check(sums_[i + 1] < uint64_t{1} << 62, "weights: expected a sum below 2**62");
    }
    check(total() > 0, "weights: expected a positive one");
    width_ = total() / static_cast<uint64_t>(size) + 1;
    int64_t i = 0;
    for (int64_t part = 0; part <= size; ++part) {
      while (i < size && sums_[i + 1] <= static_cast<uint64_t>(part) * width_) ++i;
      guide_[part] = static_cast<int32_t>(i);
    }
  }

  uint64_t total() const { return sums_.back(); }
  uint64_t sum_before(int64_t i) const { return sums_[i]; }

  // The element into whose share of the sum `at` falls.
  int64_t operator()(uint64_t at) const {
    const uint64_t part = at / width_;
    const auto first = sums_.begin() + guide_[part] + 1;
    const auto last = sums_.begin() + guide_[part + 1] + 1;
    return std::upper_bound(first, last, at) - sums_.begin() - 1;
  }

 private:
  std::vector<uint64_t> sums_;
  std::vector<int32_t> guide_;
  uint64_t width_ = 1;
};

// A permutation of the numbers below `size`, one number at a time: a Feistel network on the next
// power of four, walked until it is below `size` (Black and Rogaway, 2002).
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed) : size_(size), round_(seed, 5) {
    while (size > uint64_t{1} << 2 * half_) ++half_;
  }
  uint64_t operator()(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_) - 1;
    do {
      uint64_t left = x >> half_, right = x & mask;
      for (uint64_t round = 0; round < 6; ++round) {
        const uint64_t next = left ^ (round_(right << 3 | round) & mask);
        left = right;
        right = next;
      }
      x = left << half_ | right;
    } while (x >= size_);
    return x;
  }

 private:
  uint64_t size_;
  Stream round_;
  int half_ = 1;
};

void check_offsets(const int64_t* offsets, int64_t count, int64_t num_nodes, const char* message) {
  check(count >= 1 && offsets[0] == 0 && offsets[count] == num_nodes, message);
  for (int64_t i = 0; i < count; ++i) check(offsets[i] <= offsets[i + 1], message);
}

// Which range each node is in.
std::vector<int32_t> range_of_node(const int64_t* offsets, int64_t count) {
  std::vector<int32_t> range(offsets[count]);
  for (int64_t i = 0; i < count; ++i) {
    std::fill(range.begin() + offsets[i], range.begin() + offsets[i + 1], static_cast<int32_t>(i));
  }
  return range;
}

}  // namespace

Edges chung_lu(const int64_t* weights, const int64_t* community_offsets, int64_t num_communities,
               double intra_share, const Sampling& sampling) {
  check(intra_share >= 0 && intra_share <= 1, "intra_share: expected 0 to 1");
  check_offsets(community_offsets, num_communities, sampling.num_nodes,
                "community_offsets: expected an ascent from 0 to num_nodes");
  const Weighted weighted(weights, sampling.num_nodes);
  const std::vector<int32_t> community = range_of_node(community_offsets, num_communities);
  const Stream first(sampling.seed, 1), second(sampling.seed, 2), inside(sampling.seed, 3);
  const uint64_t intra = threshold(intra_share);
  return sample_distinct(sampling, [&](uint64_t i) -> Pair {
    const int64_t u = weighted(below(first(i), weighted.total()));
    uint64_t from = 0, to = weighted.total();
    if (inside(i) >> 32 < intra) {
      from = weighted.sum_before(community_offsets[community[u]]);
      to = weighted.sum_before(community_offsets[community[u] + 1]);
    }
    return {u, weighted(from + below(second(i), to - from))};
  });
}

Edges configuration(const int64_t* degrees, const Sampling& sampling) {
  const Weighted stubs(degrees, sampling.num_nodes);
  check(sampling.undirected && stubs.total() == static_cast<uint64_t>(sampling.num_edges),
        "degrees: expected a sum of num_edges");
  const Permutation order(stubs.total(), sampling.seed);
  const Stream first(sampling.seed, 1), second(sampling.seed, 2);
  const uint64_t pairs = stubs.total() / 2;
  const auto sample = [&](uint64_t i) -> Pair {
    if (i < pairs) return {stubs(order(2 * i)), stubs(order(2 * i + 1))};
    return {stubs(below(first(i), stubs.total())), stubs(below(second(i), stubs.total()))};
  };
  return sample_distinct(sampling, sample, static_cast<int64_t>(pairs));
}

Edges roads(double junction_share, const Sampling& sampling) {
  check(junction_share > 0 && junction_share < 1, "junction_share: expected more than 0, below 1");
  const int64_t n = sampling.num_nodes;
  const Stream end(sampling.seed, 1), from(sampling.seed, 2), far(sampling.seed, 3);
  const uint64_t junction = threshold(junction_share);
  const auto drawn = [&](int64_t u) { return end(static_cast<uint64_t>(u)) >> 32 < junction; };
  // A road has two nodes or more.
  const auto ends = [&](int64_t u) {
    return u + 1 >= n || (u > 0 && u + 2 < n && drawn(u) && !drawn(u - 1));
  };
  const auto sample = [&](uint64_t i) -> Pair {
    if (i < static_cast<uint64_t>(n)) {
      const int64_t u = static_cast<int64_t>(i);
      return ends(u) ? kNoPair : Pair{u, u + 1};
    }
    // From either end of a road to another node, more likely a near one.
    int64_t u = static_cast<int64_t>(below(from(i), static_cast<uint64_t>(n)));
    while (!ends(u)) ++u;
    if (i & 1 && u + 1 < n) ++u;
    const uint64_t random = far(i);
    const double reach = std::exp2(1 + 15 * unit(mix(random)));
    const int64_t distance = static_cast<int64_t>(reach);
    const int64_t v = random & 1 ? u + distance : u - distance;
    return v >= 0 && v < n ? Pair{u, v} : kNoPair;
  };
  return sample_distinct(sampling, sample, n);
}

Edges rmat(int levels, double a, double b, double c, const Sampling& sampling) {
  check(levels >= 1 && levels <= 30 && sampling.num_nodes == int64_t{1} << levels,
        "scale: expected 1 to 30");
  check(a >= 0 && b >= 0 && c >= 0 && a + b + c <= 1 + 1e-9,
        "a, b, c: expected probabilities with a sum of at most 1");
  const uint64_t to_a = threshold(a), to_b = threshold(a + b), to_c = threshold(a + b + c);
  const Stream quadrant(sampling.seed, 1);
  const uint64_t words = static_cast<uint64_t>(levels + 1) / 2;
  return sample_distinct(sampling, [=](uint64_t i) -> Pair {
    uint64_t sender = 0, receiver = 0, random = 0;
    for (int level = 0; level < levels; ++level) {
      random =
          level % 2 == 0 ? quadrant(i * words + static_cast<uint64_t>(level / 2)) : random << 32;
      const uint64_t draw = random >> 32;
      sender = sender << 1 | (draw >= to_b);
      // Quadrants 1 and 3, without a branch that nothing could predict.
      receiver = receiver << 1 | ((draw >= to_a) ^ (draw >= to_b) ^ (draw >= to_c));
    }
    return {static_cast<int64_t>(receiver), static_cast<int64_t>(sender)};
  });
}

Edges chains(const int64_t* chain_offsets, int64_t num_chains, const Sampling& sampling) {
  check_offsets(chain_offsets, num_chains, sampling.num_nodes,
                "chain_offsets: expected an ascent from 0 to num_nodes");
  std::vector<int64_t> weights(40);
  for (int d = 1; d <= 40; ++d) {
    weights[d - 1] = std::llround(1e6 * std::exp(-d / 12.0) / d);
  }
  const Weighted distance(weights.data(), 40);
  const std::vector<int32_t> chain = range_of_node(chain_offsets, num_chains);
  const Stream first(sampling.seed, 1), second(sampling.seed, 2), far(sampling.seed, 3);
  const uint64_t anywhere = threshold(0.1);
  return sample_distinct(sampling, [&](uint64_t i) -> Pair {
    const int64_t u =
        static_cast<int64_t>(below(first(i), static_cast<uint64_t>(sampling.num_nodes)));
    const int64_t start = chain_offsets[chain[u]], end = chain_offsets[chain[u] + 1];
    if (far(i) >> 32 < anywhere) {
      return {u,
              start + static_cast<int64_t>(below(second(i), static_cast<uint64_t>(end - start)))};
    }
    const int64_t v = u + 1 + distance(below(second(i), distance.total()));
    return v < end ? Pair{u, v} : kNoPair;
  });
}

Edges block_model(const int64_t* block_offsets, int64_t num_blocks, const double* p,
                  bool undirected, uint64_t seed, int num_threads) {
  check(num_blocks >= 1, "sizes: expected at least one block");
  const int64_t n = block_offsets[num_blocks];
  check(n >= 0 && n < int64_t{1} << 31, "sizes: expected at most 2**31 - 1 nodes");
  check_offsets(block_offsets, num_blocks, n, "sizes: expected none negative");
  for (int64_t i = 0; i < num_blocks * num_blocks; ++i) {
    check(p[i] >= 0 && p[i] <= 1, "p: expected probabilities");
  }
  num_threads = resolve_threads(num_threads);
  const std::vector<int32_t> block = range_of_node(block_offsets, num_blocks);
  const Stream rows(seed, 1);

  // Calls emit(sender), ascending, for the edges of a row: the gaps between successes of
  // independent trials are geometric (Batagelj and Brandes, 2005).
  const auto each_sender = [&](int64_t receiver, const auto& emit) {
    const Stream row(rows(static_cast<uint64_t>(receiver)), 2);
    const double* row_p = p + block[receiver] * num_blocks;
    const int64_t limit = undirected ? receiver : n;
    uint64_t counter = 0;
    for (int64_t s = 0; s < num_blocks && block_offsets[s] < limit; ++s) {
      if (row_p[s] == 0) continue;
      const int64_t end = std::min(block_offsets[s + 1], limit);
      const double scale = row_p[s] < 1 ? 1 / std::log1p(-row_p[s]) : 0;
      for (int64_t sender = block_offsets[s]; sender < end; ++sender) {
        const double gap = std::floor(std::log(unit(row(counter++))) * scale);
        if (gap >= static_cast<double>(end - sender)) break;
        sender += static_cast<int64_t>(gap);
        if (sender != receiver) emit(static_cast<int32_t>(sender));
      }
    }
  };

  std::vector<int64_t> starts(n + 1);
  constexpr int64_t kBlock = 256;
  const auto each_row = [&](const auto& task) {
    parallel_items((n + kBlock - 1) / kBlock, num_threads, [&](int64_t i) {
      for (int64_t r = i * kBlock; r < std::min(n, (i + 1) * kBlock); ++r) task(r);
    });
  };
  each_row([&](int64_t r) {
    int64_t count = 0;
    each_sender(r, [&](int32_t) { ++count; });
    starts[r + 1] = count;
  });
  for (int64_t r = 0; r < n; ++r) starts[r + 1] += starts[r];
  if (undirected) {
    Buffer<uint64_t> keys(starts[n]);
    each_row([&](int64_t r) {
      int64_t next = starts[r];
      each_sender(r, [&](int32_t sender) {
        keys[next++] = pack(static_cast<uint64_t>(r), static_cast<uint64_t>(sender));
      });
    });
    return to_csr(keys, n, true);
  }
  Edges edges{Buffer<int64_t>(n + 1), Buffer<int32_t>(starts[n])};
  std::copy(starts.begin(), starts.end(), edges.row_offsets.data());
  each_row([&](int64_t r) {
    int64_t next = starts[r];
    each_sender(r, [&](int32_t sender) { edges.senders[next++] = sender; });
  });
  return edges;
}

void permutation(int64_t size, uint64_t seed, int32_t* out) {
  check(size >= 0 && size < int64_t{1} << 31, "size: expected 0 to 2**31 - 1");
  const Stream hash(seed, 4);
  std::vector<std::pair<uint64_t, int32_t>> order(size);
  for (int64_t i = 0; i < size; ++i) {
    order[i] = {hash(static_cast<uint64_t>(i)), static_cast<int32_t>(i)};
  }
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < size; ++i) out[i] = order[i].second;
}

}  // namespace jaxgnn::host
