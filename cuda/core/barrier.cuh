// Barriers of some of a block's warps; 0 is that of the whole block.
#pragma once

namespace jaxgnn {

// Waits for all of so many threads, a multiple of 32.
__device__ inline void wait_at(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same, and whether any thread says so.
__device__ inline bool any_at(int barrier, int threads, bool here) {
  int any;
  asm volatile(
      "{\n.reg .pred here, any;\nsetp.ne.b32 here, %1, 0;\nbar.red.or.pred any, %2, %3, here;\n"
      "selp.b32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(here ? 1 : 0), "r"(barrier), "r"(threads)
      : "memory");
  return any != 0;
}

}  // namespace jaxgnn
