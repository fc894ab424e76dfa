// MaxK: of each row k values and their ascending columns (CBSR, compressed balanced sparse rows).
#pragma once

#include "cuda/core/rows.h"

namespace jaxgnn::maxk {

// Column indices are uint8 for widths to 256, else uint16.
struct MaxkArgs {
  Type type;
  const void* x;  // [num_rows, width]
  void* values;   // [num_rows, k]
  void* columns;  // [num_rows, k]
  int64_t num_rows;
  int64_t width;
  int64_t k;
  // What x is before: (x + bias) times dropout's mask and scale, rounded to T. Example i has the
  // rows from i rows_per_example on, which dropout counts from 0.
  const float* bias = nullptr;     // [1 or examples, width]; null: none
  const uint32_t* keys = nullptr;  // [1 or examples, 2]; null: no dropout
  bool bias_of_each = false;       // a bias for each example
  bool key_of_each = false;
  int64_t rows_per_example = 0;
  uint32_t drop_below = 0;
};

// The k largest of each row: NaN first, +0 = -0, the lower column at a tie.
cudaError_t launch_maxk(const MaxkArgs& args, cudaStream_t stream);
cudaError_t load_maxk();

}  // namespace jaxgnn::maxk
