#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "conv/epilogue.h"
#include "conv/layout.h"
#include "conv/quantization.h"

namespace convswap {

// The largest integer attribute. Products of two such numbers, the most that shape arithmetic forms, fit into
// 64 bits.
constexpr int64_t kMaxAttribute = 2147483647;

// Accumulators of float16 and bfloat16 data are float32, those of int8 and uint8 codes int32. Only biases
// beside codes are int32.
enum class ElementType { float32, float64, float16, bfloat16, int8, uint8, int32 };

// True for int8 and uint8, the codes of quantised data.
constexpr bool is_code(ElementType type) { return type == ElementType::int8 || type == ElementType::uint8; }

// Precision of float32 data; other types ignore it. tf32 rounds each operand to TF32's 10 mantissa bits. ieee
// is float32 throughout, or has a relative L2 error of at most 1e-6 on random data. Accumulators are float32
// or wider in both. On the CPU both compute in float32.
enum class Precision { tf32, ieee };

enum class AutoPad { notset, same_upper, same_lower, valid };

// The attributes of a depthwise convolution in front, with one filter per channel. An empty vector is an
// absent attribute, as in ConvSpec.
struct DepthwiseSpec {
  std::vector<int64_t> pads;
  std::vector<int64_t> strides;
  std::vector<int64_t> dilations;
  Epilogue epilogue;  // only an activation

  bool is_empty() const {
    return pads.empty() && strides.empty() && dilations.empty() && epilogue.is_empty();
  }
};

// What a node fixes before it has inputs. Vectors hold one value per spatial axis; pads hold two, all begins
// and then all ends. An empty vector is an absent attribute.
struct ConvSpec {
  ElementType type = ElementType::float32;
  Precision precision = Precision::tf32;
  AutoPad auto_pad = AutoPad::notset;
  int64_t group = 1;
  std::vector<int64_t> kernel_shape;
  std::vector<int64_t> pads;
  std::vector<int64_t> strides;
  std::vector<int64_t> dilations;
  Epilogue epilogue;        // the inputs decide whether there is a residual
  DepthwiseSpec depthwise;  // the inputs decide whether there is a depthwise convolution
  Layouts layouts;
  std::optional<Quantization> quantization;  // of int8 and uint8 data
  ElementType y_type = ElementType::int8;    // if `quantization` is set
};

// Returns the spec of the depthwise convolution in front as a node of its own, for an input of `channels`. It
// has the layout of the node's input; its result is NCHW.
ConvSpec depthwise_spec(const ConvSpec& spec, int64_t channels);

// Returns the spec of the convolution behind a depthwise one as a node of its own, with an input in NCHW.
ConvSpec spec_behind_depthwise(const ConvSpec& spec);

// Each throws InvalidArgument for a word that is not one of the attribute's values.
Precision parse_precision(std::string_view word);
AutoPad parse_auto_pad(std::string_view word);
// The type of data: not int32.
ElementType parse_element_type(std::string_view word);

std::string_view name_of(Precision precision);
std::string_view name_of(ElementType type);

int64_t bytes_per_element(ElementType type);

// Checks the ranges of attributes and that their lengths agree. Throws InvalidArgument.
void check_spec(const ConvSpec& spec);

// Checks the attributes against the shape of the weights, (K, C / group, filter...). Throws InvalidArgument.
void check_weights(const ConvSpec& spec, const Shape& weights);

}  // namespace convswap
