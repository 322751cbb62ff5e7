#pragma once

// Arguments and shared-memory layout of the implicit_gemm kernel, shared by the plan (host) and the kernel.
// implicit_gemm.cc explains the algorithm and its terms.

#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::implicit_gemm {

constexpr int kVectorBytes = 16;  // eight channels of a pixel
constexpr int kHalfVectorBytes = kVectorBytes / 2;
constexpr int kChunkChannels = 4;  // channels that one load brings
constexpr int kWgmmaM = 64;        // M of a wgmma: filters of all folds
constexpr int kWgmmaK = 16;        // K of a wgmma: two half steps of eight
// N of a wgmma is 128 neighbouring positions, or 120 if fewer of them are then no outputs.
constexpr int kMaxTiles = 16, kFewerTiles = kMaxTiles - 1;
constexpr int kTileColumns = 8;
// The weights of the first kRegisterSteps steps stay in registers. wgmma reads the weights of the other steps
// from shared memory.
constexpr int kRegisterSteps = 24;
// Number of steps between two loop conditions.
constexpr int kUnrolledSteps = 2;
// Number of steps whose weights pass through shared memory at a time on their way to registers.
constexpr int kStagedSteps = 4;
constexpr int kMaxSteps = 128;
// A warpgroup hands the tensor cores over before its last steps, so that the tensor cores never wait for the
// other warpgroup's first wgmma. Sums of at least kLongSumSteps steps overlap by more.
constexpr int kOverlapSteps = 4, kLongOverlapSteps = 8;
constexpr int kLongSumSteps = 24;
static_assert(kRegisterSteps % kUnrolledSteps == 0 && kOverlapSteps % kUnrolledSteps == 0 &&
              kLongOverlapSteps % kUnrolledSteps == 0);
constexpr int kStepUnits = kWgmmaM * kWgmmaK * 2 / 16;  // 16-byte units of the weights of a step
constexpr int kStagedBytes = kStagedSteps * kStepUnits * 16;

// Three producer warps convert images, one warp stores results, and two consumer warpgroups issue wgmmas.
constexpr int kProducerThreads = 96;
constexpr int kPixelsInFlight = 4;  // loads of a producer thread before its first store
constexpr int kStoreThreads = 32;
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumerThreads = 128 * kConsumerWarpgroups;
constexpr int kThreads = kProducerThreads + kStoreThreads + kConsumerThreads;
// Registers of a thread at launch, and of each role after setmaxnreg.
constexpr int kBaseRegisters = 168, kProducerRegisters = 88, kConsumerRegisters = 208;
static_assert(kProducerRegisters * 128 + kConsumerRegisters * kConsumerThreads <= kBaseRegisters * kThreads);
// Named barriers, after those of the block's three warpgroups (warpgroup.cuh).
constexpr int kProducerBarrier = 4, kConsumerBarrier = 5;

constexpr int kSlots = 2;       // converted images
constexpr int kMaxStages = 3;   // loaded chunks
constexpr int kMaxBuffers = 2;  // results of an image
constexpr int kAlignment = 16;  // bytes; of TMA loads and stores
// Number of bytes between the single-buffered results and the double-buffered ones, which TMA stores may
// still be reading while the next image's results, with another misalignment, are written. A multiple of 128
// keeps the banks.
constexpr int kDoubleBufferGap = 128;

// Eight numbers along K: a channel block at an offset from the output's position, in rows and columns of the
// input. Without a channel block (-1), the weights are zeros.
struct HalfStep {
  short channel_block, row, column;
};

// Offsets at which a pixel is stored, in half vectors; shared memory has fewer than 2^15 vectors. `primary`
// is the pixel's own vector. `paired` is for the half-filled channel block: if columns are paired, a second
// copy behind the pixel to its left; if rows are paired, the only copy.
struct alignas(4) PixelOffsets {
  unsigned short primary, paired;
};
constexpr unsigned short kNoOffset = 0xffff;  // no output reads the pixel

