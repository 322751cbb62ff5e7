#pragma once

// The convolutions of the course's networks, for kernels that have an instance for each of them.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "conv/problem.h"

namespace convswap::ladder {

// Square images, square filters.
struct Layer {
  int channels, size, filters, filter;

  bool matches(const ConvProblem& problem) const {
    return problem.in_channels == channels && problem.input[1] == size && problem.input[2] == size &&
           problem.out_channels == filters && problem.filter[1] == filter && problem.filter[2] == filter;
  }

  // The name of the layer's instance of a kernel whose template takes the layer's sizes.
  std::string instance(std::string_view kernel) const {
    return std::string(kernel) + "<" + std::to_string(channels) + ", " + std::to_string(size) + ", " +
           std::to_string(filters) + ", " + std::to_string(filter) + ">";
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

// The instances of a kernel, such as "ladder::constants", for all layers.
inline std::vector<std::string> course_instances(std::string_view kernel) {
  std::vector<std::string> all;
  for (const Layer& layer : kCourseLayers) all.push_back(layer.instance(kernel));
  return all;
}

// The layer that equals the problem, or null.
inline const Layer* course_layer(const ConvProblem& problem) {
  const auto found =
      std::ranges::find_if(kCourseLayers, [&](const Layer& layer) { return layer.matches(problem); });
  return found == kCourseLayers.end() ? nullptr : &*found;
}

inline std::string no_course_layer() {
  return "it is compiled for the convolutions of the course's networks, and this is not one of them";
}

}  // namespace convswap::ladder
