#pragma once

#include "conv/host_device.h"

namespace convswap {

// The ONNX operators of these names. SiLU is x * sigmoid(x); GeluTanh is Gelu with approximate="tanh".
enum class Activation {
  none,
  relu,
  leaky_relu,  // alpha: the slope below zero
  clip,        // alpha: minimum, beta: maximum; an infinity is no bound
  tanh,
  sigmoid,
  hard_sigmoid,  // alpha: the slope, beta: the value at zero
  hard_swish,
  silu,
  gelu,
  gelu_tanh,
  elu,  // alpha: the scale below zero; the limit at -infinity is -alpha
};

enum class PoolKind { none, max, average };

// ONNX's MaxPool or AveragePool over the two spatial axes of an image, rows first.
struct Pool {
  PoolKind kind = PoolKind::none;
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t pad_begin[2] = {0, 0};
  int64_t pad_end[2] = {0, 0};
  bool rounds_up = false;       // ceil_mode: an incomplete last pool window counts
  bool counts_padding = false;  // count_include_pad: an average divides by the padding, too

  bool operator==(const Pool&) const = default;
};

// The operations fused behind a convolution: y = pool(activation(accumulators + bias + residual)), rounded to
// the element type once, at the end. attributes.h reads it from a node's attributes.
struct Epilogue {
  Activation activation = Activation::none;
  float alpha = 0;
  float beta = 0;
  bool has_residual = false;
  Pool pool;

  bool operator==(const Epilogue&) const = default;
  bool is_empty() const { return *this == Epilogue{}; }
};

// True if the activation is ReLU or absent.
CONVSWAP_HOST_DEVICE inline bool is_relu_or_none(const Epilogue& epilogue) {
  return epilogue.activation == Activation::none || epilogue.activation == Activation::relu;
}

// True for SiLU and HardSwish, which kernels inline.
CONVSWAP_HOST_DEVICE inline bool is_swish(const Epilogue& epilogue) {
  return epilogue.activation == Activation::silu || epilogue.activation == Activation::hard_swish;
}

}  // namespace convswap
