#include "cuda/ladder/14_tensor_cores.cuh"
#include "cuda/ladder/rung.h"

namespace convswap {
namespace {

class TensorCores final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_14_tensor_cores"; }

 protected:
  std::string why_not_here(const ConvProblem& problem, const Device& device) const override {
    if (problem.precision == Precision::ieee) return "it rounds to TF32 and precision ieee was asked for";
    if (device.compute_capability >= 80) return {};
    return "it needs compute capability 8.0 or newer, and " + device.name + " has " +
           std::to_string(device.compute_capability / 10) + "." +
           std::to_string(device.compute_capability % 10);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    const Extents grid{ladder::blocks_for(problem.batch * problem.output_size(), ladder::kTensorColumns),
                       ladder::blocks_for(problem.out_channels, ladder::kTensorFilters)};
    return {{"tensor_cores", ladder::address(ladder::tensor_cores), grid, ladder::kTensorThreads,
             sizeof(float) * ladder::kTensorSharedFloats}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_14_tensor_cores() {
  static const TensorCores rung;
  return rung;
}

}  // namespace convswap