// Offsets of the results of a wgmma's columns. Four threads share an accumulator row; each has the offsets of
// its two columns of all tiles. The padding lets the four threads read from different banks.
constexpr int kOutputsPerThread = 2 * kMaxTiles + 4;
constexpr int kOutputsPerTile = 4 * kOutputsPerThread;
// Offset of a position that is no output. It exceeds every result offset, so the address is clamped to the
// discard area.
constexpr int kNoOutput = 1 << 30;
// Discard area of a thread: two float32.
constexpr int kDiscardBytes = 8;

// Scale, bias and result offset of an accumulator row. Offsets are bytes from the first filter's first fold;
// a negative offset means no filter. `end` bounds the positions of the fold's output rows.
struct alignas(8) RowScale {
  float factor, second_factor;  // their product is the scale, which one float32 may not hold
  float bias;
  int end;
  int offsets[2];  // first and second buffer of a double-buffered filter
};

// Filter and fold of an accumulator row; -1 for no filter.
struct RowMapping {
  short filter, fold;
};

// How a converted image is processed.
enum class Task {
  store,
  add,         // a further binade window of the previous image
  naive_conv,  // infinities or NaN: no wgmma
  end,         // no further image
};

struct SlotState {
  int image;
  int top;  // uppermost binade of the binade window that the image was converted with
  Task task;
};

// mbarriers, slot descriptions and reductions in shared memory. `full` mbarriers signal that data are
// written, `empty` mbarriers that they have been read.
struct BlockState {
  TmaMbarrier stage_full[kMaxStages];
  Mbarrier slot_full[kSlots], slot_empty[kSlots];
  Mbarrier results_full[kMaxBuffers], results_empty[kMaxBuffers];
  Mbarrier mma_turn[kConsumerWarpgroups];
  SlotState slots[kSlots];
  unsigned max_bits, min_bits_less_one;  // range of an image that did not fit the scale
  unsigned weight_windows;
};

// Offsets of the parts of shared memory.
struct SharedOffsets {
  // Weights that are not held in registers. At offset 0 they cost the kernel no register.
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> weights() { return {}; }
  Offset<unsigned char> slots, stages, results, discard;
  Offset<PixelOffsets> pixel_offsets;
  Offset<int> output_offsets;
  Offset<RowScale> row_scales;
  Offset<int> filter_tops;
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  int y_misalignment;                // elements from the last kAlignment boundary to y
  long long input_elements;          // elements of x
  int block_filters, filter_blocks;  // filters of a block, and filter blocks of a group
  FastDivisor dilation_height_divisor, dilation_width_divisor;
  FastDivisor input_width_divisor;

  int folds;
  int chunks;       // chunks of four channels
  int half_chunk;   // the chunk whose vectors hold two pixels each; -1 for none
  bool pairs_rows;  // the two pixels are in neighbouring rows, not columns
  FastDivisor row_phases, column_phases;
  FastDivisor pitch;
  int plane_vectors, plane_rows;
  int channel_block_vectors, part_vectors, slot_vectors;
  int k_steps, register_steps;  // steps along K: wgmmas per output tile; steps with weights in registers
  int handover_step;            // step before which the other warpgroup may start
  int output_tiles;
  // First output tile with columns of the last folded row, in which some folds have no output row.
  int first_ragged_tile;
  int stages, stage_bytes;
  int buffers, buffer_bytes, results_bytes;
  int double_buffered_filters;  // filters of a block that have a second result buffer even if `buffers` is 1
  int second_buffer_offset;     // distance of their two buffers
  bool writes_pairs;  // stores two neighbouring results at once if an image's first is aligned to two
  bool evict_first;   // stores y with the L2 policy evict_first
  SharedOffsets shared;
  RowMapping row_mapping[kWgmmaM];
  HalfStep half_steps[2 * kMaxSteps];
  // Lower 16 bits: offset of the first half step in vectors; upper 16 bits: distance of the second half step.
  // Aligned, so that the offsets of two steps are one load.
  alignas(8) unsigned step_offsets[kMaxSteps];

  NaiveConv naive_conv;  // last, because only data with infinities or NaN need it
};

}  // namespace convswap::implicit_gemm
