#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("05_flat_blocks", {"ladder::flat_blocks"}));

ladder::RungLaunch launch(const ConvProblem& problem) {
  const Dim3 grid{static_cast<unsigned>(problem.batch), static_cast<unsigned>(problem.out_channels)};
  return {"flat_blocks", "ladder::flat_blocks", grid, Dim3{1024},
          sizeof(float) * problem.in_channels * (problem.input_size() + problem.filter_size())};
}

}  // namespace

const Algorithm& cuda_ladder_05_flat_blocks() {
  static const ladder::OneKernelRung rung("ladder_05_flat_blocks", launch);
  return rung;
}

}  // namespace convswap
