#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

const KernelRegistration registration(
    ladder::kernels_of("13_winograd", {"ladder::evaluate_filters<5>", "ladder::evaluate_filters<7>",
                                       "ladder::winograd<5>", "ladder::winograd<7>"}));

class Winograd final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_13_winograd"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem, const Device&) const override {
    const bool is_square = problem.filter[1] == problem.filter[2];
    if (is_square && (problem.filter[1] == 5 || problem.filter[1] == 7)) return {};
    return "it computes filters of 5x5 and 7x7; these are " + std::to_string(problem.filter[1]) + "x" +
           std::to_string(problem.filter[2]);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    constexpr int kThreads = 64;
    const bool is_5 = problem.filter[1] == 5;
    const int64_t tiles = problem.batch * ((problem.output[1] + 1) / ladder::kTileOutputs) *
                          ((problem.output[2] + 1) / ladder::kTileOutputs);
    const int64_t values = problem.in_channels * points(problem) * points(problem);
    return {{"evaluate_filters", is_5 ? "ladder::evaluate_filters<5>" : "ladder::evaluate_filters<7>",
             ladder::blocks_for(problem.out_channels * problem.in_channels, kThreads), kThreads},
            {"winograd", is_5 ? "ladder::winograd<5>" : "ladder::winograd<7>",
             ladder::blocks_for(tiles, ladder::kWinogradTiles), ladder::kWinogradThreads,
             sizeof(float) * values * ladder::kWinogradTiles}};
  }

  std::size_t scratch_bytes(const ConvProblem& problem) const override {
    return sizeof(float) * problem.out_channels * problem.in_channels * points(problem) * points(problem);
  }

 private:
  static int64_t points(const ConvProblem& problem) { return problem.filter[1] + ladder::kTileOutputs - 1; }
};

}  // namespace

const Algorithm& cuda_ladder_13_winograd() {
  static const Winograd rung;
  return rung;
}

}  // namespace convswap
