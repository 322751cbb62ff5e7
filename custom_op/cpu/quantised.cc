// Convolutions of quantised data on the CPU. A task gathers the codes that an output position reads, less
// their zero point, in the order of the packed weights; a product with each filter's weights is then a sum
// over contiguous numbers, which the compiler vectorises. Padding is zero. It is the definition that the
// card's kernels are tested against, and not tuned: ONNX Runtime's own kernels for integers are faster here.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

// A tensor's elements from one to the next along channels and along positions.
struct ElementSteps {
  int64_t image, channel, position;

  ElementSteps(Layout layout, int64_t channels, int64_t positions)
      : image(channels * positions),
        channel(layout == Layout::nhwc ? 1 : positions),
        position(layout == Layout::nhwc ? channels : 1) {}
};

// `count` numbers at any address; empty for null.
template <typename T>
std::vector<T> copied(const void* data, int64_t count) {
  std::vector<T> values(data == nullptr ? 0 : static_cast<size_t>(count));
  if (!values.empty()) std::memcpy(values.data(), data, values.size() * sizeof(T));
  return values;
}

// What a run needs of the filters.
struct Filters {
  std::vector<int16_t> weights;  // (K, taps, C / group)
  std::vector<int32_t> bias;
  std::vector<float> scale, offset, sum_values;
};

