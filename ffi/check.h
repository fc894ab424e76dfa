// What the CPU and the CUDA handlers share: shapes of buffers, and checks that return an error
// (a handler must never throw). Python validates first; these catch what would read out of bounds.
#pragma once

#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace jaxgnn {

using xla::ffi::AnyBuffer;
using Result = xla::ffi::Result<AnyBuffer>;

inline int64_t count(const AnyBuffer& buffer) {
  return static_cast<int64_t>(buffer.element_count());
}

// Dimension i, or 0 where there is none.
inline int64_t dim(const AnyBuffer& buffer, size_t i) {
  return i < buffer.dimensions().size() ? buffer.dimensions()[i] : 0;
}

// An absent operand has no elements.
inline const void* data_or_null(const AnyBuffer& buffer) {
  return count(buffer) == 0 ? nullptr : buffer.untyped_data();
}

inline bool is_value_type(xla::ffi::DataType type) {
  return type == xla::ffi::F32 || type == xla::ffi::BF16 || type == xla::ffi::F16 ||
         type == xla::ffi::F64;
}

inline xla::ffi::DataType accumulator(xla::ffi::DataType type) {
  return type == xla::ffi::F64 ? xla::ffi::F64 : xla::ffi::F32;
}

// Collects the first thing found wrong with a call.
class Check {
 public:
  explicit Check(const char* target) : target_(target) {}

  void that(bool holds, const char* what) {
    if (!holds && message_.empty()) message_ = std::string(target_) + ": " + what;
  }
  void integers(const AnyBuffer& buffer, const char* what) {
    that(buffer.element_type() == xla::ffi::S32 || buffer.element_type() == xla::ffi::S64, what);
  }
  // A matrix [rows, columns] of `type`.
  void matrix(const AnyBuffer& buffer, xla::ffi::DataType type, int64_t rows, int64_t columns,
              const char* what) {
    that(buffer.element_type() == type && dim(buffer, 0) == rows && dim(buffer, 1) == columns,
         what);
  }
  // The same, or no elements.
  void optional_matrix(const AnyBuffer& buffer, xla::ffi::DataType type, int64_t rows,
                       int64_t columns, const char* what) {
    if (count(buffer) > 0) matrix(buffer, type, rows, columns, what);
  }
  void drop_below(int64_t word) {
    that(word >= 0 && word < int64_t{1} << 32, "drop_below must be a 32-bit word");
  }
  // Row offsets and columns (perhaps absent),
  void row_structure(const AnyBuffer& row_offsets, const AnyBuffer& columns) {
    integers(row_offsets, "row_offsets must be int32 or int64");
    that(count(row_offsets) >= 1, "row_offsets must have an element more than there are rows");
    integers(columns, "columns must be int32 or int64");
  }
  // and the splits of long rows.
  void row_structure(const AnyBuffer& row_offsets, const AnyBuffer& columns,
                     const AnyBuffer& splits, int64_t split_length) {
    row_structure(row_offsets, columns);
    if (count(splits) > 0) {
      that(splits.element_type() == xla::ffi::S32 && dim(splits, 1) == 2,
           "splits must be int32 [parts, 2]");
      that(split_length > 0, "split_length must be positive");
    }
  }
  // In which order the rows come, or nothing.
  void row_order(const AnyBuffer& order, const AnyBuffer& row_offsets) {
    if (count(order) == 0) return;
    that(order.element_type() == xla::ffi::S32 && count(order) == count(row_offsets) - 1,
         "row_order must be int32 [rows]");
  }
  bool failed() const { return !message_.empty(); }
  xla::ffi::Error error() const { return xla::ffi::Error::InvalidArgument(message_); }

 private:
  const char* target_;
  std::string message_;
};

}  // namespace jaxgnn
