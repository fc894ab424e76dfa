// A parallel loop over a thread pool that only schedules: XLA's, behind its FFI.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "cpu/core/executor.h"

namespace jaxgnn {

// The state of one loop. The pool may start its tasks late, even after the loop has returned: they
// share ownership of this, find no item left and touch nothing else.
class Loop {
 public:
  Loop(int64_t items, void (*body)(void*, int64_t), void* data)
      : items_(items), body_(body), data_(data) {
    std::fegetenv(&environment_);
  }

  // Claims and runs items until none is left.
  void work() {
    int64_t finished = 0;
    for (;;) {
      const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_) break;
      body_(data_, item);
      ++finished;
    }
    if (finished == 0) return;
    // Release this thread's writes to whoever sees the last count.
    if (done_.fetch_add(finished, std::memory_order_acq_rel) + finished == items_) {
      std::lock_guard<std::mutex> lock(mutex_);
      all_done_.notify_all();
    }
  }

  // The same on a thread of the pool, with the caller's treatment of subnormals and rounding, so
  // that no result depends on which thread computed it.
  void help() {
    if (next_.load(std::memory_order_relaxed) >= items_) return;
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&environment_);
    work();
    std::fesetenv(&own);
  }

  // Every item has been claimed: waits for those that run on other threads.
  void wait() {
    // An item takes about 10 microseconds; to sleep and be woken takes longer.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    do {
      if (done_.load(std::memory_order_acquire) == items_) return;
    } while (std::chrono::steady_clock::now() < patience);
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_.load(std::memory_order_acquire) == items_; });
  }

 private:
  const int64_t items_;
  void (*const body_)(void*, int64_t);
  void* const data_;
  std::fenv_t environment_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// An Executor over `Pool`, which has Schedule(task) and num_threads(). The calling thread takes
// part, and finishes alone if the pool never runs a task: it waits only for items that have begun.
template <class Pool>
Executor make_executor(Pool& pool) {
  auto run = [](void* self, int64_t items, void (*body)(void*, int64_t), void* data) {
    Pool& threads = *static_cast<Pool*>(self);
    const auto loop = std::make_shared<Loop>(items, body, data);
    const int64_t helpers = std::min(threads.num_threads(), items) - 1;
    for (int64_t i = 0; i < helpers; ++i) threads.Schedule([loop] { loop->help(); });
    loop->work();
    loop->wait();
  };
  return Executor{run, &pool, std::max<int64_t>(pool.num_threads(), 1)};
}

}  // namespace jaxgnn
