// Checks the kernel of LayerNormalization on the CPU: `layer_norm FIRST END` normalises random rows per seed,
// of each element type in turn, and compares them with the definition in float64.

#include <cmath>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "compiled.h"
#include "conv/floating_type.h"
#include "cuda/host/kernels.h"
#include "cuda/layer_norm/arguments.h"
#include "cuda_emulation.h"
#include "plan/op_stage.h"
#include "seeded.h"
//
#include "cuda/layer_norm/kernel.cuh"
#include "host.h"

namespace convswap {
namespace {

template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<layer_norm::kInstances>([&]<int kVectors>() {
    return CompiledKernel(instance_name("layer_norm::kernel", name, std::to_string(kVectors)),
                          layer_norm::kernel<T, kVectors>);
  });
}

const CompiledKernels float_kernels(kernels_for<float>("float"));
const CompiledKernels double_kernels({CompiledKernel("layer_norm::kernel<double, 0>",
                                                     layer_norm::kernel<double, 0>)});
const CompiledKernels float16_kernels(kernels_for<Float16>("Float16"));
const CompiledKernels bfloat16_kernels(kernels_for<BFloat16>("BFloat16"));

}  // namespace

void enqueue(const Launch& launch, void*, void** arguments) {
  static unsigned char shared[emulation::kSharedBytes];
  run_kernel<layer_norm::Arguments<float>>(launch, arguments, shared);
}

const LayerNormStage& cuda_layer_norm_stage();

namespace {

// Relative to 1: half an ulp of 16-bit types, and float32 sums of numbers up to 100 over deviations from 0.03
// on.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, double>     ? 1e-11
                              : std::is_same_v<T, Float16>  ? 2e-3
                              : std::is_same_v<T, BFloat16> ? 8e-3
                                                            : 1e-3;

template <typename T>
ShiftedTensor<T> random_tensor(Random& random, int64_t count, double mean, bool has_nan = false) {
  ShiftedTensor<T> tensor(count, one_in(random, 12) ? 1 : 0);
  for (int64_t i = 0; i < count; ++i) tensor.elements[i] = random_element<T>(random, has_nan, mean);
  return tensor;
}

template <typename T>
bool normalises(const LayerNormProblem& problem, const Device& device, Random& random) {
  const int64_t length = problem.length;
  const auto x =
      random_tensor<T>(random, problem.rows * length, one_in(random, 3) ? 50 : 0, one_in(random, 4));
  const auto scale = random_tensor<T>(random, length, 1), bias = random_tensor<T>(random, length, 0);
  const bool has_bias = !one_in(random, 4);
  const ShiftedTensor<T> y(problem.result_elements(), one_in(random, 12) ? 1 : 0);
  cuda_layer_norm_stage()
      .make(problem, device)
      ->run({.x = x.elements, .w = scale.elements, .b = has_bias ? bias.elements : nullptr, .y = y.elements},
            {});
  for (int64_t row = 0; row < problem.rows; ++row) {
    const T* const from = x.elements + row * length;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < length; ++i) mean += number_of(from[i]) / length;
    for (int64_t i = 0; i < length; ++i) variance += std::pow(number_of(from[i]) - mean, 2) / length;
    for (int64_t i = 0; i < length; ++i) {
      const double normal = (number_of(from[i]) - mean) / std::sqrt(variance + problem.epsilon);
      const double expected =
          normal * number_of(scale.elements[i]) + (has_bias ? number_of(bias.elements[i]) : 0);
      const double actual = number_of(y.elements[row * length + i]);
      if (std::abs(actual - expected) <= kTolerance<T> * (1 + std::abs(expected))) continue;
      if (std::isnan(actual) && std::isnan(expected)) continue;
      std::printf("%s: row %ld element %ld: %g, expected %g\n", problem.text().c_str(), row, i, actual,
                  expected);
      return false;
    }
  }
  return y.is_intact_around(problem.result_elements());
}

bool check_seed(int seed) {
  Random random(seed);
  const auto type = static_cast<ElementType>(seed % 4);
  // A third of the rows are no whole vectors; a few are longer than a team holds.
  const int64_t vectors = one_in(random, 2) ? between(random, 1, 24) : between(random, 1, 264);
  const int64_t length = one_in(random, 3) ? between(random, 1, 300) : vectors * 16 / bytes_per_element(type);
  const int64_t rows = between(random, 1, one_in(random, 2) ? 40 : 1 + 20000 / length);
  const float epsilon = one_in(random, 2) ? 1e-3f : 1.0f;
  Device device;
  device.multiprocessors = static_cast<int>(between(random, 1, 4));
  const LayerNormProblem problem{type, epsilon, rows, length};
  return with_floating_type(type, [&]<typename T>() { return normalises<T>(problem, device, random); });
}

}  // namespace
}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::check_seed, count, arguments);
}
