#pragma once

#include <string_view>

#include "conv/problem.h"

namespace convswap {

// What the tensor cores are given of a problem's data: the name of a format of tensor_core_formats.cuh.
std::string_view tensor_core_format(const ConvProblem& problem);

// Into how many parts that format splits each number, and how many products of them count.
int parts_of(const ConvProblem& problem);
int terms_of(const ConvProblem& problem);

// The element type as kernels name it that compute with ordinary arithmetic.
std::string_view element_name(ElementType type);

}  // namespace convswap
