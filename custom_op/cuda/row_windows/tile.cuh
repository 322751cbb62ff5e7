#pragma once

#include "cuda/row_windows/arguments.h"

namespace convswap::row_windows {

// What a block has of every band: the filters of a group or, where they are more than a product has rows, a
// part of them.
struct Share {
  int first_channel, first_filter, filters;

  template <typename Element>
  __device__ explicit Share(const Arguments<Element>& problem) {
    const int group = problem.filter_blocks.quotient_of_any(blockIdx.y);
    const int of_group =
        static_cast<int>(blockIdx.y - group * problem.filter_blocks.divisor) * problem.block_filters;
    first_channel = group * problem.channels;
    first_filter = group * problem.filters + of_group;
    filters = min(problem.block_filters, problem.filters - of_group);
  }
};

// A band by its number through all images.
struct Band {
  int image, first_row;  // of the output

  __device__ Band(int image, int first_row) : image(image), first_row(first_row) {}

  template <typename Element>
  __device__ Band(const Arguments<Element>& problem, int number)
      : image(problem.bands_divisor.quotient_of_any(number)),
        first_row((number - image * problem.bands) * problem.groups * problem.folds) {}
};

}  // namespace convswap::row_windows
