// The handlers of sampling, for either platform.
#pragma once

#include "common/sampling.h"
#include "ffi/binding.h"

namespace jaxgnn::sampling {

// The key's two words, or null where it has no elements.
inline const uint32_t* key_words(Check& check, const AnyBuffer& key) {
  if (count(key) == 0) return nullptr;
  check.vector(key, xla::ffi::U32, 2, "the key must be uint32 [2]");
  return static_cast<const uint32_t*>(key.untyped_data());
}

// The numbers of edges [capacity], int64 where the row offsets are.
inline void edge_numbers(Check& check, const AnyBuffer& edges, int64_t capacity,
                         const RowOperands& from) {
  check.vector(edges, from.row_offsets.element_type(), capacity,
               "edges must be [capacity] of the type of row_offsets");
}

template <class Launch>
Error sample_edges(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer places,
                   AnyBuffer offsets, AnyBuffer key, AnyBuffer ids, AnyBuffer weights, Result edges,
                   Result sampled_columns, Int<attr::strategy> strategy,
                   Int<attr::sample_size> size, Int<attr::sample_rate> rate) {
  Check check("jaxgnn_sample_edges");
  const RowOperands from{row_offsets, columns};
  SampleArgs args{};
  args.rows = check.rows(from);
  args.num_places = count(offsets) - 1;
  args.capacity = dim(count(*edges) > 0 ? *edges : *sampled_columns, 0);
  args.sample = {static_cast<Strategy>(*strategy), *size, *rate, key_words(check, key)};
  check.that(*strategy >= 0 && *strategy <= 8, "strategy must be from 0 to 8");
  const bool drawn = *strategy >= static_cast<int64_t>(Strategy::kRandom);
  check.that(*size >= 1 && *size <= INT32_MAX, "sample_size must be a positive 32-bit number");
  check.that(!drawn || *size <= kMostEdges, "sample_size must be at most 4096 for random edges");
  check.that(!drawn || args.sample.key != nullptr, "random edges need a key");
  check.that(*rate >= 1 && *rate <= kAllEdges, "sample_rate must be from 1 to 2^32");
  check.that(count(offsets) >= 1, "offsets must have an element more than there are places");
  check.vector(offsets, xla::ffi::S32, args.num_places + 1, "offsets must be int32 [places + 1]");
  if (count(places) > 0) {
    check.vector(places, xla::ffi::S32, args.num_places, "places must be int32 [places]");
    args.places = static_cast<const int32_t*>(places.untyped_data());
  } else {
    check.that(args.num_places == 0 || args.num_places == args.rows.num_rows,
               "without places there must be an offset for each row");
  }
  if (count(ids) > 0) {
    check.vector(ids, xla::ffi::U32, args.num_places, "ids must be uint32 [places]");
    args.ids = static_cast<const uint32_t*>(ids.untyped_data());
  }
  if (args.sample.strategy == Strategy::kRace) {
    check.vector(weights, xla::ffi::S32, args.rows.num_edges, "weights must be int32 [num_edges]");
    args.log_weights = static_cast<const int32_t*>(weights.untyped_data());
  } else if (with_replacement(args.sample) && args.sample.strategy != Strategy::kReplace) {
    check.vector(weights, xla::ffi::U32, 2 * args.rows.num_edges,
                 "weights must be uint32 [2 * num_edges]");
    const auto* words = static_cast<const uint64_t*>(weights.untyped_data());
    (args.sample.strategy == Strategy::kAlias ? args.alias_table : args.weights_up_to) = words;
  }
  if (count(*edges) > 0) {
    edge_numbers(check, *edges, args.capacity, from);
    args.edges = edges->untyped_data();
    args.wide_edges = is_wide(*edges);
  }
  if (count(*sampled_columns) > 0) {
    check.vector(*sampled_columns, xla::ffi::S32, args.capacity, "columns must be like edges");
    args.columns = static_cast<int32_t*>(sampled_columns->untyped_data());
  }
  if (check.failed()) return check.error();
  args.offsets = static_cast<const int32_t*>(offsets.untyped_data());
  return finish(check, launch_sample_edges(args, launch));
}

template <class Launch>
Error mark_edges(Launch launch, AnyBuffer edges, AnyBuffer permutation, Result bits,
                 Int<attr::num_edges> num_edges) {
  Check check("jaxgnn_mark_edges");
  check.integers(edges, "edges must be int32 or int64 [capacity]");
  check.that(*num_edges >= 0, "num_edges must not be negative");
  if (count(permutation) > 0) check.permutation(permutation, *num_edges);
  check.vector(*bits, xla::ffi::U32, words_of(*num_edges), "bits must be uint32, a bit an edge");
  if (check.failed()) return check.error();
  const MarkArgs args{edges.untyped_data(),
                      is_wide(edges),
                      data_or_null(permutation),
                      is_wide(permutation),
                      count(edges),
                      *num_edges,
                      static_cast<uint32_t*>(bits->untyped_data())};
  return finish(check, launch_mark_edges(args, launch));
}

template <class Launch>
Error drop_edges(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer key,
                 Result bits, Int<attr::sample_rate> rate) {
  Check check("jaxgnn_drop_edges");
  const RowOperands from{row_offsets, columns};
  DropArgs args{};
  args.rows = check.rows(from);
  args.key = key_words(check, key);
  args.rate = *rate;
  check.has_rows(args.rows);
  check.that(args.key != nullptr, "there must be a key");
  check.that(*rate >= 1 && *rate <= kAllEdges, "sample_rate must be from 1 to 2^32");
  check.vector(*bits, xla::ffi::U32, words_of(args.rows.num_edges),
               "bits must be uint32, a bit an edge");
  if (check.failed()) return check.error();
  args.bits = static_cast<uint32_t*>(bits->untyped_data());
  return finish(check, launch_drop_edges(args, launch));
}

template <class Launch>
Error permute_bits(Launch launch, AnyBuffer bits, AnyBuffer permutation, Result out, Result counts,
                   Int<attr::num_edges> num_edges) {
  Check check("jaxgnn_permute_bits");
  PermuteArgs args{};
  args.num_edges = *num_edges;
  check.that(*num_edges >= 0, "num_edges must not be negative");
  if (count(permutation) > 0) check.permutation(permutation, *num_edges);
  check.vector(bits, xla::ffi::U32, words_of(*num_edges), "bits must be uint32, a bit an edge");
  check.vector(*out, xla::ffi::U32, words_of(*num_edges), "the result must be like bits");
  check.vector(*counts, xla::ffi::S32, groups_of(*num_edges), "counts must be int32 [groups]");
  if (check.failed()) return check.error();
  args.bits = static_cast<const uint32_t*>(bits.untyped_data());
  args.permutation = data_or_null(permutation);
  args.wide_permutation = is_wide(permutation);
  args.out = static_cast<uint32_t*>(out->untyped_data());
  args.counts = static_cast<int32_t*>(counts->untyped_data());
  return finish(check, launch_permute_bits(args, launch));
}

template <class Launch>
Error compact_edges(Launch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer permutation,
                    AnyBuffer bits, AnyBuffer ranks, Result offsets, Result kept_columns,
                    Result edges) {
  Check check("jaxgnn_compact_edges");
  const RowOperands from{row_offsets, columns};
  CompactArgs args{};
  args.rows = check.rows(from);
  args.capacity = dim(*kept_columns, 0);
  const int64_t num_edges = args.rows.num_edges;
  if (count(permutation) > 0) check.permutation(permutation, num_edges);
  check.vector(bits, xla::ffi::U32, words_of(num_edges), "bits must be uint32, a bit an edge");
  check.vector(ranks, xla::ffi::S32, groups_of(num_edges) + 1, "ranks must be int32 [groups + 1]");
  check.vector(*offsets, xla::ffi::S32, args.rows.num_rows + 1,
               "the result's offsets must be int32 [rows + 1]");
  check.vector(*kept_columns, xla::ffi::S32, args.capacity, "columns must be int32 [capacity]");
  if (count(*edges) > 0) edge_numbers(check, *edges, args.capacity, from);
  if (check.failed()) return check.error();
  args.bits = static_cast<const uint32_t*>(bits.untyped_data());
  args.ranks = static_cast<const int32_t*>(ranks.untyped_data());
  args.permutation = data_or_null(permutation);
  args.wide_permutation = is_wide(permutation);
  args.offsets = static_cast<int32_t*>(offsets->untyped_data());
  args.columns = static_cast<int32_t*>(kept_columns->untyped_data());
  args.edges = data_or_null(*edges);
  args.wide_edges = is_wide(*edges);
  return finish(check, launch_compact_edges(args, launch));
}

template <class Launch>
Error gather_host_rows(Launch launch, AnyBuffer address, AnyBuffer nodes, AnyBuffer slots,
                       AnyBuffer cache, Result out, Int<attr::num_rows> num_rows) {
  Check check("jaxgnn_gather_host_rows");
  const DataType type = out->element_type();
  HostRowsArgs args{};
  args.num_rows = *num_rows;
  args.num_places = dim(*out, 0);
  check.that(*num_rows >= 0 && *num_rows <= INT32_MAX, "num_rows must be a 32-bit number");
  check.vector(address, xla::ffi::U32, 2, "the address must be uint32 [2]");
  check.that(is_value_type(type), "the result must be floating-point numbers");
  check.matrix(*out, type, args.num_places, dim(*out, 1), "the result must be [places, features]");
  check.vector(nodes, xla::ffi::S32, args.num_places, "nodes must be int32 [places]");
  if (count(slots) > 0) {
    check.vector(slots, xla::ffi::S32, *num_rows, "slots must be int32 [num_rows]");
    check.matrix(cache, type, dim(cache, 0), dim(*out, 1), "the cache must be [slots, features]");
    args.slots = static_cast<const int32_t*>(slots.untyped_data());
    args.cache = static_cast<const char*>(cache.untyped_data());
    args.num_slots = dim(cache, 0);
  }
  if (check.failed()) return check.error();
  args.row_bytes = dim(*out, 1) * static_cast<int64_t>(xla::ffi::ByteWidth(type));
  args.address = static_cast<const uint32_t*>(address.untyped_data());
  args.nodes = static_cast<const int32_t*>(nodes.untyped_data());
  args.out = static_cast<char*>(out->untyped_data());
  return finish(check, launch_gather_host_rows(args, launch));
}

template <class Launch>
void add_targets(Targets<Launch>& targets) {
  targets.template add<sample_edges<Launch>>("jaxgnn_sample_edges");
  targets.template add<mark_edges<Launch>>("jaxgnn_mark_edges");
  targets.template add<drop_edges<Launch>>("jaxgnn_drop_edges");
  targets.template add<permute_bits<Launch>>("jaxgnn_permute_bits");
  targets.template add<compact_edges<Launch>>("jaxgnn_compact_edges");
  targets.template add<gather_host_rows<Launch>>("jaxgnn_gather_host_rows");
}

}  // namespace jaxgnn::sampling
