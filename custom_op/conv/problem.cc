#include "conv/problem.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "conv/arithmetic.h"
#include "conv/attributes.h"
#include "conv/error.h"

namespace convswap {
namespace {

// The smallest unit of a DRAM transfer: one sector of a cache line.
constexpr int64_t kSectorBytes = 32;

// Counts the input segments of `unit` elements along `axis` that some output reads. Returns all of them if
// the count would take long.
int64_t units_read(const ConvProblem& problem, int axis, int64_t unit) {
  constexpr int64_t kMaxCounted = 1 << 16;
  const int64_t all = ceil_divide(problem.input[axis], unit);
  if (problem.output[axis] > 0 && problem.dilation[axis] == 1 &&
      problem.stride[axis] <= problem.filter[axis]) {
    // Outputs leave no gaps.
    const int64_t last = (problem.output[axis] - 1) * problem.stride[axis] - problem.pad_begin[axis];
    return ceil_divide(std::clamp<int64_t>(last + problem.filter[axis], 0, problem.input[axis]), unit);
  }
  if (problem.output[axis] > kMaxCounted / std::max<int64_t>(1, problem.filter[axis])) return all;
  std::vector<int64_t> units;
  for (int64_t output = 0; output < problem.output[axis]; ++output) {
    const int64_t first = output * problem.stride[axis] - problem.pad_begin[axis];
    for (int64_t tap = 0; tap < problem.filter[axis]; ++tap) {
      const int64_t at = first + tap * problem.dilation[axis];
      if (at >= 0 && at < problem.input[axis]) units.push_back(at / unit);
    }
  }
  std::sort(units.begin(), units.end());
  return std::unique(units.begin(), units.end()) - units.begin();
}

int64_t value_or(const std::vector<int64_t>& values, size_t index, int64_t absent) {
  return values.empty() ? absent : values[index];
}

std::string extents_text(const Shape& extents) {
  std::string text;
  for (const int64_t extent : extents) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

// Returns "NHWC>NCHW", or "NHWC+NCHW>NCHW" with a residual.
std::string text_of(const Layouts& layouts, bool has_residual) {
  std::string text(name_of(layouts.input));
  if (has_residual) text.append("+").append(name_of(layouts.residual));
  return text.append(">").append(name_of(layouts.output));
}

// Fills the axis' padding and output extent from its input, filter, stride and dilation.
void resolve_axis(const ConvSpec& spec, size_t attribute_axis, size_t spatial_rank, size_t axis,
                  ConvProblem& problem) {
  const int64_t reach = (problem.filter[axis] - 1) * problem.dilation[axis] + 1;
  const int64_t input = problem.input[axis];
  const int64_t stride = problem.stride[axis];
  int64_t& begin = problem.pad_begin[axis];
  int64_t& end = problem.pad_end[axis];
  if (spec.auto_pad == AutoPad::same_upper || spec.auto_pad == AutoPad::same_lower) {
    const int64_t output = ceil_divide(input, stride);
    const int64_t total = std::max<int64_t>(0, (output - 1) * stride + reach - input);
    begin = spec.auto_pad == AutoPad::same_upper ? total / 2 : total - total / 2;
    end = total - begin;
  } else if (spec.auto_pad == AutoPad::notset) {
    begin = value_or(spec.pads, attribute_axis, 0);
    end = value_or(spec.pads, attribute_axis + spatial_rank, 0);
  }
  const int64_t padded = begin + input + end;
  if (padded < reach) {
    throw InvalidArgument("spatial axis " + std::to_string(attribute_axis) + ": the filter reaches over " +
                          std::to_string(reach) + " positions but the padded input has " +
                          std::to_string(padded) + "; expected a larger input or more padding");
  }
  problem.output[axis] = (padded - reach) / stride + 1;
}

// Limits the number of elements, so that shape arithmetic stays within 64 bits.
void check_elements(std::string_view tensor, const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) throw InvalidArgument(shape_message(tensor, shape, "no negative dimension"));
    // The extents of empty tensors are limited, too.
    if (__builtin_mul_overflow(elements, std::max<int64_t>(extent, 1), &elements) ||
        elements > std::numeric_limits<int64_t>::max() / 64) {
      throw InvalidArgument(shape_message(tensor, shape, "fewer than 2^57 elements"));
    }
  }
}

// Sets the result's extents behind the epilogue's pool.
void resolve_result(ConvProblem& problem) {
  problem.result = problem.output;
  check_elements("output", problem.output_shape(problem.layouts.output));
  const Pool& pool = problem.epilogue.pool;
  if (pool.kind == PoolKind::none) return;
  if (problem.spatial_rank != 2) {
    throw InvalidArgument("pool: expected images, with two spatial axes, and the input has " +
                          std::to_string(problem.spatial_rank));
  }
  for (size_t axis = 0; axis < 2; ++axis) {
    problem.result[axis + 1] = pool_extent(pool, axis, problem.output[axis + 1]);
  }
}

// Returns the bytes of the intermediate tensor behind a depthwise convolution, once written and once read. A
// fused node moves none of them.
int64_t intermediate_bytes(const ConvProblem& depthwise) {
  return 2 * depthwise.result_elements() * bytes_per_element(depthwise.type);
}

// " in NHWC" for messages; "" for NCHW, the default.
std::string in_layout(Layout layout) {
  return layout == Layout::nchw ? "" : " in " + std::string(name_of(layout));
}

void check_residual(const ConvProblem& problem, const Shape& residual) {
  const Layout layout = problem.layouts.residual;
  const Shape expected = problem.output_shape(layout);
  if (residual != expected) {
    throw InvalidArgument(shape_message(
        "residual", residual, "the convolution's output" + in_layout(layout) + ", " + list_text(expected)));
  }
}

// The largest sum of products of codes is within 32 bits, whatever the codes are.
constexpr int64_t kMaxProducts = std::numeric_limits<int32_t>::max() / (255 * 128);

void check_products(const ConvProblem& problem, const Shape& weights) {
  int64_t products = 0;
  if (__builtin_mul_overflow(problem.channels_per_group(), problem.filter_size(), &products) ||
      products > kMaxProducts) {
    throw InvalidArgument(shape_message("weights", weights,
                                        "at most " + std::to_string(kMaxProducts) +
                                            " channels times taps, whose sums always fit into 32 bits"));
  }
}

void check_quantised(const ConvProblem& problem, const InputShapes& shapes) {
  const auto check = [](const char* name, const std::optional<Shape>& shape, int64_t count,
                        const char* elements) {
    if (const Shape expected{count}; shape && *shape != expected) {
      throw InvalidArgument(shape_message(name, *shape, list_text(expected) + ", one value per " + elements));
    }
  };
  check("scale", shapes.scale, problem.out_channels, "output channel");
  check("offset", shapes.offset, problem.out_channels, "output channel");
  check("sum_values", shapes.sum_values, kCodeCount, "code");
}

// The text in front of the shapes: the type, with the precision of float32, or the types of x and y.
std::string type_text(const ConvProblem& problem) {
  const std::string type(name_of(problem.type));
  if (problem.is_quantised()) return type + ">" + std::string(name_of(problem.y_type));
  return problem.type == ElementType::float32 ? type + " " + std::string(name_of(problem.precision)) : type;
}

std::string text_of(const Quantization& quantization) {
  std::string text;
  const std::pair<bool, const char*> all[] = {{quantization.x_zero_point != 0, "zero point"},
                                              {quantization.has_offset, "offset"},
                                              {quantization.rounds_sum, "rounded sum"},
                                              {quantization.has_sum_values, "sum values"}};
  for (const auto& [has, words] : all) {
    if (has) text.append(text.empty() ? " codes=" : ", ").append(words);
  }
  return text;
}

ConvProblem make_depthwise_problem(const ConvSpec& spec, const InputShapes& shapes) {
  const Shape& weights = *shapes.depthwise;
  try {
    return make_problem(depthwise_spec(spec, weights[0]), shapes.x, weights, shapes.depthwise_bias);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("the depthwise convolution in front: " + std::string(error.what()));
  }
}

}  // namespace

