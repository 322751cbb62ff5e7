#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conv/small_floats.h"
#include "plan/op_stage.h"

namespace convswap {

// The CPU's stage of an op for floating-point types, whose plans are TypedPlan<T> of an element type.
template <typename Problem, template <typename> typename TypedPlan>
class FloatStage final : public OpStage<Problem> {
 public:
  std::unique_ptr<Plan> make(const Problem& problem, const Device&) const override {
    switch (problem.type) {
      case ElementType::float64:
        return std::make_unique<TypedPlan<double>>(problem);
      case ElementType::float16:
        return std::make_unique<TypedPlan<Float16>>(problem);
      case ElementType::bfloat16:
        return std::make_unique<TypedPlan<BFloat16>>(problem);
      default:  // the op has no other type
        return std::make_unique<TypedPlan<float>>(problem);
    }
  }

  std::vector<std::string> kernels(const Problem&, const Device&) const override { return {}; }
};

}  // namespace convswap
