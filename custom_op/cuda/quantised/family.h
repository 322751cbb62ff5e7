#pragma once

// Kernels of quantised, and the tilings that it chooses among.

#include <cstdint>
#include <string>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/quantised/arguments.h"
#include "plan/device.h"

namespace convswap::quantised {

// `each_output`: one output a thread, of any problem.
enum class Kernel { each_output, dense, depthwise, depthwise_columns };

// Filters of a thread of `dense`.
inline constexpr int kDenseFilters[] = {4, 8};

struct DepthwiseInstance {
  int width, stride;  // filter taps and stride along a row; 0 and 0 for any, and for dilations
  int outputs;        // of a row of a strip
  int words = 1;      // of channels of a thread

  std::string arguments() const { return joined(width, ", ", stride, ", ", outputs); }
  std::string column_arguments() const { return joined(arguments(), ", ", words); }
};

inline constexpr DepthwiseInstance kDepthwiseInstances[] = {
    {3, 1, 2}, {3, 1, 8}, {3, 2, 2}, {3, 2, 4}, {5, 1, 2}, {5, 1, 8}, {5, 2, 2}, {5, 2, 4}, {0, 0, 4}};

// Filters are three rows high, and strides along columns those along rows.
inline constexpr DepthwiseInstance kColumnInstances[] = {{3, 1, 2}, {3, 1, 4}, {3, 1, 8},
                                                         {3, 2, 2}, {3, 2, 4}, {3, 2, 4, 2}};

struct Tiling {
  Kernel kernel = Kernel::each_output;
  int64_t blocks = 0;
  int threads = kThreads;
  double cost = 0;  // nanoseconds, estimated

  // Of `dense`.
  int filters = 0, filter_lanes = 0;  // of a thread; threads that share positions
  int64_t rows = 0, columns = 0;      // outputs of a tile
  int64_t stage_words = 0;            // words of channels in shared memory
  Offset<unsigned> x_words{}, w_words{};
  int64_t shared_bytes = 0;

  DepthwiseInstance depthwise{};

  bool needs_scratch() const { return kernel != Kernel::each_output; }
  bool is_depthwise() const { return kernel == Kernel::depthwise || kernel == Kernel::depthwise_columns; }
  int thread_channels() const { return depthwise.words * kWordChannels; }
  int depthwise_rows() const {
    return kernel == Kernel::depthwise_columns ? strip_rows(depthwise.stride) : 1;
  }
  int block_filters() const { return filters * filter_lanes; }
  int positions() const { return threads / filter_lanes * kPositions; }
  std::string key() const;
};

// Words of four channels of a conv group.
int64_t words_of(const ConvProblem& problem);
// Blocks of filters of a conv group.
int64_t filter_blocks_of(const ConvProblem& problem, const Tiling& tiling);
// Extent along an axis of the input that adjacent outputs read.
int64_t staged_extent(const ConvProblem& problem, int axis, int64_t outputs);
// Rows of strips of a depthwise kernel, of all images and depths.
int64_t strip_rows_of(const ConvProblem& problem, const Tiling& tiling);

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::quantised
