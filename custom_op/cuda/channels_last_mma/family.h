#pragma once

// Kernel instances of channels_last_mma, and the tilings that it chooses among.

#include <cstdint>
#include <string>
#include <string_view>

#include "conv/problem.h"
#include "cuda/channels_last_mma/arguments.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::channels_last_mma {

struct Instance {
  int positions, filters;            // of a tile
  int position_warps, filter_warps;  // warps along both, which share the tile
  int registers;                     // per thread, as compiled; for the estimate
  int capability = 80;               // 75: kernel_75, which takes float16 and codes

  constexpr bool is_for_75() const { return capability < 80; }
  std::string_view kernel() const {
    return is_for_75() ? "channels_last_mma::kernel_75" : "channels_last_mma::kernel";
  }
  std::string arguments() const {
    return joined(positions, ", ", filters, ", ", position_warps, ", ", filter_warps);
  }
  int threads() const { return 32 * position_warps * filter_warps; }
  int64_t stage_bytes() const { return int64_t{positions + filters} * kRowBytes; }
};

inline constexpr Instance kInstances[] = {
    {256, 128, 4, 2, 242}, {128, 128, 2, 2, 242}, {256, 64, 4, 1, 255}, {128, 64, 2, 2, 160},
    {64, 128, 2, 2, 158},  {64, 64, 2, 2, 112},   {128, 32, 4, 1, 128}, {32, 32, 2, 2, 64},
};
inline constexpr Instance kInstances75[] = {{128, 64, 2, 2, 241, 75},
                                            {64, 128, 2, 2, 255, 75},
                                            {64, 64, 2, 2, 128, 75},
                                            {128, 32, 4, 1, 136, 75},
                                            {32, 32, 2, 2, 72, 75}};

struct Tiling {
  Instance instance{};
  int stages = 0;
  int64_t position_blocks = 0, filter_blocks = 0;  // filter blocks of a conv group
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = 0;  // nanoseconds, estimated

  std::string key() const { return joined(instance.arguments(), " stages ", stages); }
};

// Pieces of 16 bytes in a conv group's channels of a pixel.
int64_t group_pieces(const ConvProblem& problem);
// K chunks of a tile.
int64_t k_chunks(const ConvProblem& problem);
// Positions of y, over all images.
int64_t positions_of(const ConvProblem& problem);

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that fit into the device's shared memory.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::channels_last_mma
