#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conv/floating_type.h"
#include "plan/op_stage.h"

namespace convswap {

// The CPU's stage of an op for floating-point types, whose plans are TypedPlan<T> of an element type.
template <typename Problem, template <typename> typename TypedPlan>
class FloatStage final : public OpStage<Problem> {
 public:
  std::unique_ptr<Plan> make(const Problem& problem, const Device&) const override {
    return with_floating_type(problem.type, [&]<typename T>() -> std::unique_ptr<Plan> {
      return std::make_unique<TypedPlan<T>>(problem);
    });
  }

  std::vector<std::string> kernels(const Problem&, const Device&) const override { return {}; }
};

}  // namespace convswap
