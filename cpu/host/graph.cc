#include "cpu/host/graph.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "cpu/host/host_parallel.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace jaxgnn::host {

void FreeMemory::operator()(void* memory) const { std::free(memory); }

void* allocate(std::size_t bytes) {
  constexpr std::size_t kLine = 64, kHugePage = std::size_t{1} << 21;
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kLine;
  const std::size_t rounded = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);  // advice: may fail
#endif
  return memory;
}

namespace {

constexpr int kDigitBits = 11;

template <class Index>
struct Edges {
  Edges() = default;
  explicit Edges(int64_t size) : sender(size), receiver(size), id(size) {}

  Buffer<int32_t> sender;
  Buffer<int32_t> receiver;
  Buffer<Index> id;
};

template <class Index>
struct Records {
  int32_t* key;
  int32_t* other;
  Index* id;  // null in the source of a pass: the position itself
};

// One stable pass of a radix sort by the digit (key >> shift) & (2^bits - 1).
template <class Index>
void sort_pass(const Records<Index>& from, const Records<Index>& to, int64_t size, int shift,
               int bits) {
  const int chunks = num_chunks(size);
  const int64_t radix = int64_t{1} << bits;
  const uint32_t mask = static_cast<uint32_t>(radix - 1);
  std::vector<std::vector<int64_t>> places(static_cast<std::size_t>(chunks));
  for (auto& place : places) place.assign(static_cast<std::size_t>(radix), 0);
  const auto digit = [=](int32_t key) { return (static_cast<uint32_t>(key) >> shift) & mask; };

  parallel_for(size, chunks, [&](int64_t begin, int64_t end, int chunk) {
    int64_t* count = places[static_cast<std::size_t>(chunk)].data();
    for (int64_t i = begin; i < end; ++i) ++count[digit(from.key[i])];
  });
  int64_t total = 0;
  for (int64_t d = 0; d < radix; ++d) {
    for (auto& place : places) {
      const int64_t count = place[static_cast<std::size_t>(d)];
      place[static_cast<std::size_t>(d)] = total;
      total += count;
    }
  }
  parallel_for(size, chunks, [&](int64_t begin, int64_t end, int chunk) {
    int64_t* place = places[static_cast<std::size_t>(chunk)].data();
    for (int64_t i = begin; i < end; ++i) {
      const int32_t key = from.key[i];
      const int64_t p = place[digit(key)]++;
      to.key[p] = key;
      to.other[p] = from.other[i];
      to.id[p] = from.id != nullptr ? from.id[i] : static_cast<Index>(i);
    }
  });
}

int key_bits(int32_t num_keys) {
  int bits = 1;
  while (bits < 31 && (int64_t{1} << bits) < num_keys) ++bits;
  return bits;
}

struct Order {
  bool by_receiver_and_sender;
  bool by_sender;
};

template <class Index>
Order find_order(const Edges<Index>& edges, int64_t size) {
  std::atomic<bool> both{true}, sender{true};
  parallel_for(size, num_chunks(size), [&](int64_t begin, int64_t end, int) {
    bool all_both = true, all_sender = true;
    const int32_t* s = edges.sender.data();
    const int32_t* r = edges.receiver.data();
    for (int64_t e = std::max<int64_t>(begin, 1); e < end && (all_both || all_sender); ++e) {
      all_both &= r[e - 1] < r[e] || (r[e - 1] == r[e] && s[e - 1] <= s[e]);
      all_sender &= s[e - 1] <= s[e];
    }
    if (!all_both) both.store(false, std::memory_order_relaxed);
    if (!all_sender) sender.store(false, std::memory_order_relaxed);
  });
  return {both.load(), sender.load()};
}

// Copies the user's edges, without self-loops, with reverses or with added loops as asked:
// first the user's, then the reverses, then the added loops.
template <class Index, class In>
Edges<Index> ingest(const In* senders, const In* receivers, int64_t num_edges,
                    const BuildOptions& options) {
  const bool remove = options.self_loops == SelfLoops::kRemove;
  const int chunks = num_chunks(num_edges);
  std::vector<int64_t> kept(static_cast<std::size_t>(chunks) + 1, 0);
  std::vector<int64_t> reversed(kept);
  const bool remaining = options.self_loops == SelfLoops::kAddRemaining;
  const int64_t num_nodes = options.num_receivers;
  std::unique_ptr<std::atomic<uint8_t>[]> has_loop;
  if (remaining) has_loop.reset(new std::atomic<uint8_t>[static_cast<std::size_t>(num_nodes)]());

  parallel_for(num_edges, chunks, [&](int64_t begin, int64_t end, int chunk) {
    int64_t loops = 0;
    if (remove || remaining || options.undirected) {
      for (int64_t e = begin; e < end; ++e) {
        if (senders[e] != receivers[e]) continue;
        ++loops;
        if (remaining) has_loop[senders[e]].store(1, std::memory_order_relaxed);
      }
    }
    const std::size_t next = static_cast<std::size_t>(chunk) + 1;
    kept[next] = end - begin - (remove ? loops : 0);
    reversed[next] = options.undirected ? end - begin - loops : 0;
  });
  for (std::size_t c = 1; c < kept.size(); ++c) kept[c] += kept[c - 1];
  for (std::size_t c = 1; c < kept.size(); ++c) reversed[c] += reversed[c - 1];
  const int64_t loops_begin = kept.back() + reversed.back();
  int64_t added = options.self_loops == SelfLoops::kAdd ? num_nodes : 0;
  if (remaining) {
    for (int64_t v = 0; v < num_nodes; ++v) added += has_loop[v].load() == 0;
  }

  Edges<Index> edges(loops_begin + added);
  int32_t* const s = edges.sender.data();
  int32_t* const r = edges.receiver.data();
  Index* const id = edges.id.data();
  parallel_for(num_edges, chunks, [&](int64_t begin, int64_t end, int chunk) {
    int64_t to = kept[static_cast<std::size_t>(chunk)];
    for (int64_t e = begin; e < end; ++e) {
      if (remove && senders[e] == receivers[e]) continue;
      s[to] = static_cast<int32_t>(senders[e]);
      r[to] = static_cast<int32_t>(receivers[e]);
      id[to++] = static_cast<Index>(e);
    }
    if (!options.undirected) return;
    to = kept.back() + reversed[static_cast<std::size_t>(chunk)];
    for (int64_t e = begin; e < end; ++e) {
      if (senders[e] == receivers[e]) continue;
      s[to] = static_cast<int32_t>(receivers[e]);
      r[to] = static_cast<int32_t>(senders[e]);
      id[to++] = static_cast<Index>(e);
    }
  });
  if (added > 0) {
    int64_t to = loops_begin;
    for (int64_t v = 0; v < num_nodes; ++v) {
      if (remaining && has_loop[v].load() != 0) continue;
      s[to] = r[to] = static_cast<int32_t>(v);
      id[to++] = Index{-1};
    }
  }
  return edges;
}

// Sorts by the sender, then, stably, by the receiver, digit by digit.
template <class Index>
void sort_edges(Edges<Index>& edges, const BuildOptions& options) {
  const int64_t size = edges.sender.size();
  const Order order = find_order(edges, size);
  if (order.by_receiver_and_sender) return;
  Edges<Index> spare(size);
  const auto sort_by = [&](Buffer<int32_t> Edges<Index>::* key,
                           Buffer<int32_t> Edges<Index>::* other, int32_t num_keys) {
    const int bits = key_bits(num_keys);
    const int passes = (bits + kDigitBits - 1) / kDigitBits;
    const int width = (bits + passes - 1) / passes;
    for (int pass = 0; pass < passes; ++pass) {
      const Records<Index> from{(edges.*key).data(), (edges.*other).data(), edges.id.data()};
      const Records<Index> to{(spare.*key).data(), (spare.*other).data(), spare.id.data()};
      sort_pass(from, to, size, pass * width, width);
      std::swap(edges, spare);
    }
  };
  if (!order.by_sender) {
    sort_by(&Edges<Index>::sender, &Edges<Index>::receiver, options.num_senders);
  }
  sort_by(&Edges<Index>::receiver, &Edges<Index>::sender, options.num_receivers);
}

// Keeps the first of equal adjacent edges.
template <class Index>
void drop_duplicates(Edges<Index>& edges) {
  const int64_t size = edges.sender.size();
  const int chunks = num_chunks(size);
  const auto is_first = [&edges](int64_t e) {
    return e == 0 || edges.sender[e] != edges.sender[e - 1] ||
           edges.receiver[e] != edges.receiver[e - 1];
  };
  std::vector<int64_t> places(static_cast<std::size_t>(chunks) + 1, 0);
  parallel_for(size, chunks, [&](int64_t begin, int64_t end, int chunk) {
    int64_t count = 0;
    for (int64_t e = begin; e < end; ++e) count += is_first(e);
    places[static_cast<std::size_t>(chunk) + 1] = count;
  });
  for (std::size_t c = 1; c < places.size(); ++c) places[c] += places[c - 1];
  if (places.back() == size) return;
  Edges<Index> unique(places.back());
  parallel_for(size, chunks, [&](int64_t begin, int64_t end, int chunk) {
    int64_t to = places[static_cast<std::size_t>(chunk)];
    for (int64_t e = begin; e < end; ++e) {
      if (!is_first(e)) continue;
      unique.sender[to] = edges.sender[e];
      unique.receiver[to] = edges.receiver[e];
      unique.id[to++] = edges.id[e];
    }
  });
  edges = std::move(unique);
}

// Offsets of the runs of equal keys in a sorted list: each edge that starts a row writes the
// offsets of that row and of the empty rows before it.
template <class Index>
Buffer<Index> offsets_of(const Buffer<int32_t>& keys, int64_t num_rows) {
  const int64_t size = keys.size();
  Buffer<Index> offsets(num_rows + 1);
  parallel_for(size, num_chunks(size), [&](int64_t begin, int64_t end, int) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t previous = e == 0 ? -1 : keys[e - 1];
      for (int64_t row = previous + 1; row <= keys[e]; ++row) offsets[row] = static_cast<Index>(e);
    }
  });
  const int64_t last = size == 0 ? -1 : keys[size - 1];
  for (int64_t row = last + 1; row <= num_rows; ++row) offsets[row] = static_cast<Index>(size);
  return offsets;
}

