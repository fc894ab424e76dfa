// The kernels of sage_embedding, which only a GPU has: drawn neighbors, the sum of their rows, a
// layer of the model with the sum of its rows over groups, and both layers of the sources.
#pragma once

#include "common/rows.h"
#include "cuda/core/launch.h"

namespace jaxgnn::sampling {

constexpr int64_t kMostDrawn = 128;      // of a place, by launch_drawn_rows
constexpr int64_t kLayerRowBytes = 256;  // at most, of an input row of launch_sage_layer
constexpr int64_t kLayerColumns = 128;   // at most, of each matrix of a layer

// out[i] are the `size` neighbors that place i draws with replacement: those that
// Strategy::kReplace draws. A place is a row of `rows`; one without edges draws itself, and one out
// of range -1.
struct DrawnNeighborsArgs {
  Rows rows;
  const uint32_t* key;       // two words
  const int32_t* places;     // [num_places]
  const uint32_t* first_id;  // what place 0 draws by, place i by as many more
  int64_t num_places;
  int64_t size;
  int32_t* out;  // [num_places, size]
};

// out[i] is the sum, or with `mean` the mean, of the rows of x at `size` neighbors that place i
// draws; of one out of range zeros. Rows of x are of whole 16 bytes; sums are in float32.
struct DrawnRowsArgs {
  Rows rows;
  const uint32_t* key;       // two words
  const int32_t* places;     // [num_places]
  const uint32_t* first_id;  // what place 0 draws by, place i by as many more
  int64_t num_places;
  int64_t size;  // at most kMostDrawn
  bool mean;
  Type type;            // float32 or 16 bits
  const void* x;        // [num_columns, width]
  int64_t num_columns;  // fewer than 2^31
  int64_t width;
  void* out;  // [num_places, width]
};

// Row i of the layer is n(relu([x[places[i]] Wf ; around[i] Wa])) with n(v) = v / |v|, n(0) = 0.
// out[g] is the sum, or with `mean` the mean, of the rows g group .. g group + group - 1, but for
// those whose place is out of range. float32 is multiplied in TF32.
struct SageLayerArgs {
  const int32_t* places;  // [groups * group]
  int64_t groups;
  int64_t group;
  bool mean;
  Type type;           // float32 or 16 bits, of all arrays
  const void* x;       // [num_rows, width]; a row has whole 16 bytes, at most kLayerRowBytes
  const void* around;  // [groups * group, width]
  int64_t num_rows;
  int64_t width;
  const void* own_matrix;     // Wf [width, own]
  const void* around_matrix;  // Wa [width, neighbors]
  int64_t own;                // at most kLayerColumns
  int64_t neighbors;          // likewise
  void* out;                  // [groups, own + neighbors]
};

// Row i of the result is n(relu([x[i] Wf ; around[i] Wa])), with n as above; with places of
// x[places[i]], and 0 if that is out of range. It is written to out's row *start + i, if out has
// it.
struct UnitLayerArgs {
  Type type;              // float32 or 16 bits, of all arrays
  const int32_t* places;  // [num_rows], or null
  int64_t num_nodes;      // rows of x; num_rows without places
  const void* x;          // [num_nodes, width]; a row has whole 16 bytes
  const void* around;     // [num_rows, width]
  int64_t num_rows;
  int64_t width;
  const void* own_matrix;     // Wf transposed, [own, width]
  const void* around_matrix;  // Wa transposed, [neighbors, width]
  int64_t own;                // at most kLayerColumns
  int64_t neighbors;          // likewise
  const int32_t* start;       // or null: 0
  int64_t out_rows;
  void* out;  // [out_rows, own + neighbors]
};

// Both layers of the sources: `first` of their places, and `second` of what it makes, which is
// second.x and may be left unwritten.
struct SourceLayersArgs {
  UnitLayerArgs first;  // a row of at most kLayerRowBytes
  UnitLayerArgs second;
};

cudaError_t launch_drawn_neighbors(const DrawnNeighborsArgs& args, const Launch& launch);
cudaError_t launch_drawn_rows(const DrawnRowsArgs& args, const Launch& launch);
// With `warpgroups` by Hopper's kernels, on such a device, else by those of all devices.
cudaError_t launch_sage_layer(const SageLayerArgs& args, const Launch& launch, bool warpgroups);
cudaError_t launch_source_layers(const SourceLayersArgs& args, const Launch& launch,
                                 bool warpgroups);

cudaError_t launch_sage_layer_wgmma(const SageLayerArgs& args, const Launch& launch);
cudaError_t launch_source_layers_wgmma(const SourceLayersArgs& args, const Launch& launch);

}  // namespace jaxgnn::sampling
