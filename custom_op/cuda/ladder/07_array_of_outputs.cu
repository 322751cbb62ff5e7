#include "cuda/ladder/07_array_of_outputs.cuh"
#include "cuda/ladder/rung.h"

namespace convswap {
namespace {

class ArrayOfOutputs final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_07_array_of_outputs"; }

 protected:
  std::string why_not_here(const ConvProblem& problem, const Device&) const override {
    if (kernel_for(problem.out_channels) != nullptr) return {};
    return "it is compiled for 4, 6, 12, 16, 24 and 50 filters, and these are " +
           std::to_string(problem.out_channels);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"array_of_outputs", kernel_for(problem.out_channels), static_cast<unsigned>(problem.batch),
             ladder::kArrayThreads,
             sizeof(float) * problem.in_channels *
                 (problem.input_size() + problem.out_channels * problem.filter_size())}};
  }

 private:
  static const void* kernel_for(int64_t filters) {
    switch (filters) {
      case 4:
        return ladder::address(ladder::array_of_outputs<4>);
      case 6:
        return ladder::address(ladder::array_of_outputs<6>);
      case 12:
        return ladder::address(ladder::array_of_outputs<12>);
      case 16:
        return ladder::address(ladder::array_of_outputs<16>);
      case 24:
        return ladder::address(ladder::array_of_outputs<24>);
      case 50:
        return ladder::address(ladder::array_of_outputs<50>);
    }
    return nullptr;
  }
};

}  // namespace

const Algorithm& cuda_ladder_07_array_of_outputs() {
  static const ArrayOfOutputs rung;
  return rung;
}

}  // namespace convswap
