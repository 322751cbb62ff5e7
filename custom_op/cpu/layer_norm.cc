// LayerNormalization over the last axis on the CPU. A task is some rows. Sums are in float32, those of
// float64 in float64, with several accumulators, which become vector instructions.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "conv/arithmetic.h"
#include "cpu/float_stage.h"

namespace convswap {
namespace {

constexpr int64_t kElementsPerTask = 16384;

// Returns the sum of `term` of each element.
template <typename Sum, typename Term>
Sum sum_over(const std::vector<Sum>& row, Term term) {
  constexpr size_t kAccumulators = 16;
  Sum accumulators[kAccumulators] = {};
  const size_t full = row.size() / kAccumulators * kAccumulators;
  for (size_t i = 0; i < full; i += kAccumulators) {
    for (size_t j = 0; j < kAccumulators; ++j) accumulators[j] += term(row[i + j]);
  }
  for (size_t i = full; i < row.size(); ++i) accumulators[i - full] += term(row[i]);
  Sum sum = 0;
  for (const Sum accumulator : accumulators) sum += accumulator;
  return sum;
}

template <typename T>
class LayerNormPlan final : public Plan {
 public:
  explicit LayerNormPlan(const LayerNormProblem& problem) : problem_(problem) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Row scale(static_cast<size_t>(problem_.length)), bias(scale.size());
    read(tensors.w, 0, scale);
    if (tensors.b != nullptr) read(tensors.b, 0, bias);
    const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / problem_.length);
    execution.parallel_for(ceil_divide(problem_.rows, rows_per_task), [&](std::ptrdiff_t task) {
      Row row(scale.size());
      const int64_t end = std::min(problem_.rows, (task + 1) * rows_per_task);
      for (int64_t i = task * rows_per_task; i < end; ++i) {
        read(tensors.x, i, row);
        normalise(row, scale, bias);
        T* const y = static_cast<T*>(tensors.y) + i * problem_.length;
        for (size_t j = 0; j < row.size(); ++j) y[j] = static_cast<T>(row[j]);
      }
    });
  }

  std::string describe() const override { return problem_.text(); }

 private:
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Row = std::vector<Sum>;

  void read(const void* data, int64_t index, Row& row) const {
    const T* const first = static_cast<const T*>(data) + index * problem_.length;
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<Sum>(first[i]);
  }

  void normalise(Row& row, const Row& scale, const Row& bias) const {
    const auto length = static_cast<Sum>(problem_.length);
    const Sum mean = sum_over(row, [](Sum value) { return value; }) / length;
    for (Sum& value : row) value -= mean;
    const Sum variance = sum_over(row, [](Sum value) { return value * value; }) / length;
    const Sum factor = 1 / std::sqrt(variance + static_cast<Sum>(problem_.epsilon));
    for (size_t i = 0; i < row.size(); ++i) row[i] = row[i] * factor * scale[i] + bias[i];
  }

  const LayerNormProblem problem_;
};

}  // namespace

const LayerNormStage& cpu_layer_norm_stage() {
  static const FloatStage<LayerNormProblem, LayerNormPlan> stage;
  return stage;
}

}  // namespace convswap
