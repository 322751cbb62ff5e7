#pragma once

// The list of few_channels' kernel instances: for each format of the tensor cores one of each of these.

#include <array>
#include <cstddef>
#include <iterator>
#include <string>

namespace convswap::few_channels {

struct Instance {
  int bundle;  // filter rows that are bundled
  int taps;    // of a filter row
  int tiles;   // of eight filters in a warp's registers

  // As the kernel's template takes them.
  std::string arguments() const {
    return std::to_string(bundle) + ", " + std::to_string(taps) + ", " + std::to_string(tiles);
  }
};

// Other filter rows take the next longer one, with weights of zero.
inline constexpr int kKernelTaps[] = {1, 2, 3, 4, 5, 7, 11};
inline constexpr int kMostTaps = kKernelTaps[std::size(kKernelTaps) - 1];

// More would not fit into a thread's registers.
constexpr int most_tiles(int taps) { return taps > 7 ? 2 : 3; }

inline constexpr auto kInstances = [] {
  constexpr std::size_t kCount = [] {
    std::size_t count = 0;
    for (const int taps : kKernelTaps) count += 2 * static_cast<std::size_t>(most_tiles(taps));
    return count;
  }();
  std::array<Instance, kCount> all{};
  std::size_t count = 0;
  for (const int bundle : {2, 4}) {
    for (const int taps : kKernelTaps) {
      for (int tiles = 1; tiles <= most_tiles(taps); ++tiles) all[count++] = {bundle, taps, tiles};
    }
  }
  return all;
}();

}  // namespace convswap::few_channels
