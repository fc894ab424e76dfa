// Loops over std::thread for preprocessing on the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace jaxgnn::host {

constexpr int64_t kGrain = 1 << 16;  // fewer elements than this are not worth a thread
constexpr int kMaxThreads = 32;

inline int num_chunks(int64_t size, int64_t grain = kGrain) {
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(
      std::clamp<int64_t>(size / grain, 1, std::min<int64_t>(cores, kMaxThreads)));
}

// Calls f(chunk) for each chunk, a thread each; the last runs here. If the system refuses a
// thread, its chunk runs here too. Throws the first of what the chunks threw, when all have ended.
template <class F>
void parallel(int chunks, const F& f) {
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&](int chunk) noexcept {
    try {
      f(chunk);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  workers.reserve(static_cast<std::size_t>(chunks));
  int started = 0;
  try {
    for (; started < chunks - 1; ++started) workers.emplace_back(run, started);
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  for (int chunk = started; chunk < chunks; ++chunk) run(chunk);
  for (std::thread& worker : workers) worker.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

// Calls f(item) for each of `items` once, on `threads` threads that take the next one each.
template <class F>
void parallel_items(int64_t items, int threads, const F& f) {
  std::atomic<int64_t> next{0};
  parallel(static_cast<int>(std::min<int64_t>(threads, items)), [&](int) {
    for (int64_t item = next++; item < items; item = next++) f(item);
  });
}

inline int64_t chunk_begin(int64_t size, int chunk, int chunks) {
  return size / chunks * chunk + std::min<int64_t>(chunk, size % chunks);
}

// Calls f(begin, end, chunk) over [0, size).
template <class F>
void parallel_for(int64_t size, int chunks, const F& f) {
  parallel(chunks, [&](int chunk) {
    f(chunk_begin(size, chunk, chunks), chunk_begin(size, chunk + 1, chunks), chunk);
  });
}

}  // namespace jaxgnn::host
