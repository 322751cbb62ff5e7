// Mul on the CPU. A task is some positions of an image.

#include <algorithm>
#include <string>
#include <type_traits>

#include "conv/arithmetic.h"
#include "cpu/float_stage.h"

namespace convswap {
namespace {

constexpr int64_t kElementsPerTask = 16384;

template <typename T>
class MulPlan final : public Plan {
 public:
  explicit MulPlan(const MulProblem& problem) : problem_(problem) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    using Product = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const int64_t channels = problem_.channels, positions = problem_.positions;
    const int64_t positions_per_task = std::max<int64_t>(1, kElementsPerTask / channels);
    const int64_t tasks_per_image = ceil_divide(positions, positions_per_task);
    execution.parallel_for(problem_.images * tasks_per_image, [&](std::ptrdiff_t task) {
      const int64_t image = task / tasks_per_image, first = task % tasks_per_image * positions_per_task;
      const T* const factors = static_cast<const T*>(tensors.w) + image * channels;
      for (int64_t p = first; p < std::min(positions, first + positions_per_task); ++p) {
        const int64_t at = (image * positions + p) * channels;
        const T* const x = static_cast<const T*>(tensors.x) + at;
        T* const y = static_cast<T*>(tensors.y) + at;
        for (int64_t c = 0; c < channels; ++c)
          y[c] = static_cast<T>(static_cast<Product>(x[c]) * static_cast<Product>(factors[c]));
      }
    });
  }

  std::string describe() const override { return problem_.text(); }

 private:
  const MulProblem problem_;
};

}  // namespace

const MulStage& cpu_mul_stage() {
  static const FloatStage<MulProblem, MulPlan> stage;
  return stage;
}

}  // namespace convswap
