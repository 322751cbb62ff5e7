#pragma once

#include <string_view>

#include "conv/problem.h"

namespace convswap {

// The formats of tensor_core_formats.cuh, and the element types of kernels that compute with ordinary
// arithmetic, as kernels name them.
inline constexpr std::string_view kTensorCoreFormats[] = {"ScaledFloat16Pairs", "TwoScaledFloat16",
                                                          "Float16Pairs", "Bfloat16Pairs"};
inline constexpr std::string_view kElements[] = {"float", "double", "Float16", "BFloat16"};
inline constexpr std::string_view kElementsButFloat64[] = {"float", "Float16", "BFloat16"};

// What the tensor cores are given of a problem's data: one of these formats.
std::string_view tensor_core_format(const ConvProblem& problem);

// Into how many parts that format splits each number, and how many products of them count.
int parts_of(const ConvProblem& problem);
int terms_of(const ConvProblem& problem);

// The element type as kernels name it.
std::string_view element_name(ElementType type);

}  // namespace convswap
