#include "cuda/tutorial/ladder/course_layers.h"
#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

constexpr std::string_view kKernel = "ladder::constants";

const KernelRegistration registration(ladder::kernels_of("09_constants", ladder::course_instances(kKernel)));

class Constants final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_09_constants"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem, const Device&) const override {
    return ladder::course_layer(problem) != nullptr ? "" : ladder::no_course_layer();
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"constants", ladder::course_layer(problem)->instance(kKernel),
             static_cast<unsigned>(problem.batch), ladder::kConstantsThreads,
             sizeof(float) * problem.in_channels *
                 (problem.input_size() + problem.out_channels * problem.filter_size())}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_09_constants() {
  static const Constants rung;
  return rung;
}

}  // namespace convswap
