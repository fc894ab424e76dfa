// Host-side graph preprocessing: sorted edges, their transpose and normalization.
//
// No Python and no XLA here: plain pointers in, owned buffers out. Everything runs on std::thread
// and gives the same result for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace jaxgnn::host {

struct FreeMemory {
  void operator()(void* memory) const;
};

// Uninitialized memory, aligned to a cache line so that JAX can adopt it without a copy. Large
// arrays are aligned to a huge page, as the sort scatters over the whole array.
void* allocate(std::size_t bytes);

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size)
      : data_(static_cast<T*>(allocate(static_cast<std::size_t>(size) * sizeof(T)))), size_(size) {}

  T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_.get()[i]; }
  // Leaves out the last elements; their memory is kept.
  void truncate(int64_t size) { size_ = size; }
  void reset() {
    data_.reset();
    size_ = 0;
  }
  T* release() {
    size_ = 0;
    return data_.release();
  }

 private:
  std::unique_ptr<T[], FreeMemory> data_;
  int64_t size_ = 0;
};

enum class SelfLoops : int { kKeep = 0, kAdd = 1, kAddRemaining = 2, kRemove = 3 };

struct BuildOptions {
  int32_t num_senders = 0;
  int32_t num_receivers = 0;
  bool undirected = false;
  bool deduplicate = false;
  SelfLoops self_loops = SelfLoops::kKeep;
  bool square = true;
};

// `Index` counts edges: int32_t, or int64_t from 2^31 edges on.
template <class Index>
struct Csr {
  Buffer<Index> row_offsets;
  Buffer<int32_t> senders;
  Buffer<Index> transpose_row_offsets;
  Buffer<int32_t> transpose_receivers;
  Buffer<Index> transpose_permutation;
  Buffer<Index> edge_permutation;
  Buffer<int32_t> self_loops;  // empty unless square
  bool symmetric = false;      // then the transpose's offsets and receivers are left empty
};

// Sorts edges by (receiver, sender), stably, and transposes them.
//
// `In` is int32_t or int64_t; the caller has checked that every index is in range (see `extent`).
template <class Index, class In>
Csr<Index> build_csr(const In* senders, const In* receivers, int64_t num_edges,
                     const BuildOptions& options);

// Smallest and largest element; (0, -1) of nothing.
template <class In>
std::pair<In, In> extent(const In* values, int64_t size);

// w'[e] = d[sender(e)]^(-1/2) w[e] d[receiver(e)]^(-1/2), d the sum of w over a receiver's edges,
// d^(-1/2) = 0 where d = 0. `weights` null: ones. Degrees are summed in double.
template <class Index, class T>
void gcn_normalize(const Index* row_offsets, const int32_t* senders, const T* weights,
                   int64_t num_nodes, T* normalized);

}  // namespace jaxgnn::host
