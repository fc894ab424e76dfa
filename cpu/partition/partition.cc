#include "cpu/partition/partition.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "cpu/host/host_parallel.h"

namespace jaxgnn::host {
namespace {

constexpr int64_t kBatch = 4096;           // nodes scored against the same owners
constexpr int64_t kBatchScores = 1 << 22;  // of a batch: parts beyond 1024 make it smaller
constexpr int64_t kPiece = 64;             // nodes that a thread takes at once
constexpr int64_t kHubShare = 128;  // a node with more of a part's edges than 1 / this is a hub

int resolve_threads(int num_threads) {
  if (num_threads > 0) return std::min(num_threads, kMaxThreads);
  return static_cast<int>(std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads));
}

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64 (Steele, Lea and Flood, 2014)
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

template <class Index>
void check_offsets(const Rows<Index>& rows) {
  for (int64_t i = 0; i < rows.num_nodes; ++i) {
    if (rows.offsets[i] > rows.offsets[i + 1]) {
      throw std::invalid_argument("offsets: expected them to rise");
    }
  }
}

// Nodes that are placed one after the other, by the edges they share with each part so far.
template <class Index>
class Restream {
 public:
  Restream(const Rows<Index>& rows, const Balance& balance, uint64_t seed, int threads,
           int32_t* owner)
      : rows_(rows),
        balance_(balance),
        seed_(seed),
        threads_(threads),
        owner_(owner),
        batch_(std::clamp<int64_t>(kBatchScores / balance.parts, 1, kBatch)),
        counts_(static_cast<std::size_t>(batch_ * balance.parts)),
        nodes_(static_cast<std::size_t>(balance.parts)),
        edges_(static_cast<std::size_t>(balance.parts)) {
    for (int64_t i = 0; i < rows.num_nodes; ++i) {
      if (is_hub(i)) hubs_.push_back(i);
    }
    std::stable_sort(hubs_.begin(), hubs_.end(),
                     [&](int64_t a, int64_t b) { return degree(a) > degree(b); });
  }

  void pass() {
    std::fill(nodes_.begin(), nodes_.end(), 0);
    std::fill(edges_.begin(), edges_.end(), 0);
    // Hubs come first: late ones would find no part with room for all of their edges.
    const int64_t num_hubs = static_cast<int64_t>(hubs_.size());
    for (int64_t begin = 0; begin < num_hubs; begin += batch_) {
      place(std::min(batch_, num_hubs - begin), [&](int64_t i) { return hubs_[begin + i]; }, true);
    }
    for (int64_t begin = 0; begin < rows_.num_nodes; begin += batch_) {
      place(std::min(batch_, rows_.num_nodes - begin), [&](int64_t i) { return begin + i; }, false);
    }
  }

 private:
  int64_t degree(int64_t node) const { return rows_.offsets[node + 1] - rows_.offsets[node]; }
  bool is_hub(int64_t node) const { return degree(node) > balance_.max_edges / kHubShare; }

  // Counts the neighbours of a batch in parallel, as their owners are before it; then places its
  // nodes in order, by loads that are exact. So threads change nothing.
  template <class Node>
  void place(int64_t size, const Node& node, bool hubs) {
    const int64_t pieces = (size + kPiece - 1) / kPiece;
    parallel_items(pieces, threads_, [&](int64_t piece) {
      for (int64_t i = piece * kPiece; i < std::min(size, (piece + 1) * kPiece); ++i) {
        if (is_hub(node(i)) == hubs) count(node(i), &counts_[i * balance_.parts]);
      }
    });
    for (int64_t i = 0; i < size; ++i) {
      const int64_t v = node(i);
      if (is_hub(v) != hubs) continue;
      const int part = choose(v, &counts_[i * balance_.parts]);
      owner_[v] = part;
      ++nodes_[part];
      edges_[part] += degree(v);
    }
  }

  void count(int64_t node, int32_t* counts) const {
    std::fill_n(counts, balance_.parts, 0);
    for (int64_t e = rows_.offsets[node]; e < rows_.offsets[node + 1]; ++e) {
      const int64_t sender = static_cast<int64_t>(rows_.senders[e]);
      if (sender < 0 || sender >= rows_.num_nodes) {
        throw std::invalid_argument("senders: expected ids from 0 to nodes - 1");
      }
      const int32_t part = owner_[sender];
      if (part >= 0 && sender != node) ++counts[part];
    }
  }