int64_t ConvProblem::operations() const {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t product = 2;
  for (const int64_t factor : {output_elements(), channels_per_group(), filter_size()}) {
    if (__builtin_mul_overflow(product, factor, &product)) return kMax;
  }
  for (const ConvProblem& first : depthwise) {
    if (__builtin_add_overflow(product, first.operations(), &product)) return kMax;
  }
  return product;
}

int64_t ConvProblem::tensor_bytes() const {
  const int64_t elements =
      batch * in_channels * input_size() + out_channels * channels_per_group() * filter_size() +
      (has_bias ? out_channels : 0) + (epilogue.has_residual ? output_elements() : 0) + result_elements();
  int64_t total = elements * bytes_per_element(type);
  if (is_quantised()) {
    constexpr int64_t kNumberBytes = 4;  // of a scale, an offset, a bias and a value of a code
    total += out_channels * (kNumberBytes + (quantization->has_offset ? kNumberBytes : 0)) +
             (has_bias ? out_channels * (kNumberBytes - 1) : 0) +
             (quantization->has_sum_values ? kCodeCount * kNumberBytes : 0) +
             result_elements() * (bytes_per_element(y_type) - 1);
  }
  for (const ConvProblem& first : depthwise) total += first.tensor_bytes() - intermediate_bytes(first);
  return total;
}

