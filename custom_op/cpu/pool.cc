// Pools of NHWC tensors on the CPU, without a convolution: plain loops, a task per row of y. The innermost
// loop is over the channels, which are adjacent. Maxima of 16-bit types are those of integers in the same
// order. Averages of 16-bit types have float32 accumulators.

#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "conv/epilogue_math.h"
#include "conv/floating_type.h"
#include "plan/op_stage.h"

namespace convswap {
namespace {

template <typename T>
inline constexpr bool kIsSmallFloat = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// The number whose order is that of T, with NaN as the largest of the 16-bit types.
template <typename T>
using Ordered = std::conditional_t<kIsSmallFloat<T>, int16_t, T>;

template <typename T>
Ordered<T> ordered(T value) {
  if constexpr (kIsSmallFloat<T>) {
    constexpr int kInfinityBits = std::is_same_v<T, Float16> ? 0x7c00 : 0x7f80;
    const int magnitude = value.bits & 0x7fff;
    const int key = value.bits >> 15 != 0 ? ~magnitude : magnitude;
    return static_cast<int16_t>(magnitude > kInfinityBits ? 0x7fff : key);
  } else {
    return value;
  }
}

template <typename T>
T from_ordered(Ordered<T> number) {
  if constexpr (kIsSmallFloat<T>) {
    T value;
    value.bits = static_cast<unsigned short>(number < 0 ? 0x8000 | (~number & 0x7fff) : number);
    return value;
  } else {
    return number;
  }
}

template <typename Number>
constexpr Number lowest_number() {
  if constexpr (std::is_integral_v<Number>) {
    return std::numeric_limits<Number>::lowest();
  } else {
    return -std::numeric_limits<Number>::infinity();
  }
}

template <typename T>
class LayoutPoolPlan final : public Plan {
 public:
  explicit LayoutPoolPlan(const PoolProblem& problem) : problem_(problem) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    execution.parallel_for(problem_.batch * problem_.output[0], [&](std::ptrdiff_t task) {
      const int64_t n = task / problem_.output[0], p = task % problem_.output[0];
      const T* const x =
          static_cast<const T*>(tensors.x) + n * problem_.input[0] * problem_.input[1] * problem_.channels;
      T* const y = static_cast<T*>(tensors.y) + task * problem_.output[1] * problem_.channels;
      problem_.pool.kind == PoolKind::average ? average_row(x, y, p) : max_row(x, y, p);
    });
  }

  std::string describe() const override { return problem_.text() + ", one task per row"; }

 private:
  // `x` is an image, and `y` its row p.
  void max_row(const T* x, T* y, int64_t p) const {
    std::vector<Ordered<T>> maxima(static_cast<size_t>(problem_.channels));
    for (int64_t q = 0; q < problem_.output[1]; ++q) {
      maxima.assign(maxima.size(), lowest_number<Ordered<T>>());
      for_each_position(x, p, q, [to = maxima.data(), channels = problem_.channels](const T* from) {
        for (int64_t c = 0; c < channels; ++c) {
          const Ordered<T> value = ordered(from[c]), maximum = to[c];
          to[c] = value > maximum || value != value ? value : maximum;  // a NaN stays
        }
      });
      for (const Ordered<T> number : maxima) *y++ = from_ordered<T>(number);
    }
  }

  void average_row(const T* x, T* y, int64_t p) const {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    std::vector<Sum> accumulators(static_cast<size_t>(problem_.channels));
    const int64_t rows = PoolWindow(problem_.pool, 0, p, problem_.input[0]).divisor;
    for (int64_t q = 0; q < problem_.output[1]; ++q) {
      accumulators.assign(accumulators.size(), 0);
      for_each_position(x, p, q, [to = accumulators.data(), channels = problem_.channels](const T* from) {
        for (int64_t c = 0; c < channels; ++c) to[c] += static_cast<Sum>(from[c]);
      });
      const auto divisor =
          static_cast<Sum>(rows * PoolWindow(problem_.pool, 1, q, problem_.input[1]).divisor);
      for (const Sum sum : accumulators) *y++ = static_cast<T>(sum / divisor);
    }
  }

  // Calls `call` with the channels at each position of the window of output (p, q).
  template <typename Call>
  void for_each_position(const T* x, int64_t p, int64_t q, Call call) const {
    const PoolWindow rows(problem_.pool, 0, p, problem_.input[0]);
    const PoolWindow columns(problem_.pool, 1, q, problem_.input[1]);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t column = columns.begin; column < columns.end; ++column) {
        call(x + (row * problem_.input[1] + column) * problem_.channels);
      }
    }
  }

  const PoolProblem problem_;
};

class CpuPoolStage final : public PoolStage {
 public:
  std::unique_ptr<Plan> make(const PoolProblem& problem, const Device&) const override {
    if (problem.type == ElementType::int8) return std::make_unique<LayoutPoolPlan<int8_t>>(problem);
    if (problem.type == ElementType::uint8) return std::make_unique<LayoutPoolPlan<uint8_t>>(problem);
    return with_floating_type(problem.type, [&]<typename T>() -> std::unique_ptr<Plan> {
      return std::make_unique<LayoutPoolPlan<T>>(problem);
    });
  }

  std::vector<std::string> kernels(const PoolProblem&, const Device&) const override { return {}; }
};

}  // namespace

const PoolStage& cpu_pool_stage() {
  static const CpuPoolStage stage;
  return stage;
}

}  // namespace convswap
