// Checks the kernel of LayoutPool on the CPU: `pool FIRST END` computes a random pool per seed, of each
// element type in turn, and compares it with the definition.

#include <cmath>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "compiled.h"
#include "conv/epilogue_math.h"
#include "conv/floating_type.h"
#include "cuda/host/kernels.h"
#include "cuda/pool/arguments.h"
#include "cuda/pool/family.h"
#include "cuda_emulation.h"
#include "plan/op_stage.h"
#include "seeded.h"
//
#include "host.h"
#include "instances/pool.h"

namespace convswap {

namespace pool {
alignas(128) unsigned char shared[emulation::kSharedBytes];
}

namespace {

const CompiledKernels float_kernels(pool_kernels_for<float>("float"));
const CompiledKernels double_kernels(pool_kernels_for<double>("double"));
const CompiledKernels float16_kernels(pool_kernels_for<Float16>("Float16"));
const CompiledKernels bfloat16_kernels(pool_kernels_for<BFloat16>("BFloat16"));
const CompiledKernels int8_kernels(pool_kernels_for<Int8>("Int8"));
const CompiledKernels uint8_kernels(pool_kernels_for<UInt8>("UInt8"));

}  // namespace

void enqueue(const Launch& launch, void*, void** arguments) {
  run_kernel<pool::Arguments<float>>(launch, arguments, pool::shared);
}

const PoolStage& cuda_pool_stage();

namespace {

// Relative to 1: half an ulp of 16-bit types, and sums of float32 in another order.
template <typename T>
constexpr double kPoolTolerance = sizeof(T) == 2 ? (std::is_same_v<T, Float16> ? 1e-3 : 8e-3) : 1e-5;

template <typename T>
bool pools(const PoolProblem& problem, const Device& device, Random& random) {
  const bool has_nan = one_in(random, 4);
  const int64_t x_count = problem.batch * problem.input[0] * problem.input[1] * problem.channels;
  ShiftedTensor<T> x(x_count, one_in(random, 5) ? 1 : 0);
  const int64_t y_count = problem.result_elements();
  ShiftedTensor<T> y(y_count, one_in(random, 5) ? 1 : 0);
  for (int64_t i = 0; i < x_count; ++i) x.elements[i] = random_element<T>(random, has_nan);
  cuda_pool_stage().make(problem, device)->run({.x = x.elements, .y = y.elements}, {});
  const T* result = y.elements;
  for (int64_t n = 0; n < problem.batch; ++n) {
    for (int64_t p = 0; p < problem.output[0]; ++p) {
      for (int64_t q = 0; q < problem.output[1]; ++q) {
        for (int64_t c = 0; c < problem.channels; ++c, ++result) {
          const auto value_at = [&](int64_t row, int64_t column) {
            const int64_t position = (n * problem.input[0] + row) * problem.input[1] + column;
            return number_of(x.elements[position * problem.channels + c]);
          };
          const double expected =
              pooled<double>(problem.pool.kind, PoolWindow(problem.pool, 0, p, problem.input[0]),
                             PoolWindow(problem.pool, 1, q, problem.input[1]), value_at);
          const double actual = number_of(*result);
          const double limit =
              problem.pool.kind == PoolKind::max ? 0 : kPoolTolerance<T> * (1 + std::abs(expected));
          if (std::abs(actual - expected) <= limit || (std::isnan(actual) && std::isnan(expected))) continue;
          std::printf("image %ld row %ld column %ld channel %ld: %g, expected %g\n", n, p, q, c, actual,
                      expected);
          return false;
        }
      }
    }
  }
  return y.is_intact_around(y_count);
}

bool check_seed(int seed) {
  Random random(seed);
  const auto type = static_cast<ElementType>(seed % 6);
  const PoolKind kind = is_code(type) || one_in(random, 2) ? PoolKind::max : PoolKind::average;
  std::vector<int64_t> kernel{between(random, 1, 6), between(random, 1, 6)};
  if (one_in(random, 2)) kernel[1] = kernel[0];
  std::vector<int64_t> strides{between(random, 1, 3), between(random, 1, 3)};
  if (one_in(random, 2)) strides = {1, 1};
  std::vector<int64_t> pads;
  for (int edge = 0; edge < 4; ++edge) pads.push_back(between(random, 0, kernel[edge % 2] - 1));
  PoolSpec spec{
      type, make_pool(kind, kernel, strides, pads, one_in(random, 3), one_in(random, 2), PoolOwner::pool)};
  int64_t channels = between(random, 1, 20);
  if (!one_in(random, 3)) channels = 16 * between(random, 1, 4);
  Shape shape{between(random, 1, 3), kernel[0] + between(random, 0, 10), kernel[1] + between(random, 0, 14),
              channels};
  // Half of the problems are large enough that threads compute runs of outputs if the card is small.
  const bool is_large = one_in(random, 2);
  if (is_large) {
    for (size_t axis : {1, 2}) shape[axis] += 12;
    shape[3] = 16 * between(random, 2, 4);
  }
  // Some pool whole images, as small as one position or of several passes.
  if (one_in(random, 4)) {
    spec.pool = make_pool(kind, {shape[1], shape[2]}, {1, 1}, {0, 0, 0, 0}, false, false, PoolOwner::pool);
    if (!one_in(random, 3)) shape[3] = 16 * between(random, 1, 20);
  }
  const PoolProblem problem = make_pool_problem(spec, shape);
  Device device;
  device.multiprocessors = is_large ? 1 : 1000;
  if (type == ElementType::int8) return pools<Int8>(problem, device, random);
  if (type == ElementType::uint8) return pools<UInt8>(problem, device, random);
  return with_floating_type(type, [&]<typename T>() { return pools<T>(problem, device, random); });
}

}  // namespace
}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::check_seed, count, arguments);
}
