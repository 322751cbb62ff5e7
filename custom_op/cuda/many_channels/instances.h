#pragma once

// The list of many_channels' kernel instances: for each of its formats one of each of these.

#include <string>
#include <string_view>

#include "cuda/many_channels/layout.h"

namespace convswap::many_channels {

inline constexpr std::string_view kFormats[] = {"ScaledFloat16Pairs", "Float16Pairs", "Bfloat16Pairs"};

struct Instance {
  int tiles;  // of eight columns, of a product

  // As the kernel's template takes them.
  std::string arguments() const { return std::to_string(tiles); }
};

inline constexpr Instance kInstances[] = {{8}, {12}, {16}, {20}, {24}, {26}, {28}, {30}, {32}};

}  // namespace convswap::many_channels
