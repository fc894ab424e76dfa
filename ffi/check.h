// Shapes of buffers, and checks that return an error (a handler must never throw). Python validates
// first; these catch what would read or write out of bounds.
#pragma once

#include <cstdint>
#include <string>

#include "common/rows.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgnn {

using xla::ffi::AnyBuffer;
using xla::ffi::DataType;
using xla::ffi::Error;
using Result = xla::ffi::Result<AnyBuffer>;

inline int64_t count(const AnyBuffer& buffer) {
  return static_cast<int64_t>(buffer.element_count());
}

inline size_t rank(const AnyBuffer& buffer) { return buffer.dimensions().size(); }

// Dimension i, or 0 where there is none.
inline int64_t dim(const AnyBuffer& buffer, size_t i) {
  return i < rank(buffer) ? buffer.dimensions()[i] : 0;
}

// An absent operand or result has no elements.
inline void* data_or_null(const AnyBuffer& buffer) {
  return count(buffer) == 0 ? nullptr : buffer.untyped_data();
}

inline bool is_wide(const AnyBuffer& integers) { return integers.element_type() == xla::ffi::S64; }

inline bool is_value_type(DataType type) {
  return type == xla::ffi::F32 || type == xla::ffi::BF16 || type == xla::ffi::F16 ||
         type == xla::ffi::F64;
}

inline DataType accumulator(DataType type) {
  return type == xla::ffi::F64 ? xla::ffi::F64 : xla::ffi::F32;
}

// Of one for which is_value_type.
inline Type value_type(DataType type) {
  switch (type) {
    case xla::ffi::BF16:
      return Type::kBF16;
    case xla::ffi::F16:
      return Type::kF16;
    case xla::ffi::F64:
      return Type::kF64;
    default:
      return Type::kF32;
  }
}

constexpr int64_t kOnePiece = int64_t{1} << 30;  // a chunk length that no row reaches

// The rows of a graph: CSR, the chunks of long rows, and the row schedule. Without chunks, long
// rows are whole.
struct RowOperands {
  const AnyBuffer& row_offsets;
  const AnyBuffer& columns;
  const AnyBuffer* chunks = nullptr;
  int64_t chunk_length = kOnePiece;
  const AnyBuffer* row_order = nullptr;

  int64_t num_rows() const { return count(row_offsets) - 1; }
  int64_t num_edges() const { return count(columns); }
  int64_t num_chunks() const { return chunks == nullptr ? 0 : dim(*chunks, 0); }
};

// Collects the first thing found wrong with a call.
class Check {
 public:
  explicit Check(const char* target) : target_(target) {}

  // Whether nothing has been found wrong.
  bool passed() const { return message_.empty(); }
  bool failed() const { return !passed(); }
  Error error() const { return Error::InvalidArgument(message_); }
  const char* target() const { return target_; }

  void that(bool holds, const char* what) {
    if (!holds && message_.empty()) message_ = std::string(target_) + ": " + what;
  }
  void integers(const AnyBuffer& buffer, const char* what) {
    const DataType type = buffer.element_type();
    that((type == xla::ffi::S32 || type == xla::ffi::S64) && rank(buffer) == 1, what);
  }
  // A vector [size] or a matrix [rows, columns] of `type`,
  void vector(const AnyBuffer& buffer, DataType type, int64_t size, const char* what) {
    that(buffer.element_type() == type && rank(buffer) == 1 && dim(buffer, 0) == size, what);
  }
  void matrix(const AnyBuffer& buffer, DataType type, int64_t rows, int64_t columns,
              const char* what) {
    that(buffer.element_type() == type && rank(buffer) == 2 && dim(buffer, 0) == rows &&
             dim(buffer, 1) == columns,
         what);
  }
  // or no elements.
  void optional_matrix(const AnyBuffer& buffer, DataType type, int64_t rows, int64_t columns,
                       const char* what) {
    if (count(buffer) > 0) matrix(buffer, type, rows, columns, what);
  }
  // That `heads` divide the features of a row. What follows may divide by the number of heads only
  // if this has passed.
  void heads(int64_t heads, int64_t width) {
    that(heads > 0 && width % heads == 0, "the heads must divide the features");
  }
  // The same of an operation whose kernels would write nothing without features.
  void features(int64_t num_heads, int64_t width) {
    heads(num_heads, width);
    that(width > 0, "there must be features");
  }
  // That there is something to gather from at the edges' other end.
  void gathered(int64_t rows, int64_t num_edges) {
    that(rows > 0 || num_edges == 0, "there are edges, but the gathered operand has no rows");
  }
  // That edges have rows, for what takes them edge by edge.
  void has_rows(const Rows& rows) {
    that(rows.num_rows > 0 || rows.num_edges == 0, "there are edges, but no rows");
  }
  void drop_below(int64_t word) {
    that(word >= 0 && word < int64_t{1} << 32, "drop_below must be a 32-bit word");
  }
  // Two sums over the rows of each column, and those of blocks of rows.
  void two_sums(const AnyBuffer& sums, const AnyBuffer& partials, DataType type, int64_t width) {
    matrix(sums, accumulator(type), 2, width,
           "the sums must be [2, width] of the accumulation type");
    matrix(partials, accumulator(type), dim(partials, 0), 2 * width,
           "partials must be [blocks, 2 width] of the accumulation type");
    that(dim(partials, 0) >= 1, "there must be a block");
  }
  // The number of each edge in the graph's order.
  void permutation(const AnyBuffer& permutation, int64_t num_edges) {
    integers(permutation, "the permutation must be int32 or int64 [edges]");
    that(count(permutation) == num_edges, "the permutation must have a number for each edge");
  }

  Rows rows(const RowOperands& from, int64_t num_edges) {
    integers(from.row_offsets, "row_offsets must be int32 or int64 [rows + 1]");
    that(count(from.row_offsets) >= 1, "row_offsets must have an element more than there are rows");
    integers(from.columns, "columns must be int32 or int64 [edges]");
    if (from.chunks != nullptr) {
      matrix(*from.chunks, xla::ffi::S32, from.num_chunks(), 2, "chunks must be int32 [parts, 2]");
    }
    that(from.num_chunks() == 0 || from.chunk_length > 0, "chunk_length must be positive");
    that(from.num_chunks() <= INT32_MAX, "there must be fewer than 2^31 parts");
    Rows rows{};
    rows.offsets = from.row_offsets.untyped_data();
    rows.columns = data_or_null(from.columns);
    if (from.num_chunks() > 0) {
      rows.chunks = static_cast<const RowPart*>(from.chunks->untyped_data());
    }
    if (from.row_order != nullptr && count(*from.row_order) > 0) {
      vector(*from.row_order, xla::ffi::S32, from.num_rows(), "row_order must be int32 [rows]");
      rows.order = static_cast<const int32_t*>(from.row_order->untyped_data());
    }
    rows.wide_offsets = is_wide(from.row_offsets);
    rows.wide_columns = rows.columns != nullptr && is_wide(from.columns);
    rows.num_chunks = static_cast<int>(from.num_chunks());
    rows.num_rows = from.num_rows();
    rows.num_edges = num_edges;
    rows.chunk_length = from.chunk_length;
    return rows;
  }
  Rows rows(const RowOperands& from) { return rows(from, from.num_edges()); }

 private:
  const char* target_;
  std::string message_;
};

}  // namespace jaxgnn
