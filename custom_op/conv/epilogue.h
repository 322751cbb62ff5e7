#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convswap {

// As the ONNX operators of these names, but SiLU, x * sigmoid(x), and GeluTanh, Gelu with approximate="tanh".
enum class Activation {
  none,
  relu,
  leaky_relu,  // alpha: the slope below zero
  clip,        // alpha: the least, beta: the most
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

  // Of a convolution's output that long. Throws InvalidArgument where not one window fits.
  int64_t extent(size_t axis, int64_t input) const;
};

// What follows a convolution and is computed with it: y = pool(activation(sums + bias + residual)), rounded
// to the element type once, at the end.
struct Epilogue {
  Activation activation = Activation::none;
  float alpha = 0;
  float beta = 0;
  bool has_residual = false;
  Pool pool;

  bool operator==(const Epilogue&) const = default;
  bool is_empty() const { return *this == Epilogue{}; }

  // As an op's attributes give them: Clip's bounds at the ends of float32 stand for none, which must not hold
  // infinities back.
  void set_activation(Activation kind, std::optional<float> given_alpha, std::optional<float> given_beta);

  // "Relu", "residual LeakyRelu(0.01) MaxPool 2x2 strides=2x2 pads=0x0x0x0"; empty where it is.
  std::string text() const;
};

// Each throws InvalidArgument for a word that is not one of the attribute's values.
Activation parse_activation(std::string_view word);
PoolKind parse_pool_kind(std::string_view word);

// The pool of the attributes; empty lists are absent ones. Throws InvalidArgument.
Pool make_pool(PoolKind kind, const std::vector<int64_t>& kernel_shape, const std::vector<int64_t>& strides,
               const std::vector<int64_t>& pads, bool rounds_up, bool counts_padding);

}  // namespace convswap
