#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

struct Filters {
  int count, size;

  std::string instance() const {
    return "ladder::unrolled<" + std::to_string(count) + ", " + std::to_string(size) + ">";
  }
};
constexpr Filters kFilters[] = {{6, 5}, {12, 5}, {16, 5}, {24, 5}, {50, 5},
                                {4, 7}, {12, 7}, {16, 7}, {24, 7}};

std::vector<std::string> instances() {
  std::vector<std::string> all;
  for (const Filters& filters : kFilters) all.push_back(filters.instance());
  return all;
}

const KernelRegistration registration(ladder::kernels_of("08_unrolled", instances()));

// Null if the kernel is not compiled for the problem's filters.
const Filters* filters_of(const ConvProblem& problem) {
  for (const Filters& filters : kFilters) {
    if (problem.filter[1] == filters.size && problem.filter[2] == filters.size &&
        problem.out_channels == filters.count) {
      return &filters;
    }
  }
  return nullptr;
}

class Unrolled final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_08_unrolled"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem, const Device&) const override {
    if (filters_of(problem) != nullptr) return {};
    return "it is compiled for 6, 12, 16, 24 or 50 filters of 5x5 and for 4, 12, 16 or 24 filters of 7x7; "
           "this layer has " +
           std::to_string(problem.out_channels) + " of " + std::to_string(problem.filter[1]) + "x" +
           std::to_string(problem.filter[2]);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"unrolled", filters_of(problem)->instance(), static_cast<unsigned>(problem.batch),
             ladder::kUnrolledThreads,
             sizeof(float) * problem.in_channels *
                 (problem.input_size() + problem.out_channels * problem.filter_size())}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_08_unrolled() {
  static const Unrolled rung;
  return rung;
}

}  // namespace convswap
