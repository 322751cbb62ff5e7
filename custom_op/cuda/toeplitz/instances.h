#pragma once

// The list of toeplitz's kernel instances: for each format of the tensor cores one of each of these.

#include <array>
#include <cstddef>
#include <iterator>
#include <string>

namespace convswap::toeplitz {

struct Instance {
  int tiles;      // of eight columns of the product in a thread's registers
  bool finishes;  // something follows the convolution

  // As the kernel's template takes them.
  std::string arguments() const { return std::to_string(tiles) + (finishes ? ", true" : ", false"); }
};

inline constexpr int kKernelTiles[] = {2, 4, 6, 8, 10, 12};

inline constexpr auto kInstances = [] {
  std::array<Instance, 2 * std::size(kKernelTiles)> all{};
  std::size_t count = 0;
  for (const int tiles : kKernelTiles) {
    for (const bool finishes : {false, true}) all[count++] = {tiles, finishes};
  }
  return all;
}();

}  // namespace convswap::toeplitz
