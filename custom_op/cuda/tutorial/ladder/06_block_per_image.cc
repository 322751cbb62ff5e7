#include "cuda/tutorial/ladder/rung.h"

namespace convswap {
namespace {

const KnownKernels known(ladder::kernels_of("06_block_per_image", {"ladder::block_per_image"}));

class BlockPerImage final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_06_block_per_image"; }

 protected:
  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"block_per_image", "ladder::block_per_image", static_cast<unsigned>(problem.batch), 1024,
             sizeof(float) * problem.in_channels * (problem.input_size() + problem.filter_size())}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_06_block_per_image() {
  static const BlockPerImage rung;
  return rung;
}

}  // namespace convswap
