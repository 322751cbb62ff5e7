#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

const KnownKernels known(ladder::kernels_of("12_fused_im2col", {"ladder::fused_im2col"}));

class FusedIm2col final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_12_fused_im2col"; }

 protected:
  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    constexpr int kTile = ladder::kFusedTile;
    const Extents grid{ladder::blocks_for(problem.batch * problem.output_size(), kTile),
                       ladder::blocks_for(problem.out_channels, kTile)};
    return {{"fused_im2col", "ladder::fused_im2col", grid, Extents{kTile, kTile},
             2 * sizeof(float) * kTile * kTile}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_12_fused_im2col() {
  static const FusedIm2col rung;
  return rung;
}

}  // namespace convswap
