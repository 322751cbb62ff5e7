#include "cuda/ladder/09_constants.cuh"
#include "cuda/ladder/course_layers.h"
#include "cuda/ladder/rung.h"

namespace convswap {
namespace {

class Constants final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_09_constants"; }

 protected:
  std::string why_not_here(const ConvProblem& problem, const Device&) const override {
    return kernel_for(problem) != nullptr ? "" : ladder::no_course_layer();
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"constants", kernel_for(problem), static_cast<unsigned>(problem.batch),
             ladder::kConstantsThreads,
             sizeof(float) * problem.in_channels *
                 (problem.input_size() + problem.out_channels * problem.filter_size())}};
  }

 private:
  static const void* kernel_for(const ConvProblem& problem) {
    return ladder::for_course_layer<const void*>(problem, [](auto layer) {
      constexpr ladder::Layer kLayer = decltype(layer)::kLayer;
      return ladder::address(ladder::constants<kLayer.channels, kLayer.size, kLayer.filters, kLayer.filter>);
    });
  }
};

}  // namespace

const Algorithm& cuda_ladder_09_constants() {
  static const Constants rung;
  return rung;
}

}  // namespace convswap
