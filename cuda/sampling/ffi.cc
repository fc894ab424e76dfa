// The XLA FFI handlers that only a GPU has: offsets of rows, trees of neighbors, and
// sage_embedding's kernels.
#include "cuda/core/ffi.h"

#include "cuda/registrations.h"
#include "cuda/sampling/embedding.h"
#include "cuda/sampling/sampling.h"
#include "ffi/sampling.h"

namespace jaxgnn::sampling {
namespace {

int64_t row_bytes(const AnyBuffer& x) {
  return dim(x, 1) * (x.element_type() == xla::ffi::F32 ? 4 : 2);
}

const int32_t* places_of(Check& check, const AnyBuffer& places, int64_t count) {
  check.vector(places, xla::ffi::S32, count, "places must be int32 [places]");
  return static_cast<const int32_t*>(places.untyped_data());
}

Error row_offsets(StreamLaunch launch, AnyBuffer counts, Result offsets, Result totals) {
  Check check("jaxgnn_row_offsets");
  RowOffsetsArgs args{};
  args.num_rows = dim(counts, 0);
  const int64_t blocks = (args.num_rows + kRowsPerTotal - 1) / kRowsPerTotal;
  check.vector(counts, xla::ffi::S32, args.num_rows, "counts must be int32 [rows]");
  check.vector(*offsets, xla::ffi::S32, args.num_rows + 1, "offsets must be int32 [rows + 1]");
  check.vector(*totals, xla::ffi::S32, blocks > 0 ? blocks : 1,
               "totals must be int32, one for 2048 rows and at least one");
  if (check.failed()) return check.error();
  // XLA's buffers begin at multiples of 128 bytes: rows are loaded as vectors.
  args.counts = static_cast<const int32_t*>(counts.untyped_data());
  args.offsets = static_cast<int32_t*>(offsets->untyped_data());
  args.totals = static_cast<int32_t*>(totals->untyped_data());
  return finish(check, launch_row_offsets(args, launch));
}

Error sample_tree(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer seeds,
                  AnyBuffer keys, AnyBuffer weights, AnyBuffer positive, Result nodes, Result edges,
                  Result offsets, Result receivers, Result states, Ints<attr::sizes> sizes,
                  Ints<attr::paddings> paddings, Int<attr::strategy> strategy) {
  Check check("jaxgnn_sample_tree");
  SampleTreeArgs args{};
  args.rows = check.rows({row_offsets, columns});
  args.num_hops = static_cast<int64_t>(sizes->size());
  args.num_seeds = dim(seeds, 0);
  check.that(args.num_hops >= 1, "there must be a size for each hop");
  check.that(paddings->size() == sizes->size() + 1, "there must be a padding for each level");
  check.vector(seeds, xla::ffi::S32, args.num_seeds, "seeds must be int32 [seeds]");
  check.that(args.num_seeds >= 1, "there must be a seed");
  check.matrix(keys, xla::ffi::U32, args.num_hops, 2, "keys must be uint32 [hops, 2]");
  args.strategy = static_cast<Strategy>(*strategy);
  const bool by_alias = args.strategy == Strategy::kAlias;
  check.that(by_alias || args.strategy == Strategy::kRandom || args.strategy == Strategy::kReplace,
             "strategy must be 3, 4 or 8");
  if (by_alias) {
    check.vector(weights, xla::ffi::U32, 2 * args.rows.num_edges,
                 "weights must be uint32 [2 * num_edges]");
    check.vector(positive, xla::ffi::S32, args.rows.num_rows, "positive must be int32 [rows]");
    args.alias_table = static_cast<const uint64_t*>(weights.untyped_data());
    args.positive = static_cast<const int32_t*>(positive.untyped_data());
  }
  if (check.failed()) return check.error();
  // Places of a level, of all levels and of all but the last; edges of all hops and of all but the
  // last.
  int64_t places = args.num_seeds, all_places = 0, receiving = 0, all_edges = 0, inner_edges = 0;
  for (int64_t h = 0; h <= args.num_hops; ++h) {
    const int64_t padding = (*paddings)[h];
    check.that(padding >= 1 && padding <= kMostTreePadding, "a padding must be from 1 to 128");
    if (check.failed()) return check.error();
    receiving = all_places;
    all_places += places + padding;
    check.that(all_places <= INT32_MAX, "there must be fewer than 2^31 places");
    if (h == args.num_hops) break;
    const int64_t size = (*sizes)[h];
    check.that(size >= 1 && size <= kMostTreeEdges, "a size must be from 1 to 32");
    if (check.failed()) return check.error();
    inner_edges = all_edges;
    args.num_states += (places + kLeastTreePlaces - 1) / kLeastTreePlaces;
    places *= size;
    all_edges += places;
  }
  check.vector(*nodes, xla::ffi::S32, all_places, "nodes must be int32 [places]");
  check.vector(*edges, row_offsets.element_type(), all_edges,
               "edges must be [edges] of the type of row_offsets");
  check.vector(*offsets, xla::ffi::S32, receiving + 1, "offsets must be int32 [receivers + 1]");
  check.vector(*receivers, xla::ffi::S32, inner_edges,
               "receivers must be int32, one for each edge but the last hop's");
  check.vector(*states, xla::ffi::U32, 2 * args.num_states,
               "states must be uint32, two for 32 places of each hop");
  if (check.failed()) return check.error();
  args.seeds = static_cast<const int32_t*>(seeds.untyped_data());
  args.keys = static_cast<const uint32_t*>(keys.untyped_data());
  args.sizes = sizes->begin();
  args.paddings = paddings->begin();
  args.nodes = static_cast<int32_t*>(nodes->untyped_data());
  args.edges = edges->untyped_data();
  args.offsets = static_cast<int32_t*>(offsets->untyped_data());
  args.receivers = static_cast<int32_t*>(receivers->untyped_data());
  args.states = static_cast<uint64_t*>(states->untyped_data());
  return finish(check, launch_sample_tree(args, launch));
}

Error drawn_neighbors(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns,
                      AnyBuffer places, AnyBuffer first_id, AnyBuffer key, Result out) {
  Check check("jaxgnn_drawn_neighbors");
  DrawnNeighborsArgs args{};
  args.rows = check.rows({row_offsets, columns});
  args.key = key_words(check, key);
  args.num_places = dim(*out, 0);
  args.places = places_of(check, places, args.num_places);
  check.vector(first_id, xla::ffi::U32, 1, "first_id must be uint32 [1]");
  args.size = dim(*out, 1);
  check.that(args.key != nullptr, "there must be a key");
  check.matrix(*out, xla::ffi::S32, args.num_places, args.size,
               "the result must be int32 [places, draws]");
  if (check.failed()) return check.error();
  args.first_id = static_cast<const uint32_t*>(first_id.untyped_data());
  args.out = static_cast<int32_t*>(out->untyped_data());
  if (count(*out) == 0) return Error::Success();
  return finish(check, launch_drawn_neighbors(args, launch));
}

Error drawn_rows(StreamLaunch launch, AnyBuffer row_offsets, AnyBuffer columns, AnyBuffer places,
                 AnyBuffer first_id, AnyBuffer key, AnyBuffer x, Result out,
                 Int<attr::sample_size> size, Int<attr::reduce> reduce) {
  Check check("jaxgnn_drawn_rows");
  const DataType type = x.element_type();
  DrawnRowsArgs args{};
  args.rows = check.rows({row_offsets, columns});
  args.key = key_words(check, key);
  args.num_places = dim(*out, 0);
  args.places = places_of(check, places, args.num_places);
  check.vector(first_id, xla::ffi::U32, 1, "first_id must be uint32 [1]");
  args.size = *size;
  args.mean = is_mean(check, *reduce);
  args.num_columns = dim(x, 0);
  args.width = dim(x, 1);
  check.that(args.key != nullptr, "there must be a key");
  check.that(*size >= 1 && *size <= kMostDrawn, "sample_size must be from 1 to 128");
  check.that(is_narrow_type(type), "x must be float32, bfloat16 or float16");
  check.matrix(x, type, args.num_columns, args.width, "x must be [columns, features]");
  check.gathered(args.num_columns, args.rows.num_edges);
  check.that(args.num_columns <= INT32_MAX && row_bytes(x) <= INT32_MAX,
             "x must have fewer than 2^31 rows, and bytes in each");
  check.that(row_bytes(x) % 16 == 0, "a row of x must be of whole 16 bytes");
  check.matrix(*out, type, args.num_places, args.width, "the result must be [places, features]");
  if (check.failed()) return check.error();
  args.first_id = static_cast<const uint32_t*>(first_id.untyped_data());
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.out = out->untyped_data();
  if (args.num_places == 0 || args.width == 0) return Error::Success();
  return finish(check, launch_drawn_rows(args, launch));
}

// Nothing is written: the result is memory that the caller writes.
Error uninitialized(StreamLaunch, AnyBuffer like, Result out) {
  Check check("jaxgnn_uninitialized");
  check.matrix(like, like.element_type(), dim(like, 0), dim(like, 1), "like must be a matrix");
  check.matrix(*out, like.element_type(), dim(*out, 0), dim(*out, 1),
               "the result must be a matrix of the same type");
  return check.failed() ? check.error() : Error::Success();
}

// What a layer asks of its inputs and of the columns of its matrices.
void check_layer(Check& check, const AnyBuffer& x, const AnyBuffer& around, int64_t places,
                 int64_t own, int64_t neighbors) {
  const DataType type = x.element_type();
  check.that(is_narrow_type(type), "x must be float32, bfloat16 or float16");
  check.matrix(x, type, dim(x, 0), dim(x, 1), "x must be [rows, features]");
  check.gathered(dim(x, 0), places);
  check.that(row_bytes(x) % 16 == 0 && row_bytes(x) <= INT32_MAX / 2,
             "a row of x must be of whole 16 bytes, fewer than 2^30");
  check.matrix(around, type, places, dim(x, 1), "around must be [places, features]");
  check.that(own <= kLayerColumns && neighbors <= kLayerColumns,
             "a matrix must have at most 128 columns");
}

Error sage_layer(StreamLaunch launch, AnyBuffer places, AnyBuffer x, AnyBuffer around,
                 AnyBuffer own_matrix, AnyBuffer around_matrix, Result out, Int<attr::group> group,
                 Int<attr::reduce> reduce, Int<attr::warpgroups> warpgroups) {
  Check check("jaxgnn_sage_layer");
  const DataType type = x.element_type();
  SageLayerArgs args{};
  args.groups = dim(*out, 0);
  args.group = *group;
  check.that(*group >= 1 && *group <= INT32_MAX && args.groups <= INT32_MAX / *group,
             "there must be fewer than 2^31 places");
  if (check.failed()) return check.error();
  const int64_t places_count = args.groups * args.group;
  args.places = places_of(check, places, places_count);
  args.mean = is_mean(check, *reduce);
  args.num_rows = dim(x, 0);
  args.width = dim(x, 1);
  args.own = dim(own_matrix, 1);
  args.neighbors = dim(around_matrix, 1);
  check_layer(check, x, around, places_count, args.own, args.neighbors);
  check.that(args.width > 0 && row_bytes(x) <= kLayerRowBytes,
             "a row of x must have 1 to 256 bytes");
  check.matrix(own_matrix, type, args.width, args.own, "Wf must be [features, columns]");
  check.matrix(around_matrix, type, args.width, args.neighbors, "Wa must be [features, columns]");
  check.matrix(*out, type, args.groups, args.own + args.neighbors,
               "the result must be [groups, columns of both matrices]");
  if (check.failed()) return check.error();
  args.type = value_type(type);
  args.x = x.untyped_data();
  args.around = around.untyped_data();
  args.own_matrix = own_matrix.untyped_data();
  args.around_matrix = around_matrix.untyped_data();
  args.out = out->untyped_data();
  if (args.groups == 0 || args.own + args.neighbors == 0) return Error::Success();
  return finish(check, launch_sage_layer(args, launch, *warpgroups != 0));
}

// The second layer has no x: it is what the first one makes. Its rows are written to `out` from row
// start[0] on; the others are those of `into`, which should be the same memory.
Error source_layers(StreamLaunch launch, AnyBuffer places, AnyBuffer x, AnyBuffer around,
                    AnyBuffer own_matrix, AnyBuffer around_matrix, AnyBuffer second_around,
                    AnyBuffer second_own_matrix, AnyBuffer second_around_matrix, AnyBuffer start,
                    AnyBuffer into, Result out, Result hidden, Int<attr::warpgroups> warpgroups) {
  Check check("jaxgnn_source_layers");
  const DataType type = x.element_type();
  const int64_t rows = dim(around, 0);
  const auto layer = [&](const AnyBuffer& input, const AnyBuffer& neighbors, const AnyBuffer& wf,
                         const AnyBuffer& wa, int64_t out_rows, Result& result) {
    UnitLayerArgs args{};
    args.num_nodes = dim(input, 0);
    args.num_rows = rows;
    args.width = dim(input, 1);
    args.own = dim(wf, 0);
    args.neighbors = dim(wa, 0);
    args.out_rows = out_rows;
    check_layer(check, input, neighbors, rows, args.own, args.neighbors);
    check.matrix(wf, type, args.own, args.width, "Wf must be [columns, features]");
    check.matrix(wa, type, args.neighbors, args.width, "Wa must be [columns, features]");
    check.matrix(*result, type, out_rows, args.own + args.neighbors,
                 "a result must be [rows, columns of both matrices]");
    if (check.failed()) return args;
    args.type = value_type(type);
    args.x = input.untyped_data();
    args.around = neighbors.untyped_data();
    args.own_matrix = wf.untyped_data();
    args.around_matrix = wa.untyped_data();
    args.out = result->untyped_data();
    return args;
  };
  SourceLayersArgs args{};
  args.first = layer(x, around, own_matrix, around_matrix, rows, hidden);
  if (check.failed()) return check.error();
  args.second =
      layer(*hidden, second_around, second_own_matrix, second_around_matrix, dim(into, 0), out);
  args.first.places = places_of(check, places, rows);
  check.vector(start, xla::ffi::S32, 1, "start must be int32 [1]");
  check.matrix(into, type, args.second.out_rows, dim(*out, 1), "into must be as the result");
  check.that(args.first.width > 0 && args.second.width > 0, "no layer's rows must be empty");
  check.that(row_bytes(x) <= kLayerRowBytes, "a row of x must have at most 256 bytes");
  if (check.failed()) return check.error();
  args.second.start = static_cast<const int32_t*>(start.untyped_data());
  if (count(*out) == 0) return Error::Success();
  if (into.untyped_data() != out->untyped_data()) {
    const cudaError_t error =
        cudaMemcpyAsync(out->untyped_data(), into.untyped_data(), into.size_bytes(),
                        cudaMemcpyDeviceToDevice, launch.stream);
    if (error != cudaSuccess) return finish(check, error);
  }
  if (rows == 0) return Error::Success();
  return finish(check, launch_source_layers(args, launch, *warpgroups != 0));
}

}  // namespace

void add_cuda_targets(CudaTargets& targets) {
  add_targets(targets);
  targets.add<row_offsets>("jaxgnn_row_offsets");
  targets.add<sample_tree>("jaxgnn_sample_tree");
  targets.add<drawn_neighbors>("jaxgnn_drawn_neighbors");
  targets.add<drawn_rows>("jaxgnn_drawn_rows");
  targets.add<sage_layer>("jaxgnn_sage_layer");
  targets.add<source_layers>("jaxgnn_source_layers");
  targets.add<uninitialized>("jaxgnn_uninitialized");
}

cudaError_t load_kernels(const Launch& load) {
  JAXGNN_TRY(launch_sample_edges({}, load));
  JAXGNN_TRY(launch_mark_edges({}, load));
  JAXGNN_TRY(launch_drop_edges({}, load));
  JAXGNN_TRY(launch_permute_bits({}, load));
  JAXGNN_TRY(launch_compact_edges({}, load));
  JAXGNN_TRY(launch_gather_host_rows({}, load));
  JAXGNN_TRY(launch_row_offsets({}, load));
  JAXGNN_TRY(launch_sample_tree({}, load));
  JAXGNN_TRY(launch_drawn_neighbors({}, load));
  JAXGNN_TRY(launch_drawn_rows({}, load));
  JAXGNN_TRY(launch_sage_layer({}, load, true));
  return launch_source_layers({}, load, true);
}

}  // namespace jaxgnn::sampling