template <class T>
bool equal(const Buffer<T>& a, const Buffer<T>& b) {
  if (a.size() != b.size()) return false;
  std::atomic<bool> same{true};
  parallel_for(a.size(), num_chunks(a.size()), [&](int64_t begin, int64_t end, int) {
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * sizeof(T);
    if (bytes > 0 && std::memcmp(a.data() + begin, b.data() + begin, bytes) != 0) {
      same.store(false, std::memory_order_relaxed);
    }
  });
  return same.load();
}

// Sorts the edges by sender, stably. Takes `receivers` away as soon as they are copied: at that
// point the memory in use is at its peak.
template <class Index>
void transpose(Csr<Index>& csr, Buffer<int32_t> receivers, int32_t num_senders) {
  const int64_t size = csr.senders.size();
  const int bits = key_bits(num_senders);
  const int passes = (bits + kDigitBits - 1) / kDigitBits;
  const int width = (bits + passes - 1) / passes;
  Edges<Index> sorted(size);
  const auto records = [](const Edges<Index>& edges) {
    return Records<Index>{edges.sender.data(), edges.receiver.data(), edges.id.data()};
  };
  sort_pass({csr.senders.data(), receivers.data(), nullptr}, records(sorted), size, 0, width);
  receivers.reset();
  if (passes > 1) {
    Edges<Index> spare(size);
    for (int pass = 1; pass < passes; ++pass) {
      sort_pass(records(sorted), records(spare), size, pass * width, width);
      std::swap(sorted, spare);
    }
  }
  csr.transpose_row_offsets = offsets_of<Index>(sorted.sender, num_senders);
  csr.transpose_receivers = std::move(sorted.receiver);
  csr.transpose_permutation = std::move(sorted.id);
}

