// Checks the kernel of Mul on the CPU: `mul FIRST END` multiplies random images per seed, of each element
// type in turn, and compares them with the definition.

#include <cmath>
#include <cstdio>

#include "compiled.h"
#include "conv/floating_type.h"
#include "cuda/host/kernels.h"
#include "cuda/mul/arguments.h"
#include "cuda_emulation.h"
#include "plan/op_stage.h"
#include "seeded.h"
//
#include "cuda/mul/kernel.cuh"
#include "host.h"

namespace convswap {
namespace {

template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return {CompiledKernel(instance_name("mul::kernel", name, "true"), mul::kernel<T, true>),
          CompiledKernel(instance_name("mul::kernel", name, "false"), mul::kernel<T, false>)};
}

const CompiledKernels float_kernels(kernels_for<float>("float"));
const CompiledKernels double_kernels(kernels_for<double>("double"));
const CompiledKernels float16_kernels(kernels_for<Float16>("Float16"));
const CompiledKernels bfloat16_kernels(kernels_for<BFloat16>("BFloat16"));

}  // namespace

void enqueue(const Launch& launch, void*, void** arguments) {
  static unsigned char shared[emulation::kSharedBytes];
  run_kernel<mul::Arguments<float>>(launch, arguments, shared);
}

const MulStage& cuda_mul_stage();

namespace {

template <typename T>
ShiftedTensor<T> random_tensor(Random& random, int64_t count) {
  ShiftedTensor<T> tensor(count, one_in(random, 8) ? 1 : 0);
  for (int64_t i = 0; i < count; ++i) tensor.elements[i] = random_element<T>(random, true);
  return tensor;
}

template <typename T>
bool multiplies(const MulProblem& problem, Random& random) {
  const auto x = random_tensor<T>(random, problem.result_elements());
  const auto factors = random_tensor<T>(random, problem.images * problem.channels);
  const ShiftedTensor<T> y(problem.result_elements(), one_in(random, 8) ? 1 : 0);
  cuda_mul_stage()
      .make(problem, Device{})
      ->run({.x = x.elements, .w = factors.elements, .y = y.elements}, {});
  for (int64_t i = 0; i < problem.result_elements(); ++i) {
    const int64_t image = i / problem.image_elements(), channel = i % problem.channels;
    const double factor = number_of(factors.elements[image * problem.channels + channel]);
    // Products of numbers of 16 bits are exact; those of float32 and float64 are rounded to the type here.
    const double product = number_of(x.elements[i]) * factor;
    const double actual = number_of(y.elements[i]);
    const double expected = sizeof(T) == 8 ? product : number_of(T(static_cast<float>(product)));
    if (actual == expected || (std::isnan(actual) && std::isnan(expected))) continue;
    std::printf("%s: element %ld: %g, expected %g\n", problem.text().c_str(), i, actual, expected);
    return false;
  }
  return y.is_intact_around(problem.result_elements());
}

bool check_seed(int seed) {
  Random random(seed);
  const auto type = static_cast<ElementType>(seed % 4);
  // A third of the images have channels that are no whole vectors.
  const int64_t channels =
      one_in(random, 3) ? between(random, 1, 100) : between(random, 1, 20) * 16 / bytes_per_element(type);
  const int64_t positions = between(random, 1, one_in(random, 2) ? 40 : 1 + 60000 / channels);
  const MulProblem problem{type, between(random, 1, 4), positions, channels};
  return with_floating_type(type, [&]<typename T>() { return multiplies<T>(problem, random); });
}

}  // namespace
}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::check_seed, count, arguments);
}
