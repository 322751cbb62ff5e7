#pragma once

#include "conv/host_device.h"

namespace convswap {

// As the ONNX operators of these names, but SiLU, x * sigmoid(x), and GeluTanh, Gelu with approximate="tanh".
enum class Activation {
  none,
  relu,
  leaky_relu,  // alpha: the slope below zero
  clip,        // alpha: the least, beta: the most; infinite: no bound
  tanh,
  sigmoid,
  hard_sigmoid,  // alpha: the slope, beta: the value at zero
  hard_swish,
  silu,
  gelu,
  gelu_tanh,
  elu,  // alpha: what it tends to below zero, negated
};

enum class PoolKind { none, max, average };

// A pool over the two spatial axes of an image, rows first, as ONNX's MaxPool and AveragePool.
struct Pool {
  PoolKind kind = PoolKind::none;
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t pad_begin[2] = {0, 0};
  int64_t pad_end[2] = {0, 0};
  bool rounds_up = false;       // a last window that is not whole counts (ceil_mode)
  bool counts_padding = false;  // an average's padding counts as zeros (count_include_pad)

  bool operator==(const Pool&) const = default;
};

// What follows a convolution and is computed with it: y = pool(activation(sums + bias + residual)), rounded
// to the element type once, at the end. attributes.h has what the host makes it of.
struct Epilogue {
  Activation activation = Activation::none;
  float alpha = 0;
  float beta = 0;
  bool has_residual = false;
  Pool pool;

  bool operator==(const Epilogue&) const = default;
  bool is_empty() const { return *this == Epilogue{}; }
};

// Whether the activation at most makes what is less than 0 a 0.
CONVSWAP_HOST_DEVICE inline bool is_floored(const Epilogue& epilogue) {
  return epilogue.activation == Activation::none || epilogue.activation == Activation::relu;
}

// Whether the activation is SiLU or HardSwish, which kernels compute without a call.
CONVSWAP_HOST_DEVICE inline bool is_swish(const Epilogue& epilogue) {
  return epilogue.activation == Activation::silu || epilogue.activation == Activation::hard_swish;
}

}  // namespace convswap
