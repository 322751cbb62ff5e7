#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("12_fused_im2col", {"ladder::fused_im2col"}));

ladder::RungLaunch launch(const ConvProblem& problem) {
  constexpr int kTile = ladder::kFusedTile;
  const Dim3 grid{ladder::blocks_for(problem.batch * problem.output_size(), kTile),
                  ladder::blocks_for(problem.out_channels, kTile)};
  return {"fused_im2col", "ladder::fused_im2col", grid, Dim3{kTile, kTile},
          2 * sizeof(float) * kTile * kTile};
}

}  // namespace

const Algorithm& cuda_ladder_12_fused_im2col() {
  static const ladder::OneKernelRung rung("ladder_12_fused_im2col", launch);
  return rung;
}

}  // namespace convswap
