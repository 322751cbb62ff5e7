// The reference: plain loops over the definition of the ONNX operator. All products and sums are float64 for
// every element type.
//
//   y[n,k,p] = b[k] + sum over c, r of w[k,c,r] * x[n, c, p * stride + r * dilation - pad]
//
// and likewise for each spatial axis. Positions outside the image count as zero. An epilogue is computed in
// float64, too. Pool windows that overlap compute their common convolution outputs again.

#include <memory>
#include <type_traits>

#include "conv/epilogue_math.h"
#include "conv/floating_type.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

double widen(float value) { return value; }
double widen(double value) { return value; }
double widen(Float16 value) { return static_cast<float>(value); }
double widen(BFloat16 value) { return static_cast<float>(value); }

template <typename T>
class ReferencePlan final : public Plan {
 public:
  explicit ReferencePlan(const ConvProblem& problem) : problem_(problem) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    execution.parallel_for(problem_.batch * problem_.out_channels,
                           [&](std::ptrdiff_t plane) { compute_plane(tensors, plane); });
  }

  std::string describe() const override { return "one task per output plane, float64 accumulators"; }

 private:
  void compute_plane(const ConvTensors& tensors, int64_t plane) const {
    const int64_t n = plane / problem_.out_channels;
    const int64_t k = plane % problem_.out_channels;
    const int64_t first_channel = k / problem_.filters_per_group() * problem_.channels_per_group();
    const T* x =
        static_cast<const T*>(tensors.x) + (n * problem_.in_channels + first_channel) * problem_.input_size();
    const T* w =
        static_cast<const T*>(tensors.w) + k * problem_.channels_per_group() * problem_.filter_size();
    T* y = static_cast<T*>(tensors.y) + plane * problem_.result_size();
    const T* z =
        tensors.z == nullptr ? nullptr : static_cast<const T*>(tensors.z) + plane * problem_.output_size();
    const double bias = tensors.b == nullptr ? 0.0 : widen(static_cast<const T*>(tensors.b)[k]);
    const Epilogue& epilogue = problem_.epilogue;
    const auto value_at = [&](int64_t o, int64_t p, int64_t q) {
      double value = bias + sum_at(x, w, {o, p, q});
      if (z != nullptr) value += widen(z[(o * problem_.output[1] + p) * problem_.output[2] + q]);
      return activate<double>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
    };
    for (int64_t o = 0; o < problem_.result[0]; ++o) {
      for (int64_t p = 0; p < problem_.result[1]; ++p) {
        for (int64_t q = 0; q < problem_.result[2]; ++q) {
          if (epilogue.pool.kind == PoolKind::none) {
            store(value_at(o, p, q), *y++);
          } else {
            store(pooled<double>(epilogue.pool.kind, PoolWindow(epilogue.pool, 0, p, problem_.output[1]),
                                 PoolWindow(epilogue.pool, 1, q, problem_.output[2]),
                                 [&](int64_t row, int64_t column) { return value_at(o, row, column); }),
                  *y++);
          }
        }
      }
    }
  }

  static void store(double value, T& y) {
    // 16-bit types round to float first. The two roundings differ from one only if the first makes a tie.
    y = static_cast<T>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(value));
  }

  double sum_at(const T* x, const T* w, const Axes& position) const {
    double sum = 0;
    for (int64_t c = 0; c < problem_.channels_per_group(); ++c) {
      for (int64_t t = 0; t < problem_.filter[0]; ++t) {
        for (int64_t r = 0; r < problem_.filter[1]; ++r) {
          for (int64_t s = 0; s < problem_.filter[2]; ++s, ++w) {
            const int64_t d = coordinate(position, 0, t);
            const int64_t h = coordinate(position, 1, r);
            const int64_t column = coordinate(position, 2, s);
            if (!inside(0, d) || !inside(1, h) || !inside(2, column)) continue;
            const int64_t index =
                ((c * problem_.input[0] + d) * problem_.input[1] + h) * problem_.input[2] + column;
            sum += widen(x[index]) * widen(*w);
          }
        }
      }
    }
    return sum;
  }

  int64_t coordinate(const Axes& position, size_t axis, int64_t tap) const {
    return position[axis] * problem_.stride[axis] + tap * problem_.dilation[axis] - problem_.pad_begin[axis];
  }

  bool inside(size_t axis, int64_t coordinate) const {
    return coordinate >= 0 && coordinate < problem_.input[axis];
  }

  ConvProblem problem_;
};

std::unique_ptr<Plan> make_plan(const ConvProblem& problem) {
  return with_floating_type(problem.type, [&]<typename T>() -> std::unique_ptr<Plan> {
    return std::make_unique<ReferencePlan<T>>(problem);
  });
}

class Reference final : public Algorithm {
 public:
  std::string_view name() const override { return "reference"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }
  Offer offer(const ConvProblem& problem, const Device&) const override {
    return {{}, std::nullopt, [problem] { return make_plan(problem); }};
  }
};

}  // namespace

const Algorithm& cpu_reference() {
  static const Reference algorithm;
  return algorithm;
}

}  // namespace convswap
