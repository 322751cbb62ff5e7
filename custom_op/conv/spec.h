#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "conv/epilogue.h"

namespace convswap {

using Shape = std::vector<int64_t>;

// Of a whole number. Large enough for every real network, and small enough that the products of the shape
// arithmetic, which have at most two such factors, fit into 64 bits.
constexpr int64_t kLargestAttribute = 2147483647;

// Sums of float16 and bfloat16 data are float32.
enum class ElementType { float32, float64, float16, bfloat16 };

// Of float32 data: tf32 rounds each input to TF32's 10 mantissa bits before multiplying; ieee is float32
// throughout, or within a relative L2 error of 1e-6 of random data. Sums are float32 or wider either way. On
// the CPU both compute in float32. Other types ignore it.
enum class Precision { tf32, ieee };

enum class AutoPad { notset, same_upper, same_lower, valid };

// A depthwise convolution in front of another, of one filter for each channel, as the attributes of a node
// give it; empty vectors are absent attributes, as in ConvSpec.
struct DepthwiseSpec {
  std::vector<int64_t> pads;
  std::vector<int64_t> strides;
  std::vector<int64_t> dilations;
  Epilogue epilogue;  // an activation alone

  bool is_empty() const {
    return pads.empty() && strides.empty() && dilations.empty() && epilogue.is_empty();
  }
};

// What a node fixes before any input is seen. The vectors hold one value per spatial axis, pads two (all
// the begins, then all the ends); an empty vector is an absent attribute, as in ONNX.
struct ConvSpec {
  ElementType type = ElementType::float32;
  Precision precision = Precision::tf32;
  AutoPad auto_pad = AutoPad::notset;
  int64_t group = 1;
  std::vector<int64_t> kernel_shape;
  std::vector<int64_t> pads;
  std::vector<int64_t> strides;
  std::vector<int64_t> dilations;
  Epilogue epilogue;        // whether there is a residual is known with the inputs
  DepthwiseSpec depthwise;  // whether there is one, too
};

// The depthwise convolution of a node whose input has so many channels, as a node of its own would have it.
ConvSpec depthwise_spec(const ConvSpec& spec, int64_t channels);

// Each throws InvalidArgument for a word that is not one of the attribute's values.
Precision parse_precision(std::string_view word);
AutoPad parse_auto_pad(std::string_view word);
ElementType parse_element_type(std::string_view word);

std::string_view name_of(Precision precision);
std::string_view name_of(ElementType type);

int64_t size_of(ElementType type);

// Checks what can be known of a node without its input: ranges, and that the attributes agree in length
// with each other. Throws InvalidArgument.
void check_spec(const ConvSpec& spec);

// Checks the attributes against the shape of the weights, (K, C / group, filter...). Throws InvalidArgument.
void check_weights(const ConvSpec& spec, const Shape& weights);

}  // namespace convswap
