#include <algorithm>
#include <iterator>

#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

constexpr int kFilters[] = {4, 6, 12, 16, 24, 50};

std::string instance_for(int64_t filters) {
  return "ladder::array_of_outputs<" + std::to_string(filters) + ">";
}

std::vector<std::string> instances() {
  std::vector<std::string> all;
  for (const int filters : kFilters) all.push_back(instance_for(filters));
  return all;
}

const KernelRegistration registration(ladder::kernels_of("07_array_of_outputs", instances()));

class ArrayOfOutputs final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_07_array_of_outputs"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem, const Device&) const override {
    if (std::ranges::find(kFilters, problem.out_channels) != std::end(kFilters)) return {};
    return "it is compiled for 4, 6, 12, 16, 24 and 50 filters; this layer has " +
           std::to_string(problem.out_channels);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"array_of_outputs", instance_for(problem.out_channels), static_cast<unsigned>(problem.batch),
             ladder::kArrayThreads,
             sizeof(float) * problem.in_channels *
                 (problem.input_size() + problem.out_channels * problem.filter_size())}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_07_array_of_outputs() {
  static const ArrayOfOutputs rung;
  return rung;
}

}  // namespace convswap
