// The CPU's kernels, and the Python module `_dirichlet_cpu`.
#include <pybind11/pybind11.h>

#include <algorithm>

#include "cpu/core/parallel.h"
#include "handlers.h"

namespace dirichlet {
namespace {

using jaxgnn::Rows;
using xla::ffi::ThreadPool;

constexpr int64_t kRowsAtOnce = 256;

int64_t at(const void* integers, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(integers)[i] : static_cast<const int32_t*>(integers)[i];
}

// Calls body(row) for all rows, on XLA's threads.
template <class F>
void for_rows(ThreadPool& pool, int64_t num_rows, const F& body) {
  const auto block = [&](int64_t item) {
    const int64_t end = std::min((item + 1) * kRowsAtOnce, num_rows);
    for (int64_t row = item * kRowsAtOnce; row < end; ++row) body(row);
  };
  const jaxgnn::Executor executor = jaxgnn::make_executor(pool);
  executor.run(
      executor.self, (num_rows + kRowsAtOnce - 1) / kRowsAtOnce,
      [](void* data, int64_t item) { (*static_cast<decltype(block)*>(data))(item); },
      const_cast<void*>(static_cast<const void*>(&block)));
}

// Calls body(column) for the edges of a row, in order.
template <class F>
void for_edges(const Rows& rows, int64_t row, const F& body) {
  const int64_t end = at(rows.offsets, rows.wide_offsets, row + 1);
  for (int64_t e = at(rows.offsets, rows.wide_offsets, row); e < end; ++e) {
    body(at(rows.columns, rows.wide_columns, e));
  }
}

}  // namespace

Error launch(const EnergyArgs& args, ThreadPool& pool) {
  for_rows(pool, args.rows.num_rows, [&](int64_t row) {
    const float* own = args.x + row * args.width;
    float sum = 0;
    for_edges(args.rows, row, [&](int64_t column) {
      const float* other = args.x + column * args.width;
      for (int64_t f = 0; f < args.width; ++f) {
        const float difference = other[f] - own[f];
        sum += difference * difference;
      }
    });
    args.energy[row] = sum;
  });
  return Error::Success();
}

Error launch(const GradientArgs& args, ThreadPool& pool) {
  for_rows(pool, args.rows.num_rows, [&](int64_t row) {
    const float* own = args.x + row * args.width;
    float* out = args.gradient + row * args.width;
    std::fill(out, out + args.width, 0.0f);
    const auto add = [&](int64_t column, float factor) {
      const float* other = args.x + column * args.width;
      for (int64_t f = 0; f < args.width; ++f) out[f] += 2 * factor * (own[f] - other[f]);
    };
    for_edges(args.rows, row, [&](int64_t column) { add(column, args.d[row]); });
    for_edges(args.transpose, row, [&](int64_t column) { add(column, args.d[column]); });
  });
  return Error::Success();
}

namespace {
XLA_FFI_DEFINE_HANDLER_SYMBOL(energy_handler, energy<ThreadPool>, bind_energy<ThreadPool>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gradient_handler, gradient<ThreadPool>, bind_gradient<ThreadPool>());
}  // namespace
}  // namespace dirichlet

PYBIND11_MODULE(_dirichlet_cpu, module) {
  module.def("registrations", [] {
    pybind11::dict targets;
    targets["dirichlet_energy"] =
        pybind11::capsule(reinterpret_cast<void*>(dirichlet::energy_handler));
    targets["dirichlet_gradient"] =
        pybind11::capsule(reinterpret_cast<void*>(dirichlet::gradient_handler));
    return targets;
  });
}
