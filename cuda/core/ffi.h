// What the files of handlers share: from XLA's buffers and types to those of the launchers.
#pragma once

#include <cuda_runtime.h>
#include <nanobind/nanobind.h>

#include <string>

#include "cuda/core/rows.h"
#include "ffi/check.h"

namespace jaxgnn {

using Stream = xla::ffi::PlatformStream<cudaStream_t>;

inline xla::ffi::Error status(const char* target, cudaError_t error) {
  if (error == cudaSuccess) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(std::string(target) + ": " + cudaGetErrorString(error));
}

inline Type value_type(xla::ffi::DataType type) {
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

inline Rows make_rows(const AnyBuffer& row_offsets, const AnyBuffer& columns,
                      const AnyBuffer* splits, int64_t num_edges, int64_t split_length,
                      const AnyBuffer* row_order = nullptr) {
  Rows rows{};
  rows.offsets = row_offsets.untyped_data();
  rows.wide_offsets = row_offsets.element_type() == xla::ffi::S64;
  rows.columns = data_or_null(columns);
  rows.wide_columns = count(columns) > 0 && columns.element_type() == xla::ffi::S64;
  rows.num_rows = count(row_offsets) - 1;
  rows.num_edges = num_edges;
  rows.split_length = split_length;
  if (splits != nullptr && count(*splits) > 0) {
    rows.splits = static_cast<const int2*>(splits->untyped_data());
    rows.num_splits = static_cast<int>(dim(*splits, 0));
  }
  if (row_order != nullptr) rows.order = static_cast<const int32_t*>(data_or_null(*row_order));
  return rows;
}

// Adds a target's handlers, by stage, to what `registrations` returns.
void add_target(nanobind::dict& targets, const char* name, XLA_FFI_Handler* handler);

// The targets of each family, and the loading of its kernels.
namespace aggregation {
void add_targets(nanobind::dict& targets);
cudaError_t load_kernels();
}  // namespace aggregation
namespace maxk {
void add_targets(nanobind::dict& targets);
cudaError_t load_kernels();
}  // namespace maxk
namespace attention {
void add_gat_targets(nanobind::dict& targets);
void add_pair_targets(nanobind::dict& targets);
void add_cosine_targets(nanobind::dict& targets);
cudaError_t load_gat();
cudaError_t load_pair();
cudaError_t load_cosine();
}  // namespace attention
namespace gaussian {
void add_targets(nanobind::dict& targets);
cudaError_t load_kernels();
}  // namespace gaussian

}  // namespace jaxgnn
