#pragma once

// Kernel instances of channels_last_depthwise, and the tilings that it chooses among.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/channels_last_depthwise/arguments.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::channels_last_depthwise {

struct Instance {
  bool has_vectors;   // a thread computes 16 bytes of channels instead of one
  int width, stride;  // filter taps and stride along a row; 0 and 0 for any, and for dilations
  int outputs;        // of a strip
  int registers;      // per thread, as compiled for compute capability 9.0; for the estimate

  std::string arguments() const {
    return joined(has_vectors ? "true, " : "false, ", width, ", ", stride, ", ", outputs);
  }
  // Channels of a thread.
  int64_t channels(ElementType type) const {
    return has_vectors ? kVectorBytes / bytes_per_element(type) : 1;
  }
};

inline constexpr Instance kInstances[] = {
    {true, 3, 1, 2, 91},  {true, 3, 1, 4, 122}, {true, 3, 1, 8, 128}, {true, 3, 2, 2, 94},
    {true, 3, 2, 4, 121}, {true, 5, 1, 2, 102}, {true, 5, 1, 4, 126}, {true, 5, 1, 8, 128},
    {true, 5, 2, 2, 107}, {true, 5, 2, 4, 128}, {true, 7, 1, 2, 118}, {true, 7, 1, 4, 127},
    {true, 7, 1, 8, 220}, {true, 7, 2, 2, 120}, {true, 0, 0, 4, 121}, {false, 0, 0, 4, 48},
};
// Computes every problem, and tensors at any addresses.
inline constexpr Instance kWithoutVectors = {false, 0, 0, 4, 48};

struct Tiling {
  Instance instance{};
  int vectors = 1, strips = 1, rows = 1;  // of a band, with a thread for each strip of a vector
  int bands = 1;                          // of a block's tile, one after the other
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated

  int threads() const { return vectors * strips * rows; }
  std::string key() const {
    return joined(instance.arguments(), " vectors ", vectors, " strips ", strips, " rows ", rows, "x", bands);
  }
};

// Vectors of a position, strips of a row, and rows of y.
int64_t vectors_of(const ConvProblem& problem, const Instance& instance);
int64_t strips_of(const ConvProblem& problem, const Instance& instance);
int64_t rows_of(const ConvProblem& problem);

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// The tiling with the least estimated time.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// All tilings in ascending order of estimated time.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

// The tiling without vectors.
Tiling tiling_without_vectors(const ConvProblem& problem);

}  // namespace convswap::channels_last_depthwise
