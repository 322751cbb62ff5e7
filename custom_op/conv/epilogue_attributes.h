#pragma once

// An epilogue as the attributes of an op give it, and as text.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv/epilogue.h"

namespace convswap {

// Each throws InvalidArgument for a word that is not one of the attribute's values.
Activation parse_activation(std::string_view word);
PoolKind parse_pool_kind(std::string_view word);

// Clip's bounds at the ends of float32 stand for none, which must not hold infinities back. Throws
// InvalidArgument where the activation needs a parameter that is not given.
void set_activation(Epilogue& epilogue, Activation kind, std::optional<float> alpha,
                    std::optional<float> beta);

// The pool of the attributes; empty lists are absent ones. Throws InvalidArgument.
Pool make_pool(PoolKind kind, const std::vector<int64_t>& kernel_shape, const std::vector<int64_t>& strides,
               const std::vector<int64_t>& pads, bool rounds_up, bool counts_padding);

// Of a convolution's output that long. As in ONNX Runtime, a window that is larger than the padded output is
// one or none; throws InvalidArgument where the formula gives less.
int64_t pool_extent(const Pool& pool, size_t axis, int64_t input);

// "Relu", "residual LeakyRelu(0.01) MaxPool 2x2 strides=2x2 pads=0x0x0x0"; empty where it is.
std::string text_of(const Epilogue& epilogue);

}  // namespace convswap
