#pragma once

// Kernel instances and tilings of sliced_k.

#include <cstdint>
#include <string>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/sliced_k/arguments.h"
#include "plan/device.h"

namespace convswap::sliced_k {

struct Instance {
  bool one_tap;                   // 1x1 filters without padding
  int filter_tiles, pixel_tiles;  // of a block
  int warps;                      // of a block; each takes every warps-th step of K

  int filters() const { return filter_tiles * kTileFilters; }
  int pixels() const { return pixel_tiles * kTilePixels; }
  // Template arguments of the kernel.
  std::string arguments() const {
    return joined(one_tap ? "true, " : "false, ", filter_tiles, ", ", pixel_tiles, ", ", warps);
  }
};

inline constexpr Instance kInstances[] = {
    {true, 1, 1, 8},  {true, 1, 1, 16},  {true, 1, 1, 32}, {true, 1, 2, 8},   {true, 1, 2, 16},
    {true, 1, 4, 8},  {true, 1, 4, 16},  {true, 2, 2, 16}, {true, 2, 4, 4},   {true, 2, 4, 8},
    {true, 4, 4, 4},  {true, 4, 4, 8},   {false, 1, 1, 8}, {false, 1, 1, 16}, {false, 1, 1, 32},
    {false, 1, 2, 8}, {false, 1, 2, 16}, {false, 1, 4, 8}, {false, 1, 4, 16}, {false, 2, 2, 16},
    {false, 2, 4, 4}, {false, 2, 4, 8},  {false, 4, 4, 4}, {false, 4, 4, 8},
};

// Tile of a block.
struct Tiling {
  Instance instance{};
  int64_t filter_blocks = 1;  // of a group
  int64_t pixel_blocks = 1;
  double cost = 0;  // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const { return instance.arguments(); }
};

// K of the GEMM: channels per group times taps.
int64_t k_size_of(const ConvProblem& problem);

// True if each float32 operand is split into two TF32. This holds in precision ieee and for depthwise
// convolutions, which ONNX Runtime's defaults never round (kRoundedDepthwise in plan/planner.cc).
bool splits_operands(const ConvProblem& problem);

int64_t shared_bytes_of(const Instance& instance);

// True if one vector load takes four weights of a filter, or a thread's pixels of one channel. Alignment is
// checked separately.
bool vectorizes_weight_loads(const ConvProblem& problem);
bool vectorizes_pixel_loads(const ConvProblem& problem, const Instance& instance);

// Estimated nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that support the problem.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::sliced_k
