#pragma once

// Kernel arguments of toeplitz and the constants that the host and the kernel share. toeplitz.cc defines the
// terms.

#include "conv/host_device.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::toeplitz {

constexpr int kCoreRowElements = 8;  // elements of a core row (a row of a core matrix), 16 bytes
constexpr int kWgmmaK = 16;          // K of a wgmma: two core matrices
constexpr int kWgmmaM = 64;          // M of a wgmma
constexpr int kTileColumns = 8;      // N of a column tile of the accumulators
constexpr int kMaxSteps = 256;       // k-steps; the arguments hold the offsets of each
constexpr int kCacheLine = 128;      // bytes
constexpr int kAlignment = 16;       // bytes, of TMA transfers

// The two core matrices of a k-step by index; -1 if the second is missing. The index order is the order of
// ascending offsets in the staged input, because the stride between the two in the wgmma descriptor has no
// sign.
struct StepCoreMatrices {
  short first, second;
};

// Warpgroups of a block, limited by the registers that the accumulators leave.
CONVSWAP_HOST_DEVICE constexpr int max_warpgroups(int tiles) { return tiles > 8 ? 3 : 4; }

// Epilogue work that a second pass over the results in shared memory has to do.
enum class PostPass {
  none,
  activation,  // elementwise
  full,        // residual add, activation and pool
};

// Scale, bias and shared-memory offset of a filter and fold, which turn an accumulator into a result.
struct alignas(16) FilterScale {
  float factor;  // the scale is factor * second_factor, since one float32 may not hold it
  float second_factor;
  float bias;
  int offset;  // in bytes
};

// A core row to stage: the offset of its input from the tile's first channel, in x or in the tile's raw copy
// in shared memory (`copies_input`), and its index among the staged core rows.
struct StagedItem {
  int source, core_index;
};

// Shared-memory state of a warpgroup.
struct WarpgroupState {
  TmaMbarrier input_barrier;             // completion of the TMA loads of the next tile's input
  unsigned max_bits, min_bits_less_one;  // value range of a tile that did not fit the scale
};

// Shared-memory state of the block while it measures the scales of the weights.
struct WeightState {
  unsigned windows;
};

// Strides of results in shared memory, in elements, between images, filters (planes) and output rows.
struct ResultStrides {
  int image, plane, row;
  bool rows_are_contiguous;    // rows of a plane are contiguous, as in y
  bool planes_are_contiguous;  // so are planes
};

// Offsets of the regions of shared memory. The matrix comes first in the block, and the core matrices first
// in each warpgroup's region: an offset of 0 costs the kernel no register.
struct SharedOffsets {
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> matrix() { return {}; }
  Offset<StagedItem> items;
  Offset<int> tops;
  Offset<WeightState> weight_state;
  Offset<unsigned char> warpgroups;
  int warpgroup_bytes;

  // Regions of a warpgroup, from the start of its part.
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> core_matrices() { return {}; }
  Offset<unsigned char> conv_output, y_staging;  // in Elements; a separate conv output is float32
  Offset<FilterScale> scales;
  Offset<WarpgroupState> state;
  Offset<unsigned char> raw;  // Elements as TMA loads bring them
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  int y_misalignment;        // elements from a boundary of kCacheLine to y
  long long input_elements;  // elements of x
  // Whether TMA loads bring a tile's raw input to shared memory before it is converted. The strides of
  // channels and images there are in elements; `load_bytes` (at most 16) is the alignment of a core row
  // there. Without TMA loads the channel stride is that of x.
  bool copies_input;
  int source_plane, source_image, load_bytes;
  bool is_unpadded;  // no output reads padding
  FastDivisor dilation_height_divisor, dilation_width_divisor;

  // A core row has `pixels` neighbours of `bundle` channels; a row of the product gives `outputs` neighbours
  // in y.
  int log2_bundle, log2_outputs;
  int folds, log2_folds;
  FastDivisor bundles;            // of channels
  int window_rows, window_cores;  // receptive field of a product row's outputs, for each bundle
  int steps;                      // k-steps of the product
  FastDivisor steps_divisor;
  FastDivisor row_phases, column_phases;
  FastDivisor window_rows_divisor, window_cores_divisor;

  // Staged core rows of an image: for each bundle, row phase and column phase a plane of core_rows * pitch.
  FastDivisor pitch;
  int core_rows, plane_cores, image_cores, part_cores;
  FastDivisor cores_per_row;  // of a tile, all phases
  int input_rows;
  int items_per_row;              // core rows to stage, of all bundles
  int image_items;                // core rows to stage of an image
  FastDivisor lines_per_channel;  // L2 cache lines that a tile's rows span at most

  // Tile extents: images, folded rows, and core columns.
  int images, rows, cores;
  FastDivisor bands, column_tiles;
  int tiles;
  int row_advance, y_rows;  // tile stride in rows of the Conv output, and in rows of y
  bool stores_lines;        // tiles overlap, and each stores whole cache lines
  bool evicts_y_first;      // stores of y have the L2 policy evict_first
  int pool_pad_height;
  bool pools;
  int product_rows;  // rows of the product for each image

  int filters_per_block, filter_blocks;
  ResultStrides conv_strides;     // of the Conv output
  ResultStrides y_strides;        // of the data for y; the same memory unless the Conv output is separate
  int fold_distance;              // between results of neighbouring folds of a filter, in elements
  bool pools_accumulators;        // a 2 x 2 pool is computed from the accumulators
  bool has_separate_conv_output;  // the Conv output is float32 in memory of its own
  PostPass post_pass;
  float min_result, max_result;  // clamp of a result
  int result_bytes;              // size of a Conv result in shared memory
  bool writes_pairs;  // store two neighbouring results at once if a tile's first result is aligned to two
  SharedOffsets shared;
  int core_matrix_bytes, raw_bytes;  // of a warpgroup
  StepCoreMatrices step_cores[kMaxSteps];
  // Core offset of the first core matrix of each k-step; in the upper half, the stride to the second. The
  // alignment lets one load fetch the offsets of two steps.
  alignas(8) unsigned step_offsets[kMaxSteps];

  NaiveConv naive_conv;  // for data with infinities or NaN; last, since it is rarely read
};

}  // namespace convswap::toeplitz
