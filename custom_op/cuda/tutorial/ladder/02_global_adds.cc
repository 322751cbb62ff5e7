#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KnownKernels known(ladder::kernels_of("02_global_adds", {"ladder::global_adds"}));

class GlobalAdds final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_02_global_adds"; }

 protected:
  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    constexpr int kThreads = 256;
    return {{"global_adds", "ladder::global_adds", ladder::blocks_for(problem.output_elements(), kThreads),
             kThreads}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_02_global_adds() {
  static const GlobalAdds rung;
  return rung;
}

}  // namespace convswap