  // The part with most neighbours, each weighted by the room that is left there; of equal ones the
  // emptiest. Where no part has room, the one that exceeds its bounds least.
  int choose(int64_t node, const int32_t* counts) const {
    const int parts = balance_.parts;
    const int64_t d = degree(node);
    const int start = static_cast<int>(mix(seed_ + static_cast<uint64_t>(node)) % parts);
    int best = -1;
    double best_score = -1, best_load = 0;
    for (int k = 0; k < parts; ++k) {
      const int p = start + k < parts ? start + k : start + k - parts;
      if (nodes_[p] >= balance_.max_nodes || edges_[p] + d > balance_.max_edges) continue;
      const double load = load_of(p, 0);
      const double score = counts[p] * (1 - load);
      if (score > best_score || (score == best_score && load < best_load)) {
        best = p, best_score = score, best_load = load;
      }
    }
    if (best >= 0) return best;
    for (int p = 0; p < parts; ++p) {
      if (best < 0 || load_of(p, d) < load_of(best, d)) best = p;
    }
    return best;
  }

  double load_of(int part, int64_t more_edges) const {
    const double more_nodes = more_edges > 0 ? 1 : 0;
    const double by_nodes = (nodes_[part] + more_nodes) / static_cast<double>(balance_.max_nodes);
    const double by_edges = static_cast<double>(edges_[part] + more_edges) /
                            static_cast<double>(std::max<int64_t>(balance_.max_edges, 1));
    return std::max(by_nodes, by_edges);
  }

  Rows<Index> rows_;
  Balance balance_;
  uint64_t seed_;
  int threads_;
  int32_t* owner_;
  int64_t batch_;
  std::vector<int32_t> counts_;
  std::vector<int64_t> nodes_, edges_, hubs_;
};

}  // namespace

template <class Index>
void stream_partition(const Rows<Index>& rows, const Balance& balance, int passes, uint64_t seed,
                      int num_threads, int32_t* owner) {
  check_offsets(rows);
  std::fill_n(owner, rows.num_nodes, -1);
  Restream<Index> stream(rows, balance, mix(seed), resolve_threads(num_threads), owner);
  for (int i = 0; i < passes; ++i) stream.pass();
}

template <class Index>
int64_t count_halo(const Rows<Index>& rows, const int32_t* owner, int parts, int num_threads,
                   int64_t* halo) {
  check_offsets(rows);
  const int threads = resolve_threads(num_threads);
  std::atomic<int64_t> cut{0};
  std::vector<std::atomic<uint64_t>> readers(static_cast<std::size_t>(rows.num_nodes));
  constexpr int64_t kRows = 4096;
  const int64_t pieces = (rows.num_nodes + kRows - 1) / kRows;
  for (int first = 0; first < parts; first += 64) {  // a bit for each of 64 parts that read
    for (auto& bits : readers) bits.store(0, std::memory_order_relaxed);
    parallel_items(pieces, threads, [&](int64_t piece) {
      int64_t here = 0;
      for (int64_t i = piece * kRows; i < std::min(rows.num_nodes, (piece + 1) * kRows); ++i) {
        const int32_t part = owner[i];
        if (part < first || part >= first + 64) continue;
        const uint64_t bit = uint64_t{1} << (part - first);
        for (int64_t e = rows.offsets[i]; e < rows.offsets[i + 1]; ++e) {
          const int64_t sender = static_cast<int64_t>(rows.senders[e]);
          if (sender < 0 || sender >= rows.num_nodes) {
            throw std::invalid_argument("senders: expected ids from 0 to nodes - 1");
          }
          if (owner[sender] == part) continue;
          ++here;
          auto& bits = readers[sender];
          if (!(bits.load(std::memory_order_relaxed) & bit)) {
            bits.fetch_or(bit, std::memory_order_relaxed);
          }
        }
      }
      cut += here;
    });
    for (int64_t i = 0; i < rows.num_nodes; ++i) {
      for (uint64_t bits = readers[i].load(std::memory_order_relaxed); bits; bits &= bits - 1) {
        const int64_t reader = first + __builtin_ctzll(bits);
        ++halo[reader * parts + owner[i]];
      }
    }
  }
  return cut;
}

template void stream_partition(const Rows<int32_t>&, const Balance&, int, uint64_t, int, int32_t*);
template void stream_partition(const Rows<int64_t>&, const Balance&, int, uint64_t, int, int32_t*);
template int64_t count_halo(const Rows<int32_t>&, const int32_t*, int, int, int64_t*);
template int64_t count_halo(const Rows<int64_t>&, const int32_t*, int, int, int64_t*);

}  // namespace jaxgnn::host
