#include "cpu/tutorial/ladder/01_loops.h"

#include <memory>
#include <vector>

#include "cpu/tutorial/ladder/problem.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

class LoopsPlan final : public Plan {
 public:
  explicit LoopsPlan(const ConvProblem& problem)
      : shapes_(ladder::shapes_of(problem)), no_bias_(static_cast<std::size_t>(problem.out_channels)) {}

  void run(const ConvTensors& tensors, const Execution&) const override {
    ladder::Convolution conv = shapes_;
    conv.x = static_cast<const float*>(tensors.x);
    conv.w = static_cast<const float*>(tensors.w);
    conv.b = tensors.b == nullptr ? no_bias_.data() : static_cast<const float*>(tensors.b);
    conv.y = static_cast<float*>(tensors.y);
    ladder::loops(conv);
  }

  std::string describe() const override { return "seven loops, one thread"; }

 private:
  ladder::Convolution shapes_;
  std::vector<float> no_bias_;
};

class Loops final : public Algorithm {
 public:
  std::string_view name() const override { return "ladder_01_loops"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }
  std::string_view why_by_name_alone() const override { return ladder::kRung; }

  Offer offer(const ConvProblem& problem, const Device&) const override {
    if (std::string reason = ladder::why_not(problem); !reason.empty())
      return Offer::refusal(std::move(reason));
    return {{}, std::nullopt, [problem] { return std::make_unique<LoopsPlan>(problem); }};
  }
};

}  // namespace

const Algorithm& cpu_ladder_01_loops() {
  static const Loops algorithm;
  return algorithm;
}

}  // namespace convswap