template <class Index>
Buffer<int32_t> count_self_loops(const Csr<Index>& csr, int64_t num_nodes) {
  Buffer<int32_t> loops(num_nodes);
  parallel_for(num_nodes, num_chunks(num_nodes), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const auto range = std::equal_range(csr.senders.data() + csr.row_offsets[row],
                                          csr.senders.data() + csr.row_offsets[row + 1],
                                          static_cast<int32_t>(row));
      loops[row] = static_cast<int32_t>(range.second - range.first);
    }
  });
  return loops;
}

}  // namespace

template <class Index, class In>
Csr<Index> build_csr(const In* senders, const In* receivers, int64_t num_edges,
                     const BuildOptions& options) {
  Edges<Index> edges = ingest<Index>(senders, receivers, num_edges, options);
  sort_edges(edges, options);
  if (options.deduplicate) drop_duplicates(edges);
  Csr<Index> csr;
  csr.row_offsets = offsets_of<Index>(edges.receiver, options.num_receivers);
  csr.senders = std::move(edges.sender);
  csr.edge_permutation = std::move(edges.id);
  if (options.square) csr.self_loops = count_self_loops(csr, options.num_receivers);
  transpose(csr, std::move(edges.receiver), options.num_senders);
  csr.symmetric = equal(csr.row_offsets, csr.transpose_row_offsets) &&
                  equal(csr.senders, csr.transpose_receivers);
  if (csr.symmetric) {
    csr.transpose_row_offsets.reset();
    csr.transpose_receivers.reset();
  }
  return csr;
}

