#include "cpu/aggregation/csr_row_ids.h"

#include "cpu/core/rows.h"

namespace jaxgnn::aggregation {
namespace JAXGNN_ISA {

void csr_row_ids(const CsrRowIdsArgs& args, const Executor& executor) {
  const Rows& csr = args.rows;
  const int64_t edges = csr.num_edges;
  if (edges == 0) return;
  const int64_t items = item_count(executor, edges, 8);
  parallel_for(executor, items, [&](int64_t item) {
    int64_t edge = edges * item / items;
    const int64_t last = edges * (item + 1) / items;
    for (int64_t row = row_of(csr, edge); edge < last; ++row) {
      // Edges that no row holds count as the last row's.
      const bool bounded = row + 1 < csr.num_rows;
      const int64_t end = bounded ? min_of(row_begin(csr, row + 1), last) : last;
      for (; edge < end; ++edge) args.out[edge] = static_cast<int32_t>(row);
    }
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
