#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("02_global_adds", {"ladder::global_adds"}));

ladder::RungLaunch launch(const ConvProblem& problem) {
  constexpr int kThreads = 256;
  return {"global_adds", "ladder::global_adds", ladder::blocks_for(problem.output_elements(), kThreads),
          kThreads};
}

}  // namespace

const Algorithm& cuda_ladder_02_global_adds() {
  static const ladder::OneKernelRung rung("ladder_02_global_adds", launch);
  return rung;
}

}  // namespace convswap