int64_t ConvProblem::bytes() const {
  if (!depthwise.empty()) {
    return without_depthwise().tensor_bytes() + depthwise_alone().bytes() -
           intermediate_bytes(depthwise.front());
  }
  const int64_t rows = units_read(*this, 0, 1) * units_read(*this, 1, 1);
  // In NHWC a position has all of its channels side by side.
  const int64_t position_bytes =
      bytes_per_element(type) * (layouts.input == Layout::nhwc ? std::max<int64_t>(1, in_channels) : 1);
  const int64_t sector_elements = std::max<int64_t>(1, kSectorBytes / position_bytes);
  const int64_t columns = std::min(input[2], units_read(*this, 2, sector_elements) * sector_elements);
  const int64_t unread = batch * in_channels * (input_size() - rows * columns);
  return tensor_bytes() - unread * bytes_per_element(type);
}

ConvProblem ConvProblem::without_depthwise() const {
  ConvProblem copy = *this;
  copy.depthwise.clear();
  copy.layouts.input = Layout::nchw;
  return copy;
}

ConvProblem ConvProblem::without_epilogue() const {
  ConvProblem copy = *this;
  copy.epilogue = {};
  copy.layouts.residual = Layout::nchw;
  copy.result = output;
  return copy;
}

ConvProblem ConvProblem::without_pool() const {
  ConvProblem copy = *this;
  copy.epilogue.pool = {};
  copy.result = output;
  return copy;
}

ConvProblem ConvProblem::depthwise_alone() const {
  ConvProblem copy = depthwise.front();
  copy.layouts.input = layouts.input;
  return copy;
}

ConvProblem ConvProblem::with_layouts(const Layouts& other) const {
  ConvProblem copy = *this;
  copy.layouts = other;
  return copy;
}

Shape ConvProblem::result_shape() const {
  Shape shape{batch, out_channels};
  shape.insert(shape.end(), result.end() - spatial_rank, result.end());
  return from_nchw(std::move(shape), layouts.output);
}

Shape ConvProblem::output_shape(Layout layout) const {
  Shape shape{batch, out_channels};
  shape.insert(shape.end(), output.end() - spatial_rank, output.end());
  return from_nchw(std::move(shape), layout);
}

std::string ConvProblem::text() const {
  const auto spatial = [this](const Axes& axes) { return Shape(axes.end() - spatial_rank, axes.end()); };
  const auto joined = [](Shape first, const Shape& second) {
    first.insert(first.end(), second.begin(), second.end());
    return extents_text(first);
  };
  return type_text(*this) + " x=" + joined({batch, in_channels}, spatial(input)) +
         " w=" + joined({out_channels, channels_per_group()}, spatial(filter)) +
         " bias=" + (has_bias ? "yes" : "no") + " group=" + std::to_string(group) +
         " strides=" + extents_text(spatial(stride)) + " dilations=" + extents_text(spatial(dilation)) +
         " pads=" + joined(spatial(pad_begin), spatial(pad_end)) +
         (epilogue.is_empty() ? "" : " then=" + text_of(epilogue)) +
         (quantization ? text_of(*quantization) : "") +
         (depthwise.empty() ? "" : " of=(" + depthwise.front().text() + ")") +
         (layouts.are_nchw() ? "" : " layouts=" + text_of(layouts, epilogue.has_residual));
}

size_t ConvProblemHash::operator()(const ConvProblem& problem) const {
  // FNV-1a over the values: the struct's padding bytes are undefined.
  uint64_t hash = 14695981039346656037ull;
  const auto mix = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211ull;
    hash ^= hash >> 32;
  };
  for (const int64_t value :
       {static_cast<int64_t>(problem.type), static_cast<int64_t>(problem.result_type()),
        static_cast<int64_t>(problem.precision), static_cast<int64_t>(problem.spatial_rank),
        static_cast<int64_t>(problem.has_bias), problem.batch, problem.in_channels, problem.out_channels,
        problem.group, static_cast<int64_t>(problem.epilogue.activation),
        static_cast<int64_t>(problem.epilogue.has_residual), problem.epilogue.pool.kernel[0],
        problem.epilogue.pool.kernel[1], static_cast<int64_t>(problem.layouts.input),
        static_cast<int64_t>(problem.layouts.output), static_cast<int64_t>(problem.layouts.residual)}) {
    mix(value);
  }
  for (const Axes* axes : {&problem.input, &problem.filter, &problem.stride, &problem.dilation,
                           &problem.pad_begin, &problem.pad_end}) {
    for (const int64_t value : *axes) mix(value);
  }
  for (const ConvProblem& first : problem.depthwise) mix(static_cast<int64_t>((*this)(first)));
  return static_cast<size_t>(hash);
}