template <class In>
std::pair<In, In> extent(const In* values, int64_t size) {
  if (size == 0) return {In{0}, In{-1}};
  const int chunks = num_chunks(size);
  std::vector<std::pair<In, In>> parts(static_cast<std::size_t>(chunks));
  parallel_for(size, chunks, [&](int64_t begin, int64_t end, int chunk) {
    In low = values[begin], high = values[begin];
    for (int64_t i = begin; i < end; ++i) {
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
    }
    parts[static_cast<std::size_t>(chunk)] = {low, high};
  });
  std::pair<In, In> all = parts[0];
  for (const auto& part : parts) {
    all = {std::min(all.first, part.first), std::max(all.second, part.second)};
  }
  return all;
}

template <class Index, class T>
void gcn_normalize(const Index* row_offsets, const int32_t* senders, const T* weights,
                   int64_t num_nodes, T* normalized) {
  Buffer<T> scale(num_nodes);
  const int64_t num_edges = row_offsets[num_nodes];
  const int chunks = num_chunks(num_edges);
  // Chunks of equal numbers of edges, not of rows: hubs come in clusters.
  const auto row_of = [=](int64_t edge) {
    return std::lower_bound(row_offsets, row_offsets + num_nodes + 1, edge) - row_offsets;
  };
  const auto over_rows = [&](const auto& f) {
    parallel(chunks, [&](int chunk) {
      const int64_t first = chunk == 0 ? 0 : row_of(chunk_begin(num_edges, chunk, chunks));
      const int64_t last =
          chunk == chunks - 1 ? num_nodes : row_of(chunk_begin(num_edges, chunk + 1, chunks));
      for (int64_t row = first; row < last; ++row) f(row);
    });
  };
  over_rows([&](int64_t row) {
    double degree = 0;
    for (int64_t e = row_offsets[row]; e < row_offsets[row + 1]; ++e) {
      degree += weights != nullptr ? static_cast<double>(weights[e]) : 1.0;
    }
    const T root = std::pow(static_cast<T>(degree), T(-0.5));
    scale[row] = std::isinf(root) && root > 0 ? T(0) : root;
  });
  over_rows([&](int64_t row) {
    for (int64_t e = row_offsets[row]; e < row_offsets[row + 1]; ++e) {
      const T weight = weights != nullptr ? weights[e] : T(1);
      normalized[e] = scale[senders[e]] * weight * scale[row];
    }
  });
}

template Csr<int32_t> build_csr(const int32_t*, const int32_t*, int64_t, const BuildOptions&);
template Csr<int32_t> build_csr(const int64_t*, const int64_t*, int64_t, const BuildOptions&);
template Csr<int64_t> build_csr(const int32_t*, const int32_t*, int64_t, const BuildOptions&);
template Csr<int64_t> build_csr(const int64_t*, const int64_t*, int64_t, const BuildOptions&);
template std::pair<int32_t, int32_t> extent(const int32_t*, int64_t);
template std::pair<int64_t, int64_t> extent(const int64_t*, int64_t);
template void gcn_normalize(const int32_t*, const int32_t*, const float*, int64_t, float*);
template void gcn_normalize(const int32_t*, const int32_t*, const double*, int64_t, double*);
template void gcn_normalize(const int64_t*, const int32_t*, const float*, int64_t, float*);
template void gcn_normalize(const int64_t*, const int32_t*, const double*, int64_t, double*);

}  // namespace jaxgnn::host
