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

constexpr int kVectorElements = 8;          // elements of a vector (a row of a core matrix), 16 bytes
constexpr int kWgmmaK = 16;                 // K of a wgmma: two vectors
constexpr int kWgmmaM = 64;                 // M of a wgmma: spans
constexpr int kAccumulatorTileColumns = 8;  // matrix columns of an accumulator tile (wgmma.cuh)
constexpr int kMaxSteps = 256;              // k-steps; the arguments hold the offsets of each
constexpr int kCacheLine = 128;             // bytes
constexpr int kAlignment = 16;              // bytes, of TMA transfers

// The two vectors of a span's window that a k-step multiplies, by their indices in the window; -1 if the
// second is missing. They are in the order of ascending offsets in the staged input, because the leading
// dimension offset of the wgmma descriptor has no sign.
struct StepVectors {
  short first, second;
};

// Warpgroups of a block, limited by the registers that the accumulators leave.
CONVSWAP_HOST_DEVICE constexpr int max_warpgroups(int accumulator_tiles) {
  return accumulator_tiles > 8 ? 3 : 4;
}

// Epilogue work that a second pass over the results in shared memory has to do.
enum class PostPass {
  none,
  activation,  // elementwise
  full,        // residual add, activation and pool
};

// Scale, bias and shared-memory offset of the results of a filter and fold.
struct alignas(16) FilterScale {
  float factor;  // the scale is factor * second_factor, since one float32 may not hold it
  float second_factor;
  float bias;
  int offset;  // in bytes
};

// A vector to stage: the offset of its first element from the output tile's first input element, and its
// index in the staged input. The offset is one in x, or in the raw input in shared memory
// (`loads_input_by_tma`).
struct StagedItem {
  int source, vector_index;
};

// Shared-memory state of a warpgroup.
struct WarpgroupState {
  TmaMbarrier input_barrier;             // completion of the TMA loads of the next output tile's input
  unsigned max_bits, min_bits_less_one;  // value range of an output tile's input that did not fit the scale
};

// Shared-memory state of the block while it measures the scales of the weights.
struct WeightState {
  unsigned windows;
};

// Strides of results in shared memory, in elements, between images, filters (output planes) and output rows.
struct ResultStrides {
  int image, plane, row;
  bool rows_are_contiguous;    // rows of a plane are contiguous, as in y
  bool planes_are_contiguous;  // the planes of an image are contiguous, too
};

// Offsets of the regions of shared memory. The Toeplitz matrix comes first in the block, and the staged input
// first in each warpgroup's region: an offset of 0 costs the kernel no register.
struct SharedOffsets {
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> matrix() { return {}; }
  Offset<StagedItem> items;
  Offset<int> tops;
  Offset<WeightState> weight_state;
  Offset<unsigned char> warpgroups;
  int warpgroup_bytes;

  // Regions of a warpgroup, from the start of the warpgroup's memory.
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> staged_input() { return {}; }
  Offset<unsigned char> conv_output, y_staging;  // hold Elements; a separate conv output holds float32
  Offset<FilterScale> scales;
  Offset<WarpgroupState> state;
  Offset<unsigned char> raw;  // the raw input: Elements that TMA has loaded
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  int y_misalignment;        // elements from a boundary of kCacheLine to y
  long long input_elements;  // elements of x
  // Whether TMA loads an output tile's raw input into shared memory before the warpgroup converts it. The
  // strides of channels and images of the raw input are in elements; `load_bytes` (at most 16) is the
  // alignment of its vectors. Without TMA loads the channel stride is that of x.
  bool loads_input_by_tma;
  int source_channel_stride, source_image_stride, load_bytes;
  bool is_unpadded;  // no output reads padding
  FastDivisor dilation_height_divisor, dilation_width_divisor;

  // A vector is some neighbouring pixels of `bundle` channels. A span is `outputs` neighbours in an output
  // row, and a row of the product computes a span of `folds` output rows.
  int log2_bundle, log2_outputs;
  int folds, log2_folds;
  FastDivisor bundles;              // of channels
  int window_rows, window_vectors;  // window (receptive field) of a product row, for each bundle
  int steps;                        // k-steps of the product
  FastDivisor steps_divisor;
  // Input rows that a folded row advances, and input vectors that a span advances: the numbers of stride
  // phases.
  FastDivisor row_stride_phases, column_stride_phases;
  FastDivisor window_rows_divisor, window_vectors_divisor;

  // Staged vectors of an image: for each bundle, row stride phase and column stride phase a plane of
  // plane_rows * pitch vectors.
  FastDivisor pitch;
  int plane_rows, plane_vectors, image_vectors, part_vectors;
  FastDivisor vectors_per_row;    // of an output tile's input row and bundle, over all stride phases
  int input_rows;                 // of an output tile
  int items_per_row;              // vectors to stage of an input row, over all bundles
  int image_items;                // vectors to stage of an image
  FastDivisor lines_per_channel;  // L2 cache lines that an output tile's input rows touch at most

  // Extents of an output tile: images, folded rows, and spans per row. row_tiles and column_tiles count the
  // output tiles along the rows and columns of y.
  int images, rows, spans;
  FastDivisor row_tiles, column_tiles;
  int output_tiles;
  int row_advance, y_rows;  // distance of output tiles in rows of the Conv output, and in rows of y
  bool stores_lines;        // output tiles overlap, and each stores whole cache lines
  bool evicts_y_first;      // stores of y have the L2 policy evict_first
  int pool_pad_height;
  bool pools;
  int product_rows;  // rows of the product for each image, including those between output rows

  int filters_per_pass, filter_passes;  // passes of a warpgroup over an output tile
  ResultStrides conv_strides;           // of the Conv output
  ResultStrides y_strides;        // of the data for y; the same memory unless the Conv output is separate
  int fold_distance;              // between results of neighbouring folds of a filter, in elements
  bool pools_accumulators;        // a 2 x 2 pool is computed from the accumulators
  bool has_separate_conv_output;  // the Conv output is float32 in memory of its own
  PostPass post_pass;
  float min_result, max_result;  // clamp of a result
  int result_bytes;              // size of a Conv result in shared memory
  bool writes_pairs;  // store two results at once if an output tile's first result is aligned to two
  SharedOffsets shared;
  int staged_input_bytes, raw_bytes;  // of a warpgroup
  StepVectors step_vectors[kMaxSteps];
  // Offset of the first vector of each k-step in the staged input, in vectors; in the upper half, the
  // distance of the second. The alignment lets one load fetch the offsets of two steps.
  alignas(8) unsigned step_offsets[kMaxSteps];

  // For output tiles that wgmma cannot compute. Kernels with an epilogue also read the pool and the
  // activation of their second pass here. Last, since it is rarely read.
  NaiveConv naive_conv;
};

}  // namespace convswap::toeplitz