ConvProblem make_problem(const ConvSpec& spec, const Shape& input, const Shape& w,
                         const std::optional<Shape>& bias, const std::optional<Shape>& residual) {
  check_spec(spec);
  const Layout layout = spec.layouts.input;
  if (input.size() < 3 || input.size() > 5) {
    throw InvalidArgument(
        shape_message("input", input, "3, 4 or 5 dimensions: " + std::string(axes_of(layout))));
  }
  check_weights(spec, w);
  check_elements("input", input);
  check_elements("weights", w);
  if (w.size() != input.size()) {
    throw InvalidArgument(shape_message(
        "weights", w,
        "as many dimensions as the input of shape " + list_text(input) + ": (K, C / group, filter...)"));
  }
  const Shape x = to_nchw(input, layout);
  int64_t channels = 0;
  // Weights without filters pass check_elements with any number of channels.
  if (__builtin_mul_overflow(w[1], spec.group, &channels)) {
    throw InvalidArgument(shape_message(
        "weights", w,
        "fewer channels: times the group " + std::to_string(spec.group) + " they leave 64 bits"));
  }
  if (x[1] != channels) {
    const char* const where = layout == Layout::nhwc ? " channels on the last axis" : " channels";
    throw InvalidArgument(shape_message("input", input,
                                        std::to_string(channels) + where + ": the weights " + list_text(w) +
                                            " have " + std::to_string(w[1]) + " per group and group is " +
                                            std::to_string(spec.group)));
  }
  if (bias && *bias != Shape{w[0]}) {
    throw InvalidArgument(
        shape_message("bias", *bias, "[" + std::to_string(w[0]) + "], one value per output channel"));
  }

  const size_t spatial_rank = x.size() - 2;
  ConvProblem problem;
  problem.type = spec.type;
  problem.quantization = spec.quantization;
  if (spec.quantization) problem.y_type = spec.y_type;
  problem.precision = spec.precision;
  problem.spatial_rank = static_cast<int>(spatial_rank);
  problem.has_bias = bias.has_value();
  problem.batch = x[0];
  problem.in_channels = x[1];
  problem.out_channels = w[0];
  problem.group = spec.group;
  for (size_t i = 0; i < spatial_rank; ++i) {
    const size_t axis = i + 3 - spatial_rank;
    problem.input[axis] = x[i + 2];
    problem.filter[axis] = w[i + 2];
    problem.stride[axis] = value_or(spec.strides, i, 1);
    problem.dilation[axis] = value_or(spec.dilations, i, 1);
    resolve_axis(spec, i, spatial_rank, axis, problem);
  }
  if (problem.is_quantised()) check_products(problem, w);
  problem.epilogue = spec.epilogue;
  problem.epilogue.has_residual = residual.has_value();
  problem.layouts = spec.layouts;
  // An absent residual has no layout, so that equal problems compare equal.
  if (!residual) problem.layouts.residual = Layout::nchw;
  resolve_result(problem);
  if (residual) check_residual(problem, *residual);
  return problem;
}

ConvProblem make_problem(const ConvSpec& spec, const InputShapes& shapes) {
  if (!shapes.depthwise) {
    if (shapes.depthwise_bias || !spec.depthwise.is_empty()) {
      throw InvalidArgument(
          "a bias or attributes of a depthwise convolution are given, and no weights of one: expected its "
          "weights D too");
    }
    ConvProblem problem = make_problem(spec, shapes.x, shapes.w, shapes.bias, shapes.residual);
    if (problem.is_quantised()) check_quantised(problem, shapes);
    return problem;
  }
  const Shape& weights = *shapes.depthwise;
  if (weights.size() < 2 || weights[0] < 1 || weights[1] != 1 || shapes.x.size() < 2 ||
      weights[0] != shapes.x[channel_axis(spec.layouts.input, shapes.x.size())]) {
    throw InvalidArgument(
        shape_message("depthwise weights", weights,
                      "(C, 1, filter...), a filter for each channel of the input of shape " +
                          list_text(shapes.x) + in_layout(spec.layouts.input)));
  }
  ConvProblem depthwise = make_depthwise_problem(spec, shapes);
  ConvProblem problem = make_problem(spec_behind_depthwise(spec), depthwise.result_shape(), shapes.w,
                                     shapes.bias, shapes.residual);
  problem.layouts.input = spec.layouts.input;
  problem.depthwise.push_back(depthwise.with_layouts({}));
  return problem;
}

void check_sum_values(const Quantization& quantization, bool has_sum_values) {
  if (has_sum_values && !quantization.has_sum_values) {
    throw InvalidArgument("input sum_values: expected the attribute sum_zero_point and no sum_scale");
  }
  if (!has_sum_values && quantization.has_sum_values) {
    throw InvalidArgument(
        "attribute sum_zero_point: expected the attribute sum_scale or the input sum_values, too, and there "
        "is neither");
  }
}

}  // namespace convswap
