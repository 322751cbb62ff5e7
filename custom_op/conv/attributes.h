#pragma once

// A convolution and its epilogue as the attributes of an op give them, and the epilogue as text.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv/spec.h"

namespace convswap {

// Each throws InvalidArgument for a word that is not one of the attribute's values.
Activation parse_activation(std::string_view word);
PoolKind parse_pool_kind(std::string_view word);

// Sets the activation of data of type `type`. A bound of Clip that is left out is the type's lowest or
// largest number, as in ONNX. Throws InvalidArgument if another parameter is left out, or a parameter is NaN.
void set_activation(Epilogue& epilogue, ElementType type, Activation kind, std::optional<float> alpha,
                    std::optional<float> beta);

// The pool of the attributes; empty lists are absent ones. Throws InvalidArgument.
Pool make_pool(PoolKind kind, const std::vector<int64_t>& kernel_shape, const std::vector<int64_t>& strides,
               const std::vector<int64_t>& pads, bool rounds_up, bool counts_padding);

// Of a convolution's output that long. As in ONNX Runtime, a window that is larger than the padded output is
// one or none; throws InvalidArgument where the formula gives less.
int64_t pool_extent(const Pool& pool, size_t axis, int64_t input);

// "Relu", "residual LeakyRelu(0.01) MaxPool 2x2 strides=2x2 pads=0x0x0x0"; empty where it is.
std::string text_of(const Epilogue& epilogue);

// The attributes of a node; absent ones are empty.
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual std::optional<int64_t> integer(const char* name) const = 0;
  virtual std::vector<int64_t> integers(const char* name) const = 0;
  virtual std::optional<float> real(const char* name) const = 0;
  virtual std::optional<std::string> text(const char* name) const = 0;
};

// The conv spec that the attributes of an ONNX Conv describe, and where it is fused those that a FusedConv
// has beside them, of its epilogue and of a depthwise convolution in front. Throws InvalidArgument.
ConvSpec read_spec(const Attributes& attributes, ElementType type, Precision precision, bool is_fused);

}  // namespace convswap
