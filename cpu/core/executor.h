// How kernels run on several threads.
#pragma once

#include <cstdint>

namespace jaxgnn {

// Runs body(data, item) for every item once, on any thread, and returns when all are done.
struct Executor {
  void (*run)(void* self, int64_t items, void (*body)(void* data, int64_t item), void* data);
  void* self;
  int64_t threads;
};

}  // namespace jaxgnn
