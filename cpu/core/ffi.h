// What the files of handlers share: from XLA's buffers and types to those of the kernels.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "cpu/core/csr.h"
#include "ffi/check.h"

namespace jaxgnn {

inline std::optional<ValueType> value_type(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::F32:
      return ValueType::f32;
    case xla::ffi::BF16:
      return ValueType::bf16;
    case xla::ffi::F16:
      return ValueType::f16;
    case xla::ffi::F64:
      return ValueType::f64;
    default:
      return std::nullopt;
  }
}

inline Csr make_csr(const AnyBuffer& row_offsets, const AnyBuffer& indices, const AnyBuffer& splits,
                    int64_t num_edges, int64_t split_length) {
  Csr csr{};
  csr.row_offsets = row_offsets.untyped_data();
  csr.wide_offsets = row_offsets.element_type() == xla::ffi::S64;
  csr.indices = data_or_null(indices);
  csr.wide_indices = indices.element_type() == xla::ffi::S64;
  csr.num_rows = count(row_offsets) - 1;
  csr.num_edges = num_edges;
  csr.splits = static_cast<const int32_t*>(splits.untyped_data());
  csr.num_splits = dim(splits, 0);
  csr.split_length = split_length;
  return csr;
}

// Adds a target's handler to what `registrations` returns.
void add_target(nanobind::dict& targets, const char* name, XLA_FFI_Handler* handler);

// The targets of each family.
namespace aggregation {
void add_targets(nanobind::dict& targets);
}
namespace maxk {
void add_targets(nanobind::dict& targets);
}
namespace attention {
void add_gat_targets(nanobind::dict& targets);
void add_pair_targets(nanobind::dict& targets);
}  // namespace attention
namespace gaussian {
void add_targets(nanobind::dict& targets);
}

}  // namespace jaxgnn
