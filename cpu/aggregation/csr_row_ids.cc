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
    const int64_t begin = edges * item / items, end = edges * (item + 1) / items;
    if (begin < end) write_row_ids(csr, row_of(csr, begin), begin, end, args.out + begin);
  });
}

}  // namespace JAXGNN_ISA
}  // namespace jaxgnn::aggregation
