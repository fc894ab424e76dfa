// A stable sort by small integers: counts, their prefix sums, and a pass that places the entries.
#include <algorithm>

#include "cpu/core/rows.h"
#include "cpu/sampling/sampling.h"

namespace jaxgnn::sampling {

namespace {

// A thread takes a range of the keys' values, and reads all keys: these are read in order, what it
// counts and writes at random is its own.
constexpr int64_t kLeastPerThread = int64_t{1} << 16;

}  // namespace

void counting_sort(const CountingSortArgs& args, const Executor& executor) {
  const int64_t entries = args.num_keys, values = args.num_values;
  // Entry k + 1 first counts key k, is then where its entries begin, and at last where they end.
  int32_t* const ends = args.offsets + 1;
  const int64_t threads = std::clamp<int64_t>(entries / kLeastPerThread, 1, executor.threads);
  const int64_t items = std::max<int64_t>(std::min(threads, values), 1);
  const auto first_value = [&](int64_t item) { return values * item / items; };

  parallel_for(executor, items, [&](int64_t item) {
    const int64_t first = first_value(item), last = first_value(item + 1);
    std::fill(ends + first, ends + last, 0);
    for (int64_t entry = 0; entry < entries; ++entry) {
      const int64_t key = args.keys[entry];
      if (key >= first && key < last) ++ends[key];
    }
  });
  int32_t begin = 0;
  args.offsets[0] = 0;
  for (int64_t key = 0; key < values; ++key) {
    const int32_t found = ends[key];
    ends[key] = begin;
    begin += found;
  }
  // The keys of no value come last; the first thread has them, too.
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t first = first_value(item), last = first_value(item + 1);
    int32_t rest = begin;
    for (int64_t entry = 0; entry < entries; ++entry) {
      const int64_t key = args.keys[entry];
      if (key >= first && key < last) {
        args.order[ends[key]++] = static_cast<int32_t>(entry);
      } else if (item == 0 && (key < 0 || key >= values)) {
        args.order[rest++] = static_cast<int32_t>(entry);
      }
    }
  });
}

}  // namespace jaxgnn::sampling