template <typename X, typename Y>
class QuantisedPlan final : public Plan {
 public:
  explicit QuantisedPlan(const ConvProblem& problem)
      : problem_(problem),
        x_(problem.layouts.input, problem.in_channels, problem.input_size()),
        z_(problem.layouts.residual, problem.out_channels, problem.output_size()),
        y_(problem.layouts.output, problem.out_channels, problem.result_size()) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const Filters filters{
        packed(static_cast<const Int8*>(tensors.w)), copied<int32_t>(tensors.b, problem_.out_channels),
        copied<float>(tensors.scale, problem_.out_channels),
        copied<float>(tensors.offset, problem_.out_channels), copied<float>(tensors.sum_values, kCodeCount)};
    const int64_t rows = problem_.result[0] * problem_.result[1];
    execution.parallel_for(problem_.batch * rows, [&](std::ptrdiff_t task) {
      std::vector<int16_t> codes;
      std::vector<float> values(static_cast<size_t>(problem_.out_channels));
      for (int64_t column = 0; column < problem_.result[2]; ++column) {
        const int64_t image = task / rows, position = task % rows * problem_.result[2] + column;
        compute_result(tensors, filters, image, position, codes, values);
        for (int64_t k = 0; k < problem_.out_channels; ++k) {
          store(values[static_cast<size_t>(k)],
                static_cast<unsigned char*>(tensors.y) +
                    (image * y_.image + k * y_.channel + position * y_.position) * int64_t{sizeof(Y)});
        }
      }
    });
  }

  std::string describe() const override { return "one task per output row, int32 sums"; }

 private:
  std::vector<int16_t> packed(const Int8* w) const {
    const int64_t channels = problem_.channels_per_group(), taps = problem_.filter_size();
    std::vector<int16_t> packed(static_cast<size_t>(problem_.out_channels * channels * taps));
    auto to = packed.begin();
    for (int64_t k = 0; k < problem_.out_channels; ++k) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        for (int64_t c = 0; c < channels; ++c) *to++ = w[(k * channels + c) * taps + tap];
      }
    }
    return packed;
  }

  // Computes the values of all filters at a position of y, before their codes.
  void compute_result(const ConvTensors& tensors, const Filters& filters, int64_t image, int64_t position,
                      std::vector<int16_t>& codes, std::vector<float>& values) const {
    const int64_t depth = position / (problem_.result[1] * problem_.result[2]);
    const int64_t row = position / problem_.result[2] % problem_.result[1];
    const int64_t column = position % problem_.result[2];
    const Pool& pool = problem_.epilogue.pool;
    if (pool.kind == PoolKind::none) {
      return compute_position(tensors, filters, image, {depth, row, column}, codes, values);
    }
    const PoolWindow rows(pool, 0, row, problem_.output[1]), columns(pool, 1, column, problem_.output[2]);
    std::vector<std::vector<float>> window;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        compute_position(tensors, filters, image, {depth, r, c}, codes, values);
        window.push_back(values);
      }
    }
    for (size_t k = 0; k < values.size(); ++k) {
      auto next = window.cbegin();
      values[k] = pooled<float>(pool.kind, rows, columns, [&](int64_t, int64_t) { return (*next++)[k]; });
    }
  }

  // Computes the values of all filters at a position of the convolution, before the pool.
  void compute_position(const ConvTensors& tensors, const Filters& filters, int64_t image, Axes position,
                        std::vector<int16_t>& codes, std::vector<float>& values) const {
    const Quantization& quantization = *problem_.quantization;
    const int64_t channels = problem_.channels_per_group(), products = channels * problem_.filter_size();
    const int64_t place = (position[0] * problem_.output[1] + position[1]) * problem_.output[2] + position[2];
    const X* const residual = tensors.z == nullptr
                                  ? nullptr
                                  : static_cast<const X*>(tensors.z) + image * z_.image + place * z_.position;
    for (int64_t group = 0; group < problem_.group; ++group) {
      gather(static_cast<const X*>(tensors.x) + image * x_.image + group * channels * x_.channel, position,
             codes);
      for (int64_t f = 0; f < problem_.filters_per_group(); ++f) {
        const int64_t k = group * problem_.filters_per_group() + f;
        const int16_t* const weights = filters.weights.data() + k * products;
        int32_t sum = filters.bias.empty() ? 0 : filters.bias[static_cast<size_t>(k)];
        for (int64_t i = 0; i < products; ++i) sum += codes[static_cast<size_t>(i)] * weights[i];
        const auto at = static_cast<size_t>(k);
        float value = requantize::number_of_sum<X>(quantization, sum, filters.scale[at],
                                                   filters.offset.empty() ? 0.0f : filters.offset[at],
                                                   filters.sum_values.data());
        if (residual != nullptr) {
          value = requantize::plus_residual(quantization, value, residual[k * z_.channel]);
        }
        const Epilogue& epilogue = problem_.epilogue;
        values[at] = activate<float>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
      }
    }
  }

  // Gathers the codes that a position reads, less their zero point: (taps, C / group).
  void gather(const X* image, Axes position, std::vector<int16_t>& codes) const {
    codes.assign(static_cast<size_t>(problem_.channels_per_group() * problem_.filter_size()), 0);
    auto to = codes.begin();
    Axes tap;
    for (tap[0] = 0; tap[0] < problem_.filter[0]; ++tap[0]) {
      for (tap[1] = 0; tap[1] < problem_.filter[1]; ++tap[1]) {
        for (tap[2] = 0; tap[2] < problem_.filter[2]; ++tap[2], to += problem_.channels_per_group()) {
          int64_t place = 0;
          bool is_inside = true;
          for (size_t axis = 0; axis < tap.size(); ++axis) {
            const int64_t at = position[axis] * problem_.stride[axis] + tap[axis] * problem_.dilation[axis] -
                               problem_.pad_begin[axis];
            is_inside &= at >= 0 && at < problem_.input[axis];
            place = place * problem_.input[axis] + at;
          }
          if (!is_inside) continue;
          const X* const pixel = image + place * x_.position;
          for (int64_t c = 0; c < problem_.channels_per_group(); ++c) {
            to[c] = static_cast<int16_t>(pixel[c * x_.channel] - problem_.quantization->x_zero_point);
          }
        }
      }
    }
  }

  void store(float value, unsigned char* to) const {
    Y element;
    if constexpr (sizeof(Y) == 1) {
      element =
          static_cast<Y>(requantize::result_code(*problem_.quantization, value, requantize::kMinCode<Y>));
    } else {
      element = static_cast<Y>(value);
    }
    std::memcpy(to, &element, sizeof element);
  }

  const ConvProblem problem_;
  const ElementSteps x_, z_, y_;
};

template <typename X>
std::unique_ptr<Plan> make_plan(const ConvProblem& problem) {
  switch (problem.y_type) {
    case ElementType::int8:
      return std::make_unique<QuantisedPlan<X, Int8>>(problem);
    case ElementType::uint8:
      return std::make_unique<QuantisedPlan<X, UInt8>>(problem);
    case ElementType::float16:
      return std::make_unique<QuantisedPlan<X, Float16>>(problem);
    default:
      return std::make_unique<QuantisedPlan<X, float>>(problem);
  }
}

class Quantised final : public Algorithm {
 public:
  std::string_view name() const override { return "quantised"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }
  bool takes_layouts(const ConvProblem&) const override { return true; }
  bool takes_codes() const override { return true; }
  Offer offer(const ConvProblem& problem, const Device&) const override {
    if (!problem.is_quantised()) return Offer::refusal("it takes int8 and uint8 codes");
    return {{}, std::nullopt, [problem] {
              return problem.type == ElementType::int8 ? make_plan<Int8>(problem) : make_plan<UInt8>(problem);
            }};
  }
};

}  // namespace

const Algorithm& cpu_quantised() {
  static const Quantised algorithm;
  return algorithm;
}

}  // namespace convswap
