// The arrays of windows of receivers, as handlers take them.
#pragma once

#include "cuda/core/ffi.h"
#include "cuda/maxk/windows.h"

namespace jaxgnn::maxk {

// What the arrays say (a part's window, entries and place, the senders, masks and slots) is known
// to the device alone and trusted; `Graph.validate` and `config.check_graphs` check it.
struct WindowOperands {
  const AnyBuffer& rows;
  const AnyBuffer& parts;
  const AnyBuffer& senders;
  const AnyBuffer& masks;

  int64_t window_rows() const { return dim(rows, 1); }
  bool wide_columns() const { return window_rows() < kWindowRows; }
};

// Those that hold so many receivers, without slots.
inline Windows take_window_arrays(Check& check, const WindowOperands& from, int64_t num_receivers) {
  const int64_t windows = dim(from.rows, 0), size = from.window_rows();
  check.that(size >= 1 && size <= kWindowRows, "windows must have from 1 to 64 receivers");
  check.matrix(from.rows, xla::ffi::S32, windows, size,
               "the windows' rows must be int32 [windows, receivers]");
  check.that(windows * size >= num_receivers, "the windows must hold the receivers");
  check.matrix(from.parts, xla::ffi::S32, dim(from.parts, 0), 4,
               "the windows' parts must be int32 [parts, 4]");
  check.that(dim(from.parts, 0) > 0 || num_receivers == 0, "receivers must have a part");
  check.vector(from.senders, xla::ffi::S32, count(from.senders),
               "the windows' senders must be int32 [entries]");
  check.matrix(from.masks, xla::ffi::U32, count(from.senders), 2,
               "the windows' masks must be uint32 [entries, 2]");
  return {static_cast<const int32_t*>(from.rows.untyped_data()),
          static_cast<const int4*>(from.parts.untyped_data()),
          static_cast<const int32_t*>(from.senders.untyped_data()),
          static_cast<const uint2*>(from.masks.untyped_data()),
          static_cast<int>(dim(from.parts, 0)),
          static_cast<int>(windows),
          nullptr};
}

}  // namespace jaxgnn::maxk
