#pragma once

#include <string_view>

#include "conv/problem.h"

namespace convswap {

// Type names in kernel instances: the formats of tensor_core_formats.cuh, and the element types of kernels
// without tensor cores.
inline constexpr std::string_view kTensorCoreFormats[] = {"ScaledFloat16Pairs", "TwoScaledFloat16",
                                                          "Float16Pairs", "Bfloat16Pairs"};
inline constexpr std::string_view kElements[] = {"float", "double", "Float16", "BFloat16"};
inline constexpr std::string_view kElementsWithoutFloat64[] = {"float", "Float16", "BFloat16"};
inline constexpr std::string_view kCodes[] = {"Int8", "UInt8"};

// The tensor-core format for a problem's data and precision.
std::string_view tensor_core_format(const ConvProblem& problem);

// The number of parts per number in that format, and the number of products per pair of numbers.
int parts_of(const ConvProblem& problem);
int terms_of(const ConvProblem& problem);

// The element type's name in kernel instances.
std::string_view element_name(ElementType type);

}  // namespace convswap
