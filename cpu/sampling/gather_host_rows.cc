// Rows of a matrix that is no operand, read by its address.
#include <cstring>

#include "cpu/core/rows.h"
#include "cpu/sampling/sampling.h"

namespace jaxgnn::sampling {

void gather_host_rows(const HostRowsArgs& args, const Executor& executor) {
  const char* matrix = matrix_of(args);
  const size_t size = static_cast<size_t>(args.row_bytes);
  const int64_t items = item_count(executor, args.num_places, args.row_bytes);
  parallel_for(executor, items, [&](int64_t item) {
    const int64_t last = args.num_places * (item + 1) / items;
    for (int64_t place = args.num_places * item / items; place < last; ++place) {
      char* out = args.out + place * args.row_bytes;
      if (const char* row = row_of_place(args, matrix, place); row != nullptr) {
        std::memcpy(out, row, size);
      } else {
        std::memset(out, 0, size);
      }
    }
  });
}

}  // namespace jaxgnn::sampling
