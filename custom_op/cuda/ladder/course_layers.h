#pragma once

// The convolutions of the course's networks, for kernels that are compiled for one of them each.

#include <array>
#include <string>
#include <utility>

#include "conv/problem.h"

namespace convswap::ladder {

// Square images, square filters.
struct Layer {
  int channels, size, filters, filter;

  bool is(const ConvProblem& problem) const {
    return problem.in_channels == channels && problem.input[1] == size && problem.input[2] == size &&
           problem.out_channels == filters && problem.filter[1] == filter && problem.filter[2] == filter;
  }
};

inline constexpr std::array<Layer, 13> kCourseLayers = {{
    {1, 28, 50, 5},  // 2017
    {1, 64, 6, 5},
    {6, 30, 16, 5},  // spring 2018
    {1, 72, 12, 7},
    {12, 33, 24, 7},  // fall 2018
    {1, 48, 6, 5},
    {6, 22, 16, 5},  // spring 2019
    {1, 48, 12, 7},
    {12, 21, 24, 7},  // spring 2019, the network to start from
    {1, 70, 12, 5},
    {12, 33, 24, 5},  // fall 2019
    {1, 86, 4, 7},
    {4, 40, 16, 7},  // from 2020 on
}};

template <int kIndex>
struct CourseLayer {
  static constexpr Layer kLayer = kCourseLayers[kIndex];
};

// What `of(CourseLayer)` gives for the layer that the problem is; nothing where it is none of them.
template <typename Result, typename Of>
Result for_course_layer(const ConvProblem& problem, Of of) {
  Result found{};
  const auto look = [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((kCourseLayers[kIndex].is(problem) && (found = of(CourseLayer<kIndex>()))), ...);
  };
  look(std::make_integer_sequence<int, static_cast<int>(kCourseLayers.size())>());
  return found;
}

inline std::string no_course_layer() {
  return "it is compiled for each convolution of the course's networks, and this is none of them";
}

}  // namespace convswap::ladder
