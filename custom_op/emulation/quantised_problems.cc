// Problems of int8 and uint8 codes: a card's kernels against the CPU's algorithm, code by code.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "conv/arithmetic.h"
#include "problems.h"

namespace convswap {

const Algorithm& cpu_quantised();

namespace {

constexpr int kGuard = 64;  // bytes around y

std::vector<unsigned char> draw_bytes(Random& random, int64_t count) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count));
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(between(random, 0, 255));
  return bytes;
}

std::vector<float> draw_floats(Random& random, int64_t count, double least, double most) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(std::uniform_real_distribution<double>(least, most)(random));
  }
  return values;
}

const void* pointer_or_null(const auto& values, bool is_present) {
  return is_present ? values.data() : nullptr;
}

}  // namespace

void make_quantised(ConvProblem& p, Random& random) {
  Quantization quantization;
  const auto zero_point = [&](ElementType type) {
    const int64_t least = type == ElementType::int8 ? -128 : 0;
    return static_cast<int>(one_in(random, 3) ? least + 255 * between(random, 0, 1)
                                              : between(random, least, least + 255));
  };
  p.type = one_in(random, 2) ? ElementType::int8 : ElementType::uint8;
  p.y_type = one_in(random, 2) ? ElementType::int8 : ElementType::uint8;
  if (!one_in(random, 3)) quantization.x_zero_point = zero_point(p.type);
  quantization.y_zero_point = zero_point(p.y_type);
  quantization.has_offset = one_in(random, 3);
  if (p.epilogue.has_residual) {
    quantization.residual_scale = 0.37f, quantization.residual_zero_point = zero_point(p.type);
    quantization.rounds_sum = one_in(random, 2);
    if (quantization.rounds_sum) {
      quantization.sum_scale = 0.73f, quantization.sum_zero_point = zero_point(p.type);
    }
  }
  if (one_in(random, 4)) {
    quantization.rounds_sum = quantization.has_sum_values = true;
    quantization.sum_scale = 1, quantization.sum_zero_point = zero_point(p.type);
  }
  if (one_in(random, 2)) quantization.y_factor = 1.7f;
  p.quantization = quantization;
}

bool check_quantised(const Offer& offer, const ConvProblem& p, Random& random, bool prints_plan) {
  const int64_t element_bytes = bytes_per_element(p.y_type), y_bytes = p.result_elements() * element_bytes;
  // Sometimes starts some bytes after a 16-byte boundary.
  const auto shift_of = [&] { return one_in(random, 8) ? between(random, 1, 15) : 0; };
  const int64_t x_shift = shift_of(), z_shift = shift_of(),
                y_shift = shift_of() / element_bytes * element_bytes;
  const auto x = draw_bytes(random, x_shift + p.batch * p.in_channels * p.input_size());
  const auto z = draw_bytes(random, z_shift + p.output_elements());
  const int64_t products = p.channels_per_group() * p.filter_size();
  const auto w = draw_bytes(random, p.out_channels * products);
  std::vector<int32_t> b(static_cast<std::size_t>(p.out_channels));
  for (int32_t& bias : b) bias = static_cast<int32_t>(between(random, -20'000, 20'000));
  // Sums have a standard deviation of about 74^2 times the root of their number.
  const double step = 1 / (5500 * std::sqrt(static_cast<double>(products)));
  auto scale = draw_floats(random, p.out_channels, 10 * step, 90 * step);
  // Steps beyond the range of int32.
  if (one_in(random, 4)) scale[static_cast<std::size_t>(between(random, 0, p.out_channels - 1))] *= 1e9f;
  const auto offset = draw_floats(random, p.out_channels, -20, 20);
  const auto sum_values = draw_floats(random, kCodeCount, -90, 90);
  std::vector<unsigned char> actual(static_cast<std::size_t>(2 * kGuard + y_shift + y_bytes), 0xa5),
      expected = actual;
  const auto tensors_with = [&](std::vector<unsigned char>& y) {
    ConvTensors tensors{.x = x.data() + x_shift, .w = w.data(), .y = y.data() + kGuard + y_shift};
    tensors.b = pointer_or_null(b, p.has_bias);
    tensors.z = p.epilogue.has_residual ? z.data() + z_shift : nullptr;
    tensors.scale = scale.data();
    tensors.offset = pointer_or_null(offset, p.quantization->has_offset);
    tensors.sum_values = pointer_or_null(sum_values, p.quantization->has_sum_values);
    return tensors;
  };
  const std::unique_ptr<Plan> plan = offer.make();
  if (prints_plan) std::printf("%s\n", plan->describe().c_str());
  run_plan(*plan, tensors_with(actual), random);
  const ParallelFor in_turn = [](std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body) {
    for (std::ptrdiff_t task = 0; task < tasks; ++task) body(task);
  };
  cpu_quantised().offer(p, Device{}).make()->run(tensors_with(expected), {in_turn, nullptr, nullptr});
  const auto wrong = static_cast<int64_t>(std::ranges::count_if(
      actual, [&, at = std::size_t{0}](unsigned char byte) mutable { return byte != expected[at++]; }));
  if (wrong == 0) return true;
  const auto first = std::ranges::mismatch(actual, expected).in1 - actual.begin() - kGuard - y_shift;
  std::printf("%ld bytes of %ld are wrong, the first at %ld: %s; %s\n", wrong, y_bytes, first,
              p.text().c_str(), plan->describe().c_str());
  return false;
}

}  // namespace convswap
