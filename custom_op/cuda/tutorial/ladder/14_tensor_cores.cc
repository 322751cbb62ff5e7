#include "cuda/host/limits.h"
#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

const KernelRegistration registration({.header = "cuda/tutorial/ladder/14_tensor_cores.cuh",
                                       .instances = {"ladder::tensor_cores"},
                                       .min_capability = 80});

class TensorCores final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_14_tensor_cores"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem, const Device& device) const override {
    if (problem.precision == Precision::ieee) return "it rounds to TF32 and precision ieee was asked for";
    return why_not_capability(80, device);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    const Dim3 grid{ladder::blocks_for(problem.batch * problem.output_size(), ladder::kTensorColumns),
                    ladder::blocks_for(problem.out_channels, ladder::kTensorFilters)};
    return {{"tensor_cores", "ladder::tensor_cores", grid, ladder::kTensorThreads,
             sizeof(float) * ladder::kTensorSharedFloats}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_14_tensor_cores() {
  static const TensorCores rung;
  return rung;
}

}  // namespace convswap
