#pragma once

// Kernel instances of channels_last_depthwise, and the tilings that it chooses among.

#include <cstdint>
#include <string>
#include <string_view>

#include "conv/problem.h"
#include "cuda/channels_last_depthwise/arguments.h"
#include "cuda/host/candidates.h"
#include "cuda/host/kernels.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::channels_last_depthwise {

// How a thread computes its strip of columns: down the rows, for a word of channels; row by row, for a vector
// of channels; or row by row, for one filter.
enum class Kind { sliding, vectors, single };

struct Instance {
  Kind kind;
  int width, stride;  // filter taps and stride along a row; 0 and 0 for any, and for dilations
  int registers;      // per thread, as compiled for compute capability 9.0; for the estimate

  std::string name(std::string_view type) const {
    const bool slides = kind == Kind::sliding;
    return instance_name(
        slides ? "channels_last_depthwise::sliding" : "channels_last_depthwise::row_by_row", type,
        slides ? joined(width, ", ", stride) : joined(kind == Kind::vectors ? "true, " : "false, ", width));
  }
  // Bytes of channels of a thread.
  int bytes(ElementType type) const {
    return kind == Kind::sliding   ? kWordBytes
           : kind == Kind::vectors ? kVectorBytes
                                   : static_cast<int>(bytes_per_element(type));
  }
  int channels(ElementType type) const { return bytes(type) / static_cast<int>(bytes_per_element(type)); }
};

inline constexpr Instance kInstances[] = {
    {Kind::sliding, 3, 1, 85},  {Kind::sliding, 3, 2, 80},  {Kind::sliding, 5, 1, 149},
    {Kind::sliding, 5, 2, 140}, {Kind::sliding, 7, 1, 220}, {Kind::sliding, 7, 2, 200},
    {Kind::vectors, 3, 1, 122}, {Kind::vectors, 5, 1, 126}, {Kind::vectors, 7, 1, 127},
    {Kind::vectors, 0, 0, 121}, {Kind::single, 0, 0, 48},
};
// Computes every problem, and tensors at any addresses.
inline constexpr Instance kSingle = {Kind::single, 0, 0, 48};

struct Tiling {
  Instance instance{};
  // Threads of a block: one for each vector of channels of a strip of columns of a run of rows.
  int vectors = 1, strips = 1, runs = 1;
  int rows = 1;             // of y in a run
  int64_t stage_bytes = 0;  // of `sliding`: pixels of a row of x for all strips
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated

  int threads() const { return vectors * strips * runs; }
  int64_t shared_bytes() const { return runs * kSlidingStages * stage_bytes; }
  std::string key() const {
    return joined(instance.name("T"), " vectors ", vectors, " strips ", strips, " runs ", runs, " of ", rows);
  }
};

// Vectors of a position, strips of a row, and runs of all images and depths.
int64_t vectors_of(const ConvProblem& problem, const Instance& instance);
int64_t strips_of(const ConvProblem& problem);
int64_t runs_of(const ConvProblem& problem, const Tiling& tiling);

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

// The tiling for tensors at any addresses.
Tiling tiling_of_single_channels(const ConvProblem& problem);

}  // namespace convswap::channels_last_depthwise
