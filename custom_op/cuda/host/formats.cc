#include "cuda/host/formats.h"

namespace convswap {
namespace {

// float32 data in precision ieee are split into two operands each.
bool is_split(const ConvProblem& problem) {
  return problem.type == ElementType::float32 && problem.precision == Precision::ieee;
}

}  // namespace

std::string_view tensor_core_format(const ConvProblem& problem) {
  if (problem.type == ElementType::float16) return "Float16Pairs";
  if (problem.type == ElementType::bfloat16) return "Bfloat16Pairs";
  return is_split(problem) ? "TwoScaledFloat16" : "ScaledFloat16Pairs";
}

int parts_of(const ConvProblem& problem) { return is_split(problem) ? 2 : 1; }
int terms_of(const ConvProblem& problem) { return is_split(problem) ? 3 : 1; }

std::string_view element_name(ElementType type) {
  switch (type) {
    case ElementType::float32:
      return "float";
    case ElementType::float64:
      return "double";
    case ElementType::float16:
      return "Float16";
    case ElementType::bfloat16:
      return "BFloat16";
    case ElementType::int8:
      return "Int8";
    case ElementType::uint8:
      return "UInt8";
  }
  return {};
}

}  // namespace convswap
