#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("04_shared_memory", {"ladder::shared_memory"}));

ladder::RungLaunch launch(const ConvProblem& problem) {
  const Dim3 grid{static_cast<unsigned>(problem.batch), static_cast<unsigned>(problem.out_channels)};
  return {"shared_memory", "ladder::shared_memory", grid, Dim3{32, 32},
          sizeof(float) * problem.in_channels * (problem.input_size() + problem.filter_size())};
}

}  // namespace

const Algorithm& cuda_ladder_04_shared_memory() {
  static const ladder::OneKernelRung rung("ladder_04_shared_memory", launch);
  return rung;
}

}  // namespace convswap
