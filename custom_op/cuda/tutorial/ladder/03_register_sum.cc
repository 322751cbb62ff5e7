#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("03_register_sum", {"ladder::register_sum"}));

ladder::RungLaunch launch(const ConvProblem& problem) {
  constexpr int kThreads = 256;
  return {"register_sum", "ladder::register_sum", ladder::blocks_for(problem.output_elements(), kThreads),
          kThreads};
}

}  // namespace

const Algorithm& cuda_ladder_03_register_sum() {
  static const ladder::OneKernelRung rung("ladder_03_register_sum", launch);
  return rung;
}

}  // namespace convswap
