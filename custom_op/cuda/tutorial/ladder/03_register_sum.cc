#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KnownKernels known(ladder::kernels_of("03_register_sum", {"ladder::register_sum"}));

class RegisterSum final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_03_register_sum"; }

 protected:
  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    constexpr int kThreads = 256;
    return {{"register_sum", "ladder::register_sum", ladder::blocks_for(problem.output_elements(), kThreads),
             kThreads}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_03_register_sum() {
  static const RegisterSum rung;
  return rung;
}

}  // namespace convswap
