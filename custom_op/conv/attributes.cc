#include "conv/attributes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <utility>

#include "conv/error.h"

namespace convswap {
namespace {

struct ActivationFacts {
  Activation activation;
  std::string_view name;
  int parameters;  // alpha, or alpha and beta
};

constexpr ActivationFacts kActivations[] = {
    {Activation::none, "None", 0},
    {Activation::relu, "Relu", 0},
    {Activation::leaky_relu, "LeakyRelu", 1},
    {Activation::clip, "Clip", 2},
    {Activation::tanh, "Tanh", 0},
    {Activation::sigmoid, "Sigmoid", 0},
    {Activation::hard_sigmoid, "HardSigmoid", 2},
    {Activation::hard_swish, "HardSwish", 0},
    {Activation::silu, "SiLU", 0},
    {Activation::gelu, "Gelu", 0},
    {Activation::gelu_tanh, "GeluTanh", 0},
    {Activation::elu, "Elu", 1},
};

constexpr std::string_view kPools[] = {"None", "MaxPool", "AveragePool"};

std::string number_text(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string prefix_of(PoolOwner owner) { return owner == PoolOwner::conv ? "pool_" : ""; }

std::string pair_text(const int64_t (&values)[2]) {
  return std::to_string(values[0]) + "x" + std::to_string(values[1]);
}

// Required, because the defaults of ONNX's operators differ.
float parameter(const ActivationFacts& facts, std::string_view attribute, std::optional<float> value) {
  // With NaN a problem would not equal itself, and the plan cache would miss.
  if (value && !std::isnan(*value)) return *value;
  throw InvalidArgument(attribute_message(
      "activation", facts.name,
      "a number as " + std::string(attribute) + " beside it, but there is " + (value ? "NaN" : "none")));
}

// Returns the type's largest finite number, the default bound of Clip.
float max_finite(ElementType type) {
  switch (type) {
    case ElementType::float32:
      return std::numeric_limits<float>::max();
    case ElementType::float16:
      return 65504;
    case ElementType::bfloat16:
      return 0x1.fep127f;
    case ElementType::int8:
    case ElementType::uint8:
      return std::numeric_limits<float>::max();  // the epilogue of codes is float32
    case ElementType::float64:
      break;
  }
  throw InvalidArgument(attribute_message(
      "activation", "Clip",
      "numbers as activation_alpha and activation_beta beside it for float64 data, because attributes are "
      "float32, which lacks the largest float64"));
}

// Checks an attribute's values and copies them; an absent attribute gives `length` times `fallback`.
void fill(const std::string& attribute, const std::vector<int64_t>& values, size_t length, int64_t min,
          int64_t fallback, int64_t* to) {
  if (values.empty()) {
    std::fill_n(to, length, fallback);
    return;
  }
  const bool is_in_range = std::all_of(values.begin(), values.end(),
                                       [&](int64_t value) { return value >= min && value <= kMaxAttribute; });
  if (values.size() != length || !is_in_range) {
    throw InvalidArgument(attribute_message(attribute, list_text(values),
                                            std::to_string(length) + " values from " + std::to_string(min) +
                                                " to " + std::to_string(kMaxAttribute) +
                                                ", for rows and columns"));
  }
  std::copy(values.begin(), values.end(), to);
}

Epilogue read_epilogue(const Attributes& attributes, ElementType type) {
  Epilogue epilogue;
  const Activation activation = parse_activation(attributes.text("activation").value_or("None"));
  const std::optional<float> alpha = attributes.real("activation_alpha");
  set_activation(epilogue, type, activation, alpha, attributes.real("activation_beta"));
  epilogue.pool = read_pool(attributes, PoolOwner::conv);
  return epilogue;
}

DepthwiseSpec read_depthwise(const Attributes& attributes, ElementType type) {
  DepthwiseSpec depthwise;
  depthwise.pads = attributes.integers("depthwise_pads");
  depthwise.strides = attributes.integers("depthwise_strides");
  depthwise.dilations = attributes.integers("depthwise_dilations");
  const Activation activation = parse_activation(attributes.text("depthwise_activation").value_or("None"));
  const std::optional<float> alpha = attributes.real("depthwise_activation_alpha");
  set_activation(depthwise.epilogue, type, activation, alpha, attributes.real("depthwise_activation_beta"));
  return depthwise;
}

Layouts read_layouts(OpKind op, const Attributes& attributes) {
  Layouts layouts;
  const std::pair<const char*, Layout&> all[] = {{"input_layout", layouts.input},
                                                 {"output_layout", layouts.output},
                                                 {"residual_layout", layouts.residual}};
  for (const auto& [name, layout] : all) {
    const std::optional<std::string> word = attributes.text(name);
    if (!word) continue;
    if (op != OpKind::layout && op != OpKind::quant) {
      throw InvalidArgument(attribute_message(
          name, *word,
          "no such attribute of " + std::string(name_of(op)) + ": " + name_of(OpKind::layout) + " has it"));
    }
    layout = parse_layout(name, *word);
  }
  return layouts;
}

// Returns a zero point, a code of `type`; 0 if it is absent.
int zero_point_of(const char* name, std::optional<int64_t> attribute, ElementType type) {
  const int64_t value = attribute.value_or(0);
  const int64_t min = type == ElementType::int8 ? -128 : 0;
  if (value < min || value > min + 255) {
    throw InvalidArgument(attribute_message(name, std::to_string(value),
                                            "from " + std::to_string(min) + " to " +
                                                std::to_string(min + 255) + ", a code of " +
                                                std::string(name_of(type))));
  }
  return static_cast<int>(value);
}

// Returns a scale; 1 if it is absent.
float scale_of(const char* name, std::optional<float> attribute) {
  const float value = attribute.value_or(1.0f);
  if (!(value > 0) || std::isinf(value)) {
    throw InvalidArgument(attribute_message(name, number_text(value), "a finite number above 0"));
  }
  return value;
}

Quantization read_quantization(const Attributes& attributes, ElementType type) {
  Quantization quantization;
  const auto scale = [&](const char* name) { return scale_of(name, attributes.real(name)); };
  const auto zero_point = [&](const char* name) {
    return zero_point_of(name, attributes.integer(name), type);
  };
  quantization.x_zero_point = zero_point("x_zero_point");
  quantization.y_factor = 1 / scale("y_scale");
  quantization.residual_scale = scale("z_scale");
  quantization.residual_zero_point = zero_point("z_zero_point");
  // Attributes are read once.
  const std::optional<float> sum_scale = attributes.real("sum_scale");
  const std::optional<int64_t> sum_zero_point = attributes.integer("sum_zero_point");
  if (sum_scale && !sum_zero_point) {
    throw InvalidArgument("attribute sum_scale: expected sum_zero_point, too, and there is none");
  }
  quantization.rounds_sum = sum_zero_point.has_value();
  quantization.has_sum_values = quantization.rounds_sum && !sum_scale;
  quantization.sum_scale = scale_of("sum_scale", sum_scale);
  quantization.sum_zero_point = zero_point_of("sum_zero_point", sum_zero_point, type);
  return quantization;
}

}  // namespace

int64_t pool_extent(const Pool& pool, size_t axis, int64_t input, PoolOwner owner) {
  const int64_t padded = pool.pad_begin[axis] + input + pool.pad_end[axis];
  const int64_t room = padded - pool.kernel[axis], stride = pool.stride[axis];
  // The division rounds a negative `room` towards zero, as ONNX Runtime does.
  int64_t count = room / stride + 1;
  if (count < 0) {
    throw InvalidArgument(prefix_of(owner) + "kernel_shape: its window reaches over " +
                          std::to_string(pool.kernel[axis]) + " positions of spatial axis " +
                          std::to_string(axis) + " and the padded " +
                          (owner == PoolOwner::conv ? "output of the convolution" : "input") + " has " +
                          std::to_string(padded) + "; expected a smaller window");
  }
  // A pool window that begins beyond the image and its leading padding does not count.
  const bool has_remainder = room > 0 && room % stride != 0;
  if (pool.rounds_up && has_remainder && count * stride < pool.pad_begin[axis] + input) ++count;
  return count;
}

void set_activation(Epilogue& epilogue, ElementType type, Activation kind, std::optional<float> alpha,
                    std::optional<float> beta) {
  epilogue.activation = kind;
  if (kind == Activation::clip) {
    if (!alpha) alpha = -max_finite(type);
    if (!beta) beta = max_finite(type);
  }
  const auto facts = std::find_if(std::begin(kActivations), std::end(kActivations),
                                  [&](const ActivationFacts& facts) { return facts.activation == kind; });
  // Unused parameters are 0, so that equal problems compare equal.
  epilogue.alpha = facts->parameters > 0 ? parameter(*facts, "activation_alpha", alpha) : 0;
  epilogue.beta = facts->parameters > 1 ? parameter(*facts, "activation_beta", beta) : 0;
}

std::string text_of(const Epilogue& epilogue) {
  std::string text = epilogue.has_residual ? "residual" : "";
  const auto append = [&text](const std::string& words) { text += (text.empty() ? "" : " ") + words; };
  for (const ActivationFacts& facts : kActivations) {
    if (facts.activation != epilogue.activation || epilogue.activation == Activation::none) continue;
    std::string words(facts.name);
    if (facts.parameters > 0) words += "(" + number_text(epilogue.alpha);
    if (facts.parameters > 1) words += "," + number_text(epilogue.beta);
    append(facts.parameters > 0 ? words + ")" : words);
  }
  const Pool& pool = epilogue.pool;
  if (pool.kind != PoolKind::none) {
    append(std::string(kPools[static_cast<size_t>(pool.kind)]) + " " + pair_text(pool.kernel) + " strides=" +
           pair_text(pool.stride) + " pads=" + pair_text(pool.pad_begin) + "x" + pair_text(pool.pad_end) +
           (pool.rounds_up ? " ceil" : "") + (pool.counts_padding ? " padding counts" : ""));
  }
  return text;
}

Activation parse_activation(std::string_view word) {
  std::vector<std::string> names;
  for (const ActivationFacts& facts : kActivations) {
    if (word == facts.name) return facts.activation;
    names.emplace_back(facts.name);
  }
  throw InvalidArgument(unknown_name_message("activation", word, names));
}

PoolKind parse_pool_kind(std::string_view word) {
  for (size_t i = 0; i < std::size(kPools); ++i) {
    if (word == kPools[i]) return static_cast<PoolKind>(i);
  }
  throw InvalidArgument(unknown_name_message("pool", word, {std::begin(kPools), std::end(kPools)}));
}

Pool make_pool(PoolKind kind, const std::vector<int64_t>& kernel_shape, const std::vector<int64_t>& strides,
               const std::vector<int64_t>& pads, bool rounds_up, bool counts_padding, PoolOwner owner) {
  Pool pool;
  if (kind == PoolKind::none) return pool;
  pool.kind = kind;
  const std::string prefix = prefix_of(owner);
  if (kernel_shape.empty()) {
    throw InvalidArgument(
        attribute_message(prefix + "kernel_shape", "[]", "the rows and columns of a window"));
  }
  fill(prefix + "kernel_shape", kernel_shape, 2, 1, 1, pool.kernel);
  fill(prefix + "strides", strides, 2, 1, 1, pool.stride);
  int64_t edges[4];
  fill(prefix + "pads", pads, 4, 0, 0, edges);
  std::copy_n(edges, 2, pool.pad_begin);
  std::copy_n(edges + 2, 2, pool.pad_end);
  for (size_t axis = 0; axis < 2; ++axis) {
    // A pool window of nothing but padding has no maximum and no average.
    if (std::max(pool.pad_begin[axis], pool.pad_end[axis]) >= pool.kernel[axis]) {
      throw InvalidArgument(attribute_message(prefix + "pads", list_text(pads),
                                              "less than the window " + list_text(kernel_shape)));
    }
  }
  pool.rounds_up = rounds_up;
  pool.counts_padding = kind == PoolKind::average && counts_padding;
  return pool;
}

Pool read_pool(const Attributes& attributes, PoolOwner owner) {
  const auto name = [prefix = prefix_of(owner)](const char* attribute) { return prefix + attribute; };
  const PoolKind kind = parse_pool_kind(attributes.text("pool").value_or("None"));
  const std::vector<int64_t> kernel_shape = attributes.integers(name("kernel_shape").c_str());
  const std::vector<int64_t> strides = attributes.integers(name("strides").c_str());
  const std::vector<int64_t> pads = attributes.integers(name("pads").c_str());
  const bool rounds_up = attributes.integer(name("ceil_mode").c_str()).value_or(0) != 0;
  const bool counts_padding = attributes.integer(name("count_include_pad").c_str()).value_or(0) != 0;
  return make_pool(kind, kernel_shape, strides, pads, rounds_up, counts_padding, owner);
}

const char* name_of(OpKind op) {
  switch (op) {
    case OpKind::conv:
      return "Conv";
    case OpKind::fused:
      return "FusedConv";
    case OpKind::layout:
      return "LayoutConv";
    case OpKind::quant:
      return "QuantConv";
  }
  return "";
}

ConvSpec read_spec(OpKind op, const Attributes& attributes, ElementType type, Precision precision) {
  ConvSpec spec;
  spec.type = type;
  spec.precision = precision;
  spec.auto_pad = parse_auto_pad(attributes.text("auto_pad").value_or("NOTSET"));
  spec.group = attributes.integer("group").value_or(1);
  spec.kernel_shape = attributes.integers("kernel_shape");
  spec.pads = attributes.integers("pads");
  spec.strides = attributes.integers("strides");
  spec.dilations = attributes.integers("dilations");
  spec.layouts = read_layouts(op, attributes);
  if (op == OpKind::conv) return spec;
  spec.epilogue = read_epilogue(attributes, type);
  if (op == OpKind::quant) {
    spec.quantization = read_quantization(attributes, type);
    return spec;
  }
  spec.depthwise = read_depthwise(attributes, type);
  return spec;
}

}  // namespace convswap
