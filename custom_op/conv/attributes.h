#pragma once

// Reads a convolution and its epilogue from a node's attributes, and writes an epilogue as text.

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

// Sets the activation for elements of `type`. An omitted bound of Clip is the type's lowest or largest
// number, as in ONNX. Throws InvalidArgument if any other parameter is omitted, or a parameter is NaN.
void set_activation(Epilogue& epilogue, ElementType type, Activation kind, std::optional<float> alpha,
                    std::optional<float> beta);

// The op with the pool: a convolution, whose attributes of the pool begin with "pool_", or LayoutPool, whose
// attributes have ONNX's names.
enum class PoolOwner { conv, pool };

// Makes the pool from its attributes; an empty list is an absent attribute. Throws InvalidArgument.
Pool make_pool(PoolKind kind, const std::vector<int64_t>& kernel_shape, const std::vector<int64_t>& strides,
               const std::vector<int64_t>& pads, bool rounds_up, bool counts_padding,
               PoolOwner owner = PoolOwner::conv);

// Returns the number of pool windows along `axis` for `input` positions. As in ONNX Runtime, a pool window
// larger than the padded input counts as one or none. Throws InvalidArgument if the formula is negative.
int64_t pool_extent(const Pool& pool, size_t axis, int64_t input, PoolOwner owner = PoolOwner::conv);

// Returns "Relu" or "residual LeakyRelu(0.01) MaxPool 2x2 strides=2x2 pads=0x0x0x0"; "" for an empty
// epilogue.
std::string text_of(const Epilogue& epilogue);

// The attributes of a node. An absent attribute gives an empty optional or list.
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual std::optional<int64_t> integer(const char* name) const = 0;
  virtual std::vector<int64_t> integers(const char* name) const = 0;
  virtual std::optional<float> real(const char* name) const = 0;
  virtual std::optional<std::string> text(const char* name) const = 0;
};

// Reads the pool of a node. Throws InvalidArgument.
Pool read_pool(const Attributes& attributes, PoolOwner owner);

// The convolutions among the ops. `fused` is Conv with an epilogue and a depthwise convolution in front;
// `layout` is `fused` with layouts. Layouts are a new op, and not attributes of the others, because versions
// of this library without them would ignore the attributes and compute wrong results. `quant` is a
// convolution of int8 or uint8 codes with an epilogue and layouts.
enum class OpKind { conv, fused, layout, quant };

// "Conv", "FusedConv", "LayoutConv" or "QuantConv".
const char* name_of(OpKind op);

// Reads the conv spec of a node. Throws InvalidArgument, also for the layouts of an op that has none. The
// type and the zero point of a quantised result, and whether there is an offset, are not attributes.
ConvSpec read_spec(OpKind op, const Attributes& attributes, ElementType type, Precision precision);

}  // namespace convswap
