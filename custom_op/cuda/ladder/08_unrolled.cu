#include "cuda/ladder/08_unrolled.cuh"
#include "cuda/ladder/rung.h"

namespace convswap {
namespace {

class Unrolled final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_08_unrolled"; }

 protected:
  std::string why_not_here(const ConvProblem& problem, const Device&) const override {
    if (kernel_for(problem) != nullptr) return {};
    return "it is compiled for 5x5 filters, 6, 12, 16, 24 or 50 of them, and for 7x7 filters, 4, 12, 16 or "
           "24, "
           "and these are " +
           std::to_string(problem.out_channels) + " of " + std::to_string(problem.filter[1]) + "x" +
           std::to_string(problem.filter[2]);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"unrolled", kernel_for(problem), static_cast<unsigned>(problem.batch), ladder::kUnrolledThreads,
             sizeof(float) * problem.in_channels *
                 (problem.input_size() + problem.out_channels * problem.filter_size())}};
  }

 private:
  static const void* kernel_for(const ConvProblem& problem) {
    if (problem.filter[1] != problem.filter[2]) return nullptr;
    switch (problem.filter[1] * 100 + problem.out_channels) {
      case 506:
        return ladder::address(ladder::unrolled<6, 5>);
      case 512:
        return ladder::address(ladder::unrolled<12, 5>);
      case 516:
        return ladder::address(ladder::unrolled<16, 5>);
      case 524:
        return ladder::address(ladder::unrolled<24, 5>);
      case 550:
        return ladder::address(ladder::unrolled<50, 5>);
      case 704:
        return ladder::address(ladder::unrolled<4, 7>);
      case 712:
        return ladder::address(ladder::unrolled<12, 7>);
      case 716:
        return ladder::address(ladder::unrolled<16, 7>);
      case 724:
        return ladder::address(ladder::unrolled<24, 7>);
    }
    return nullptr;
  }
};

}  // namespace

const Algorithm& cuda_ladder_08_unrolled() {
  static const Unrolled rung;
  return rung;
}

}  // namespace convswap
