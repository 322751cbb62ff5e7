#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("06_block_per_image", {"ladder::block_per_image"}));

ladder::RungLaunch launch(const ConvProblem& problem) {
  return {"block_per_image", "ladder::block_per_image", static_cast<unsigned>(problem.batch), 1024,
          sizeof(float) * problem.in_channels * (problem.input_size() + problem.filter_size())};
}

}  // namespace

const Algorithm& cuda_ladder_06_block_per_image() {
  static const ladder::OneKernelRung rung("ladder_06_block_per_image", launch);
  return rung;
}

}  // namespace convswap
