#pragma once

// What the plan of toeplitz and its kernel agree on, and what the kernel is told; toeplitz.cc explains the
// words.

#include "conv/host_device.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::toeplitz {

constexpr int kCoreElements = 8;  // numbers of a core's row, 16 bytes
constexpr int kDepth = 16;        // of one multiplication: two cores
constexpr int kRows = 64;         // of one multiplication
constexpr int kTileColumns = 8;   // of a tile of sums in a thread's registers
constexpr int kMostSteps = 256;   // multiplications along the depth; the kernel is told where each reads
constexpr int kCacheLine = 128;   // bytes
constexpr int kAlignment = 16;    // bytes, of what copies in bulk move

// The cores of a step: their numbers, -1 for no second one. The order is that in which their places in the
// staged input ascend, since the distance has no sign.
struct StepCores {
  short first, second;
};

// Warpgroups of a block, as many as their sums leave registers for.
CONVSWAP_HOST_DEVICE constexpr int most_warpgroups(int tiles) { return tiles > 8 ? 3 : 4; }

// What remains to be computed of results in shared memory before they go to y.
enum class Finish {
  nothing,
  activation,  // of each by itself
  everything,  // residual, activation and pool
};

// What turns sums into results and where they wait, for a filter and one of its folds.
struct alignas(16) FilterScale {
  float factor;  // two of them, since one float32 may not hold it
  float rest;
  float bias;
  int offset;  // in bytes
};

// The place of a core's row in the input, from the first of the tile's first channel, and among the cores.
struct StagedItem {
  int from, place;
};

// What a warpgroup keeps for itself.
struct WarpgroupState {
  TmaMbarrier copies;             // of the next tile's input
  unsigned most, least_less_one;  // of a tile that did not fit the scale
};

// What the block keeps while it finds the scales of the weights.
struct WeightState {
  unsigned windows;
};

// Where results wait, in elements: distances of neighbouring images, filters and output rows.
struct ResultPlaces {
  int image, plane, row;
  bool rows_join;    // the rows of a filter follow each other as in y
  bool planes_join;  // and the filters do too
};

// The parts of shared memory. The matrix comes first, and the cores of a warpgroup's part do, which costs the
// kernel no register.
struct SharedOffsets {
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> matrix() { return {}; }
  Offset<StagedItem> items;
  Offset<int> tops;
  Offset<WeightState> weight_state;
  Offset<unsigned char> warpgroups;
  int warpgroup_bytes;

  // Of a warpgroup's own part, from where that begins.
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> cores() { return {}; }
  Offset<unsigned char> results, stored;  // elements, and where they lie apart float32
  Offset<FilterScale> scales;
  Offset<WarpgroupState> state;
  Offset<unsigned char> raw;  // elements
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  int y_misalignment;        // elements from a boundary of kCacheLine to y
  long long input_elements;  // of x
  // Where copies bring a tile's input as it is before it is staged: distances of channels and images there,
  // in elements, and to how many bytes, at most 16, a core's row is aligned there. Else channels lie as in x.
  bool copies_input;
  int source_plane, source_image, load_bytes;
  bool is_unpadded;  // no output reads beyond the image
  FastDivisor dilation_height_divisor, dilation_width_divisor;

  // A core's row: `pixels` neighbours of `bundle` channels, whose product is `outputs` neighbours in y.
  int log2_bundle, log2_outputs;
  int folds, log2_folds;
  FastDivisor bundles;            // of channels
  int window_rows, window_cores;  // that the outputs of a core's row read, for each bundle
  int steps;                      // of the product
  FastDivisor steps_divisor;
  FastDivisor row_phases, column_phases;
  FastDivisor window_rows_divisor, window_cores_divisor;

  // Staged cores of an image: for each bundle, row phase and column phase a plane of core_rows * pitch.
  FastDivisor pitch;
  int core_rows, plane_cores, image_cores, part_cores;
  FastDivisor cores_per_row;  // of a tile, all phases together
  int input_rows;
  int items_per_row;              // cores to stage of all bundles
  int image_items;                // cores to stage of an image
  FastDivisor lines_per_channel;  // of the second-level cache, that a tile's rows span at most

  // A tile: so many images, rows of folds, and core rows along the width.
  int images, rows, cores;
  FastDivisor bands, column_tiles;
  int tiles;
  int row_advance, y_rows;  // from a tile to the next below it, in rows of the convolution, and of y in each
  bool stores_lines;        // tiles overlap, and each stores whole lines of the cache
  bool leaves_first;        // y leaves the cache before all other data
  int pool_pad_height;
  bool pools;
  int product_rows;  // of each image

  int filters_per_block, filter_blocks;
  ResultPlaces results;  // of the convolution
  ResultPlaces stored;   // of what goes to y; the same place where it need not lie apart
  int fold_distance;     // between results of neighbouring folds of a filter, in elements
  bool pools_sums;       // sums that are a pool's window become one result
  bool lies_apart;       // the convolution's results are float32 and apart from what goes to y
  Finish finish;
  float least, most;  // bounds of a result
  int result_bytes;   // of one of the convolution's, as they wait
  bool writes_pairs;  // of neighbouring results, where the first of a tile is aligned to two
  SharedOffsets shared;
  int cores_bytes, raw_bytes;  // of a warpgroup's cores, and of where copies bring its input
  StepCores step_cores[kMostSteps];
  // Of the first core, and in the upper half the distance of the second. Two steps are one load, where they
  // are aligned so.
  alignas(8) unsigned step_places[kMostSteps];

  NaiveConv definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::toeplitz
