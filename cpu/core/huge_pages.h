// Huge pages for large results, where the system has them for the asking.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace jaxgnn {

// Asks for huge pages in the interior of a result that is about to be written. XLA allocates large
// results for each call. With small pages, the page faults and page walks of the stores take a
// large share of the product's time. This is advice: correctness does not depend on it, and pages
// that were touched before are unchanged.
inline void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t(2) << 20;
  constexpr size_t kLarge = 2 * kHugePage;  // below, the call costs more than it saves
  if (bytes < kLarge) return;
  // Whole huge pages only: adjacent heap blocks keep their pages.
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace jaxgnn
