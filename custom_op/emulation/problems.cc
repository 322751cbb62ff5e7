#include "problems.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include "compiled.h"
#include "conv/arithmetic.h"
#include "conv/attributes.h"
#include "conv/epilogue_math.h"
#include "conv/floating_type.h"
#include "cuda/host/formats.h"
#include "cuda_emulation.h"
#include "plan/epilogue_stage.h"
#include "plan/layout_stage.h"
#include "plan/planner.h"
#include "plan/prepared.h"

namespace convswap {

// Refuses: here a depthwise convolution in front is computed by the family or not at all.
Offer with_depthwise(const Algorithm&, Offer, const ConvProblem&, const Device&) {
  return Offer::refusal("another plan would compute the depthwise convolution in front");
}

// The algorithms take the layouts of the drawn problems.
const LayoutStage& layout_stage(DeviceKind) {
  throw std::logic_error("the emulation of a family has no layout stage");
}

namespace {

// The largest slope of an activation: an error of the accumulator is amplified by it at most.
constexpr double kMaxSlope = 1.5;  // HardSwish; SiLU has 1.1, the others 1

Epilogue draw_epilogue(Random& random) {
  Epilogue epilogue;
  constexpr Activation kDrawn[] = {Activation::none,      Activation::relu, Activation::leaky_relu,
                                   Activation::tanh,      Activation::clip, Activation::silu,
                                   Activation::hard_swish};
  epilogue.activation = kDrawn[between(random, 0, std::ssize(kDrawn) - 1)];
  epilogue.alpha = epilogue.activation == Activation::clip ? -0.5f : 0.25f;
  epilogue.beta = 1.5f;
  epilogue.has_residual = one_in(random, 3);
  if (one_in(random, 2)) return epilogue;
  Pool& pool = epilogue.pool;
  pool.kind = one_in(random, 3) ? PoolKind::average : PoolKind::max;
  if (one_in(random, 2)) {  // the pool with its own code path
    std::fill_n(pool.kernel, 2, 2), std::fill_n(pool.stride, 2, 2);
    return epilogue;
  }
  pool.rounds_up = one_in(random, 3);
  pool.counts_padding = pool.kind == PoolKind::average && one_in(random, 2);
  for (int axis = 0; axis < 2; ++axis) {
    pool.kernel[axis] = between(random, 1, 4);
    pool.stride[axis] = between(random, 1, 4);
    if (one_in(random, 3)) {
      pool.pad_begin[axis] = between(random, 0, 2), pool.pad_end[axis] = between(random, 0, 2);
    }
  }
  return epilogue;
}

// Sets the result to the epilogue's, whose pool becomes one that the output has.
void set_result(ConvProblem& p) {
  p.result = p.output;
  Pool& pool = p.epilogue.pool;
  if (pool.kind == PoolKind::none) return;
  for (int axis = 0; axis < 2; ++axis) {
    // At most one pool window reaches beyond the image; a larger kernel would have no pool window.
    pool.kernel[axis] = std::min(pool.kernel[axis], p.output[axis + 1] + pool.stride[axis] - 1);
    pool.pad_begin[axis] = std::min(pool.pad_begin[axis], pool.kernel[axis] - 1);
    pool.pad_end[axis] = std::min(pool.pad_end[axis], pool.kernel[axis] - 1);
    p.result[axis + 1] = pool_extent(pool, axis, p.output[axis + 1]);
  }
}

ConvProblem draw_problem(Random& random) {
  ConvProblem p;
  p.batch = between(random, 1, 5);
  p.group = one_in(random, 4) ? between(random, 2, 3) : 1;
  p.in_channels = p.group * (one_in(random, 3)   ? 1
                             : one_in(random, 8) ? between(random, 17, 40)
                                                 : between(random, 1, 9));
  p.out_channels = p.group * between(random, 1, one_in(random, 4) ? 60 : 14);
  p.has_bias = one_in(random, 2);
  p.filter = {1, between(random, 1, 8), between(random, 1, one_in(random, 5) ? 11 : 7)};
  // Padding below only, which a tile must not read as rows of the previous tile. Many images, so that each
  // warpgroup has many tiles.
  const bool is_padded_below = one_in(random, 8);
  if (is_padded_below) p.batch = between(random, 8, 16);
  for (int axis = 1; axis < 3; ++axis) {
    if (one_in(random, 3)) p.stride[axis] = between(random, 1, 4);
    if (one_in(random, 6)) p.dilation[axis] = between(random, 1, 3);
    if (one_in(random, 3)) p.pad_begin[axis] = between(random, 0, 4);
    if (one_in(random, 3)) p.pad_end[axis] = between(random, 0, 4);
    if (is_padded_below) p.pad_begin[axis] = 0, p.pad_end[axis] = axis == 1 ? between(random, 1, 4) : 0;
    const int64_t extent_of_filter = (p.filter[axis] - 1) * p.dilation[axis] + 1;
    const int64_t pads = p.pad_begin[axis] + p.pad_end[axis];
    p.input[axis] = std::max<int64_t>(1, extent_of_filter - pads) + between(random, 0, 24);
    p.output[axis] = (p.input[axis] + pads - extent_of_filter) / p.stride[axis] + 1;
  }
  p.type = one_in(random, 5)   ? ElementType::float16
           : one_in(random, 5) ? ElementType::bfloat16
                               : ElementType::float32;
  p.precision = one_in(random, 4) ? Precision::ieee : Precision::tf32;
  if (one_in(random, 2)) p.epilogue = draw_epilogue(random);
  set_result(p);
  return p;
}

}  // namespace

Device draw_device(Random& random) {
  constexpr int kSharedMemory[] = {49'152, 101'376, 232'448};
  Device device;
  device.kind = DeviceKind::cuda;
  device.name = "the emulation";
  device.compute_capability = 90;
  device.multiprocessors = static_cast<int>(between(random, 3, 6));
  device.shared_memory_per_block = kSharedMemory[between(random, 0, 2)];
  device.shared_memory_per_multiprocessor = device.shared_memory_per_block + 1024;
  return device;
}

namespace {

// Padding so wide that a tile may lie in it entirely. One image and few filters on a large card, so that
// tiles are narrow.
void pad_left(ConvProblem& p, Device& device, Random& random) {
  p.batch = 1;
  p.out_channels = p.group;
  p.filter[2] = between(random, 1, 2);
  p.stride[2] = p.dilation[2] = 1;
  p.pad_begin[2] = between(random, 9, 24);
  p.output[2] = p.input[2] + p.pad_begin[2] + p.pad_end[2] - p.filter[2] + 1;
  p.epilogue = {};
  p.result = p.output;
  device.multiprocessors = 132;
}

// First seed of problems with several images per block and sometimes many filters, on cards with any shared
// memory: they test for state that one image leaves to the next.
constexpr int kFirstMultiImageSeed = 1'000'000;
void make_multi_image(ConvProblem& p, Device& device, Random& random) {
  p.batch = between(random, 4, 12);
  if (one_in(random, 2)) {
    p.group = 1;
    p.in_channels = between(random, 1, 5);
    p.out_channels = between(random, 60, 130);
  }
  p.epilogue = {};
  p.result = p.output;
  device.multiprocessors = static_cast<int>(between(random, 1, 3));
  device.shared_memory_per_block = static_cast<int>(128 * between(random, 180, 1816));
  device.shared_memory_per_multiprocessor = device.shared_memory_per_block + 1024;
}

// First seed of problems with many channels of small images, on cards with any shared memory.
constexpr int kFirstManyChannelsSeed = 2'000'000;
void make_many_channels(ConvProblem& p, Device& device, Random& random) {
  p.batch = between(random, 1, 6);
  p.group = one_in(random, 4) ? 2 : 1;
  p.in_channels = p.group * between(random, 10, one_in(random, 3) ? 150 : 50);
  p.out_channels = p.group * between(random, 8, one_in(random, 3) ? 200 : 70);
  // The last chunk of 32 channels has at most 16, and filters have one tap.
  if (one_in(random, 6)) {
    p.filter[1] = p.filter[2] = 1;
    p.in_channels = p.group * (32 * between(random, 3, 7) + between(random, 1, 16));
  }
  for (int axis = 1; axis < 3; ++axis) {
    p.filter[axis] = std::min<int64_t>(p.filter[axis], one_in(random, 2) ? 3 : 5);
    const int64_t extent_of_filter = (p.filter[axis] - 1) * p.dilation[axis] + 1;
    const int64_t pads = p.pad_begin[axis] + p.pad_end[axis];
    p.input[axis] = std::max<int64_t>(1, extent_of_filter - pads) + between(random, 0, 10);
    p.output[axis] = (p.input[axis] + pads - extent_of_filter) / p.stride[axis] + 1;
  }
  p.epilogue.pool = {};
  if (one_in(random, 3)) {
    p.spatial_rank = 3;
    p.filter[0] = between(random, 1, 3);
    p.stride[0] = between(random, 1, 2), p.dilation[0] = between(random, 1, 2);
    p.pad_begin[0] = between(random, 0, 2), p.pad_end[0] = between(random, 0, 2);
    const int64_t extent_of_filter = (p.filter[0] - 1) * p.dilation[0] + 1,
                  pads = p.pad_begin[0] + p.pad_end[0];
    p.input[0] = std::max<int64_t>(1, extent_of_filter - pads) + between(random, 0, 3);
    p.in_channels = p.group * between(random, 10, 40), p.out_channels = p.group * between(random, 8, 40);
    p.output[0] = (p.input[0] + pads - extent_of_filter) / p.stride[0] + 1;
  }
  p.result = p.output;
  if (one_in(random, 6)) p.type = ElementType::float64;
  device.multiprocessors = static_cast<int>(between(random, 1, 6));
  device.shared_memory_per_block = static_cast<int>(128 * between(random, 500, 1816));
  device.shared_memory_per_multiprocessor = device.shared_memory_per_block + 1024;
}

// First seed of many-channel problems with images so wide that a tile is a part of some rows.
constexpr int kFirstWideSeed = 3'000'000;
void make_wide(ConvProblem& p, Device& device, Random& random) {
  make_many_channels(p, device, random);
  p.spatial_rank = 2;
  p.input[0] = p.filter[0] = p.stride[0] = p.dilation[0] = p.output[0] = 1;
  p.pad_begin[0] = p.pad_end[0] = 0;
  p.batch = p.group = 1;
  p.in_channels = between(random, 16, 34), p.out_channels = between(random, 8, 40);
  p.input[1] = between(random, 6, 20), p.input[2] = between(random, 150, 400);
  for (int axis = 1; axis < 3; ++axis) {
    p.filter[axis] = between(random, 1, 3);
    p.stride[axis] = between(random, 1, 3);
    p.dilation[axis] = 1;
    p.pad_begin[axis] = p.pad_end[axis] = between(random, 0, 1);
    p.output[axis] = (p.input[axis] + 2 * p.pad_begin[axis] - p.filter[axis]) / p.stride[axis] + 1;
  }
  p.result = p.output;
  if (p.type == ElementType::float64) p.type = ElementType::float32;
}

// First seed of problems with 1 x 1 filters and no padding.
constexpr int kFirstPointwiseSeed = 4'000'000;
void make_pointwise(ConvProblem& p, Device& device, Random& random) {
  make_many_channels(p, device, random);
  if (one_in(random, 2)) p.type = ElementType::float32;
  p.precision = one_in(random, 8) ? Precision::ieee : Precision::tf32;
  p.out_channels = p.group * between(random, 1, one_in(random, 3) ? 300 : 40);
  for (int axis = 0; axis < 3; ++axis) {
    p.filter[axis] = p.dilation[axis] = 1;
    p.pad_begin[axis] = p.pad_end[axis] = 0;
    p.output[axis] = (p.input[axis] - 1) / p.stride[axis] + 1;
  }
  p.result = p.output;
  // Enough chunks per warpgroup to refill each pipeline stage several times.
  if (!one_in(random, 4)) return;
  p.spatial_rank = 2;
  p.batch = p.group = p.input[0] = p.stride[0] = p.stride[1] = p.stride[2] = 1;
  p.input[1] = 2 * between(random, 8, 12), p.input[2] = between(random, 16, 24);
  p.in_channels = between(random, 60, 200), p.out_channels = between(random, 1, 100);
  p.result = p.output = p.input;
  device.multiprocessors = 1, device.shared_memory_per_block = 227 * 1024;
  device.shared_memory_per_multiprocessor = device.shared_memory_per_block + 1024;
}

// First seed of problems with a pool whose windows overlap, on planes larger than a block pools at a time.
constexpr int kFirstPooledSeed = 5'000'000;
void make_pooled(ConvProblem& p, Random& random) {
  p.batch = between(random, 1, 2);
  p.in_channels = p.out_channels = p.group = 1;
  for (int axis = 1; axis < 3; ++axis) {
    p.filter[axis] = between(random, 1, 2);
    p.stride[axis] = p.dilation[axis] = 1;
    p.pad_begin[axis] = p.pad_end[axis] = 0;
    p.input[axis] = between(random, 48, 64);
    p.output[axis] = p.input[axis] - p.filter[axis] + 1;
  }
  p.type = ElementType::float32;
  p.epilogue = draw_epilogue(random);
  Pool& pool = p.epilogue.pool;
  pool = {};
  pool.kind = one_in(random, 4) ? PoolKind::average : PoolKind::max;
  std::fill_n(pool.kernel, 2, between(random, 2, 4));
  std::fill_n(pool.stride, 2, 1);
  for (int axis = 0; axis < 2; ++axis) {
    pool.pad_begin[axis] = between(random, 0, 1), pool.pad_end[axis] = between(random, 0, 1);
    p.result[axis + 1] = pool_extent(pool, axis, p.output[axis + 1]);
  }
}

// First seed of depthwise problems with one to three spatial axes. Filters, images and row alignments are
// those of real networks.
constexpr int kFirstDepthwiseSeed = 6'000'000;
void make_depthwise(ConvProblem& p, Device& device, Random& random) {
  constexpr int kTaps[] = {1, 2, 3, 3, 3, 4, 5, 5, 7, 7, 9, 11};
  p.group = p.in_channels = between(random, 1, 24);
  p.out_channels = p.group * (one_in(random, 5) ? between(random, 2, 3) : 1);
  p.batch = between(random, 1, 3);
  p.spatial_rank = one_in(random, 4) ? 3 : one_in(random, 4) ? 1 : 2;
  p.epilogue.pool = {};
  const bool is_plain = one_in(random, 2);
  const bool is_long = p.spatial_rank == 1 && one_in(random, 4);
  const int64_t taps = is_long ? between(random, 12, 600) : kTaps[between(random, 0, 11)];
  for (int axis = 0; axis < 3; ++axis) {
    p.filter[axis] = p.stride[axis] = p.dilation[axis] = p.input[axis] = p.output[axis] = 1;
    p.pad_begin[axis] = p.pad_end[axis] = 0;
    if (axis < 3 - p.spatial_rank) continue;
    p.filter[axis] = axis == 0           ? between(random, 1, 3)
                     : one_in(random, 6) ? kTaps[between(random, 0, 11)]
                                         : taps;
    if (!is_plain) {
      if (one_in(random, 2)) p.stride[axis] = between(random, 1, 3);
      if (one_in(random, 4)) p.dilation[axis] = between(random, 1, axis == 2 ? 8 : 2);
    }
    const int64_t extent_of_filter = (p.filter[axis] - 1) * p.dilation[axis] + 1;
    p.pad_begin[axis] = one_in(random, 4) ? between(random, 0, extent_of_filter) : extent_of_filter / 2;
    p.pad_end[axis] = one_in(random, 4) ? between(random, 0, extent_of_filter) : extent_of_filter / 2;
    const int64_t extent = axis == 0             ? between(random, 1, 4)
                           : p.spatial_rank == 1 ? between(random, 1, 3000)
                           : one_in(random, 8)   ? between(random, 60, 130)
                                                 : between(random, 1, 30);
    p.input[axis] = one_in(random, 2) ? ceil_divide(extent, 4) * 4 : extent;
    p.input[axis] = std::max(p.input[axis], extent_of_filter - p.pad_begin[axis] - p.pad_end[axis]);
    p.output[axis] =
        (p.input[axis] + p.pad_begin[axis] + p.pad_end[axis] - extent_of_filter) / p.stride[axis] + 1;
  }
  p.result = p.output;
  device.multiprocessors = static_cast<int>(one_in(random, 2) ? 132 : between(random, 1, 6));
}

// First seed of depthwise problems that `sliding_rows` takes, on images of all widths.
constexpr int kFirstSlidingSeed = 7'000'000;
void make_sliding(ConvProblem& p, Device& device, Random& random) {
  make_depthwise(p, device, random);
  p.spatial_rank = 2;
  const int64_t stride = between(random, 1, 2), taps = 3 + 2 * between(random, 0, 2);
  for (int axis = 0; axis < 3; ++axis) {
    const bool is_used = axis > 0;
    p.filter[axis] = is_used ? taps : 1, p.stride[axis] = is_used ? stride : 1, p.dilation[axis] = 1;
    const int64_t half = is_used ? taps / 2 : 0;
    // TensorFlow's SAME padding before an even extent with stride 2 is one less.
    const bool pads_less = axis == 2 && stride == 2 && taps < 7 && one_in(random, 3);
    p.pad_begin[axis] = pads_less                        ? half - 1
                        : axis == 1 && one_in(random, 4) ? between(random, 0, taps)
                                                         : half;
    p.pad_end[axis] = is_used && one_in(random, 3) ? between(random, 0, taps) : half;
    const int64_t extent = between(random, 1, axis == 2 && one_in(random, 4) ? 300 : 60);
    p.input[axis] = !is_used ? 1 : one_in(random, 2) ? ceil_divide(extent, 4) * 4 : extent;
    p.input[axis] = std::max(p.input[axis], p.filter[axis] - p.pad_begin[axis] - p.pad_end[axis]);
    p.output[axis] =
        (p.input[axis] + p.pad_begin[axis] + p.pad_end[axis] - p.filter[axis]) / p.stride[axis] + 1;
  }
  p.result = p.output;
}

// First seed of pointwise convolutions with a depthwise 3 x 3 convolution in front.
constexpr int kFirstSeparableSeed = 8'000'000;
void make_separable(ConvProblem& p, Device& device, Random& random) {
  ConvProblem depthwise;
  const int64_t stride = between(random, 1, 2);
  depthwise.batch = between(random, 1, 3);
  depthwise.group = depthwise.in_channels = depthwise.out_channels =
      between(random, 1, one_in(random, 4) ? 70 : 40);
  depthwise.has_bias = one_in(random, 2);
  depthwise.filter = {1, 3, 3}, depthwise.stride = {1, stride, stride};
  depthwise.pad_begin = {0, 1, 1};
  depthwise.input = {1, between(random, 2, 40), 4 * between(random, 1, one_in(random, 3) ? 30 : 12)};
  for (int axis = 1; axis < 3; ++axis) {
    depthwise.pad_end[axis] = between(random, 0, 2);
    depthwise.output[axis] = (depthwise.input[axis] + 1 + depthwise.pad_end[axis] - 3) / stride + 1;
  }
  depthwise.epilogue = draw_epilogue(random);
  depthwise.epilogue.has_residual = false, depthwise.epilogue.pool = {};
  depthwise.result = depthwise.output;

  ConvProblem pointwise;
  pointwise.batch = depthwise.batch, pointwise.in_channels = depthwise.out_channels;
  pointwise.out_channels = between(random, 1, 32);
  pointwise.has_bias = one_in(random, 2);
  pointwise.input = pointwise.output = pointwise.result = depthwise.result;
  pointwise.type = p.type, pointwise.precision = one_in(random, 10) ? Precision::ieee : Precision::tf32;
  pointwise.epilogue = p.epilogue;
  if (pointwise.epilogue.pool.kind != PoolKind::none) pointwise.epilogue.pool = {};
  pointwise.depthwise.push_back(depthwise);
  p = pointwise;
  device.multiprocessors = static_cast<int>(one_in(random, 2) ? 132 : between(random, 1, 6));
}

// First seed of channels-last problems.
constexpr int kFirstChannelsLastSeed = 9'000'000;
void make_channels_last(ConvProblem& p, Device& device, Random& random) {
  make_many_channels(p, device, random);
  p.type = one_in(random, 2)   ? ElementType::float16
           : one_in(random, 2) ? ElementType::bfloat16
                               : ElementType::float32;
  p.precision = p.type == ElementType::float32 && one_in(random, 2) ? Precision::ieee : Precision::tf32;
  const int64_t bytes = bytes_per_element(p.type);
  p.layouts = {Layout::nhwc, Layout::nhwc, Layout::nhwc};
  const auto rounded = [&](int64_t count) {
    return p.group * round_up(count / p.group, (p.group == 1 ? 16 : 128) / bytes);
  };
  p.in_channels = rounded(p.in_channels), p.out_channels = rounded(p.out_channels);
  if (one_in(random, 3)) p.input[2] += 60, p.output[2] += 60 / p.stride[2], p.result = p.output;
  p.output[2] =
      (p.input[2] + p.pad_begin[2] + p.pad_end[2] - (p.filter[2] - 1) * p.dilation[2] - 1) / p.stride[2] + 1;
  p.result = p.output;
  device.shared_memory_per_block = 227 * 1024;
  device.shared_memory_per_multiprocessor = 228 * 1024;
  device.multiprocessors = static_cast<int>(between(random, 1, 6));
  // Many channels and a small grid, whose K chunks may be split.
  if (one_in(random, 4)) {
    device.multiprocessors = 132;
    if (p.group == 1) p.in_channels = round_up(between(random, 60, 700), 16 / bytes);
  }
}

// First seed of channels-last depthwise problems, some with a pool.
constexpr int kFirstChannelsLastDepthwiseSeed = 10'000'000;
void make_channels_last_depthwise(ConvProblem& p, Device& device, Random& random) {
  make_depthwise(p, device, random);
  p.layouts = {Layout::nhwc, Layout::nhwc, Layout::nhwc};
  const int64_t filters = p.filters_per_group();
  if (!one_in(random, 4)) p.group = p.in_channels = 8 * between(random, 1, 6);
  p.out_channels = p.group * filters;
  if (p.spatial_rank == 2 && one_in(random, 2)) {
    // The filters of `sliding`.
    p.out_channels = p.group = p.in_channels = 8 * between(random, 1, 6);
    const int64_t size = 3 + 2 * between(random, 0, 2), stride = between(random, 1, 2);
    for (int axis = 1; axis < 3; ++axis) {
      p.filter[axis] = size, p.dilation[axis] = 1, p.stride[axis] = stride;
      p.input[axis] = std::max<int64_t>(p.input[axis], size);
    }
  }
  // Some y have rows and columns that see nothing but padding.
  const int64_t more_padding = one_in(random, 8) ? 4 : 0;
  for (int axis = 3 - p.spatial_rank; axis < 3; ++axis) {
    p.pad_begin[axis] += more_padding;
    const int64_t padded = p.input[axis] + p.pad_begin[axis] + p.pad_end[axis];
    p.output[axis] = (padded - (p.filter[axis] - 1) * p.dilation[axis] - 1) / p.stride[axis] + 1;
  }
  p.epilogue = draw_epilogue(random);
  if (p.spatial_rank != 2) p.epilogue.pool = {};
  set_result(p);
}

// First seed of problems of one group whose input is NCHW and whose output is NHWC.
constexpr int kFirstNhwcOutputSeed = 11'000'000;
void make_nhwc_output(ConvProblem& p, Random& random) {
  p.layouts = {Layout::nchw, Layout::nhwc, Layout::nhwc};
  p.group = 1;
  p.out_channels = one_in(random, 3) ? between(random, 5, 70) : 4 * between(random, 2, 24);
  p.epilogue.pool = {};
  p.result = p.output;
}

// A card of compute capability 7.5.
void make_75(Device& device) {
  device.compute_capability = 75;
  device.shared_memory_per_block = device.shared_memory_per_multiprocessor = 64 * 1024;
}

// First seed of channels-last problems in several groups or of few channels, for channels_last_mma.
constexpr int kFirstChannelsLastMmaSeed = 12'000'000;
void make_channels_last_mma(ConvProblem& p, Device& device, Random& random) {
  make_channels_last(p, device, random);
  p.precision = Precision::tf32;
  const int64_t piece = 16 / bytes_per_element(p.type);
  if (one_in(random, 2)) {
    p.in_channels = p.group * piece * between(random, 1, 11);
    p.out_channels = p.group * piece * between(random, 1, 11);
  }
  constexpr int kSharedMemory[] = {101'376, 166'912, 232'448};
  device.compute_capability = 80;
  device.shared_memory_per_block = kSharedMemory[between(random, 0, 2)];
  device.shared_memory_per_multiprocessor = device.shared_memory_per_block + 1024;
  if (p.type == ElementType::float16 && one_in(random, 2)) make_75(device);
}

// First seed of problems of codes, half of them in NHWC with channels for tensor cores, the others depthwise
// in NHWC or with few channels.
constexpr int kFirstQuantisedSeed = 13'000'000;
void make_codes(ConvProblem& p, Device& device, Random& random) {
  if (one_in(random, 4)) {
    make_depthwise(p, device, random);
    const int64_t filters = p.filters_per_group();
    if (!one_in(random, 8)) p.group = p.in_channels = 4 * between(random, 1, 10);
    p.out_channels = p.group * filters;
    p.layouts = {Layout::nhwc, Layout::nhwc, Layout::nhwc};
    if (p.epilogue.has_residual && one_in(random, 2)) p.epilogue.activation = Activation::relu;
    if (p.spatial_rank > 1 && one_in(random, 2)) {
      // The filters of depthwise_columns.
      p.out_channels = p.group = p.in_channels;
      const int64_t stride = between(random, 1, 2);
      for (int axis = 1; axis < 3; ++axis) {
        p.filter[axis] = 3, p.dilation[axis] = 1, p.stride[axis] = stride;
        p.pad_begin[axis] = 1, p.pad_end[axis] = between(random, 0, 1);
        p.output[axis] =
            std::max<int64_t>(0, p.input[axis] + p.pad_begin[axis] + p.pad_end[axis] - 3) / stride + 1;
        p.pad_end[axis] = std::max(p.pad_end[axis], 3 - p.input[axis] - p.pad_begin[axis]);
      }
      set_result(p);
    }
  } else if (!one_in(random, 3)) {
    make_channels_last(p, device, random);
    // channels_last takes conv groups of whole K chunks and warpgroups; channels_last_mma takes others, too.
    const bool is_any = p.group == 1 || one_in(random, 3);
    const int64_t channels = is_any ? 16 : 128, filters = is_any ? 16 : 64;
    p.in_channels = round_up(p.in_channels, p.group * channels);
    p.out_channels = round_up(p.out_channels, p.group * filters);
    // Otherwise few problems have a residual and an activation that only clamps.
    if (one_in(random, 3)) p.epilogue.has_residual = true;
    if (p.epilogue.has_residual && !one_in(random, 4)) p.epilogue.activation = Activation::relu;
  } else {
    const auto layout = [&] { return one_in(random, 2) ? Layout::nhwc : Layout::nchw; };
    p.layouts = {layout(), layout(), layout()};
  }
  make_quantised(p, random);
  if (p.spatial_rank < 3 && one_in(random, 4)) {
    do p.epilogue.pool = draw_epilogue(random).pool;
    while (p.epilogue.pool.kind == PoolKind::none);
    set_result(p);
  }
  if (!one_in(random, 4)) return;
  // Borders where one output lacks taps on both sides.
  for (int axis = 1; axis < 3; ++axis) {
    p.pad_begin[axis] = p.pad_end[axis] = (p.filter[axis] - 1) * p.dilation[axis];
    p.output[axis] = (p.input[axis] + p.pad_begin[axis] - 1) / p.stride[axis] + 1;
  }
  p.epilogue.pool = {};
  p.result = p.output;
}

void make_joined_pixels(ConvProblem& p, Device& device, Random& random) {
  make_pointwise(p, device, random);
  p.layouts = {Layout::nhwc, Layout::nhwc, Layout::nhwc};
  const int64_t pixels = one_in(random, 2) ? 2 : 4;
  p.group = 1;
  p.batch *= pixels;
  p.in_channels = 16 / pixels * between(random, 1, 20), p.out_channels = 16 / pixels * between(random, 1, 20);
  p.stride = {1, 1, 1};
  p.result = p.output = p.input;
}

// First seed of problems of codes that channels_last computes by way of another convolution.
constexpr int kFirstDerivedSeed = 14'000'000;
void make_derived(ConvProblem& p, Device& device, Random& random) {
  if (one_in(random, 2)) {
    make_joined_pixels(p, device, random);
  } else {
    // Windows.
    p.group = 1;
    p.out_channels = one_in(random, 2) ? 4 * between(random, 1, 16) : 16 * between(random, 1, 9);
    p.layouts = {one_in(random, 2) ? Layout::nhwc : Layout::nchw, Layout::nhwc, Layout::nhwc};
    p.epilogue.pool = {};
    if (one_in(random, 4)) {
      p.spatial_rank = 1;
      p.input[1] = p.filter[1] = p.output[1] = p.stride[1] = p.dilation[1] = 1;
      p.pad_begin[1] = p.pad_end[1] = 0;
    }
    p.result = p.output;
  }
  device.shared_memory_per_block = 227 * 1024;
  device.shared_memory_per_multiprocessor = 228 * 1024;
  if (one_in(random, 3)) device.multiprocessors = 132;
  make_quantised(p, random);
}

// Normal numbers times 2^n, with n drawn from -binades to binades.
template <typename Element>
std::vector<Element> draw_values(Random& random, int64_t count, int binades) {
  std::normal_distribution<float> normal;
  std::vector<Element> values(count);
  for (Element& value : values) {
    value = static_cast<Element>(
        std::ldexp(normal(random), static_cast<int>(between(random, -binades, binades))));
  }
  return values;
}

// The exact value.
template <typename Element>
double number(Element value) {
  if constexpr (std::is_same_v<Element, double>) return value;
  return static_cast<float>(value);
}

// The exact values, converted once: conversions for each product would take longer than the products.
template <typename Element>
std::vector<double> numbers(const Element* values, int64_t count) {
  std::vector<double> exact(count);
  std::transform(values, values + count, exact.begin(), number<Element>);
  return exact;
}

// The expected value of an output. `slack`: the error allowed for rounded intermediate values.
struct Expected {
  double sum = 0, magnitude = 0, slack = 0;
  int terms = 0;
};

// Locals and no calls in the loops, because functions without EMULATION_HOT are not inlined here.
EMULATION_HOT Expected expected_of(const ConvProblem& p, const double* x, const double* w, const double* b,
                                   int64_t n, int64_t k, const Axes& at) {
  double sum = b == nullptr ? 0 : b[k], magnitude = std::fabs(sum);
  int terms = 0;
  const int64_t channels = p.channels_per_group(), filter_size = p.filter_size(), image_size = p.input_size();
  const auto [depths, rows, taps] = p.filter;
  const auto [depth, height, width] = p.input;
  const auto [depth_step, row_step, step] = p.dilation;
  const int64_t first_depth = at[0] * p.stride[0] - p.pad_begin[0];
  const int64_t first_row = at[1] * p.stride[1] - p.pad_begin[1];
  const int64_t first = at[2] * p.stride[2] - p.pad_begin[2];
  const double* image = x + (n * p.in_channels + k / p.filters_per_group() * channels) * image_size;
  const double* weight = w + k * channels * filter_size;
  for (int64_t c = 0; c < channels; ++c, image += image_size) {
    for (int64_t t = 0, d = first_depth; t < depths; ++t, d += depth_step) {
      for (int64_t r = 0, h = first_row; r < rows; ++r, h += row_step, weight += taps) {
        if (d < 0 || d >= depth || h < 0 || h >= height) continue;
        const double* const row = image + (d * height + h) * width;
        for (int64_t s = 0, v = first; s < taps; ++s, v += step) {
          if (v < 0 || v >= width) continue;
          const double product = row[v] * weight[s];
          sum += product;
          magnitude += std::fabs(product);
          ++terms;
        }
      }
    }
  }
  return {.sum = sum, .magnitude = magnitude, .terms = terms};
}

// The epilogue's result, given the convolution's results as `sum_at(row, column)`.
template <typename SumAt>
Expected expected_after_epilogue(const ConvProblem& p, int64_t row, int64_t column, SumAt sum_at) {
  const Epilogue& epilogue = p.epilogue;
  Expected worst;
  const auto value_at = [&](int64_t r, int64_t c) {
    const Expected convolution = sum_at(r, c);
    const double slope = is_swish(epilogue) ? kMaxSlope : 1;
    worst.magnitude = std::max(worst.magnitude, slope * convolution.magnitude),
    worst.terms = convolution.terms + 4;
    worst.slack = std::max(worst.slack, slope * convolution.slack);
    return activate<double>(epilogue.activation, epilogue.alpha, epilogue.beta, convolution.sum);
  };
  worst.sum = epilogue.pool.kind == PoolKind::none
                  ? value_at(row, column)
                  : pooled<double>(epilogue.pool.kind, PoolWindow(epilogue.pool, 0, row, p.output[1]),
                                   PoolWindow(epilogue.pool, 1, column, p.output[2]), value_at);
  return worst;
}

// True within the error bound of rounded operands, truncated accumulators and a rounded result.
template <typename Element>
bool is_within_bound(double y, const Expected& expected, Precision precision) {
  if (std::isnan(expected.sum)) return std::isnan(y);
  const double largest = std::is_same_v<Element, Float16> ? 65'504.0 : std::numeric_limits<float>::max();
  if (std::isinf(expected.sum)) return y == expected.sum;
  if (expected.magnitude > 0.9 * largest) return std::isinf(y) || !std::isnan(y);
  if constexpr (std::is_same_v<Element, double>) {
    return std::abs(y - expected.sum) <= (expected.terms + 3) * 0x1p-52 * expected.magnitude;
  }
  constexpr bool kIsFloat32 = std::is_same_v<Element, float>;
  const double operand = kIsFloat32 && precision == Precision::tf32 ? 0x1p-11 : 0.0;
  const double result = kIsFloat32 ? 0x1p-24 : std::is_same_v<Element, Float16> ? 0x1p-11 : 0x1p-8;
  // Subnormal steps of float32 accumulators and of the element type.
  const double smallest = 0x1p-149 * expected.terms + (kIsFloat32                         ? 0.0
                                                       : std::is_same_v<Element, Float16> ? 0x1p-24
                                                                                          : 0x1p-133);
  const double bound = 1.01 * ((2 * operand + (expected.terms + 3) * 0x1p-22) * expected.magnitude +
                               result * std::abs(expected.sum)) +
                       smallest + expected.slack;
  return std::abs(y - expected.sum) <= bound;
}

// Ranges of the drawn values. x, w: values sometimes span that many binades in both directions. channels:
// binades between channels of the input, and inversely of the weights, so that all products count. rows:
// binades between rows of the input, so that some outputs have small operands only. zeros: the number of zero
// channels at the start of every 32 input channels.
struct Spread {
  int x = 60, w = 40;
  int channels = 0, rows = 0;
  int zeros = 0;
};

template <typename Element>
void scale_channels_and_rows(const ConvProblem& p, const Spread& spread, Random& random, Element* x,
                             std::vector<Element>& w) {
  const auto scale = [](Element& value, int64_t binades) {
    value = static_cast<Element>(std::ldexp(static_cast<float>(value), static_cast<int>(binades)));
  };
  std::vector<int64_t> channel_binades(p.channels_per_group());
  for (int64_t& binades : channel_binades) binades = between(random, -spread.channels, spread.channels);
  for (int64_t i = 0; i < p.batch * p.in_channels * p.input_size(); ++i) {
    const int64_t channel = i / p.input_size() % p.channels_per_group();
    const int64_t row = i / p.input[2] % p.input[1];
    scale(x[i], channel_binades[channel] - spread.rows * row / p.input[1]);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(w.size()); ++i) {
    scale(w[i], -channel_binades[i / p.filter_size() % p.channels_per_group()]);
  }
}

// Results of the depthwise convolution in front, and the error allowed for each by its float32 accumulators
// and by rounding to the element type.
template <typename Element>
struct DepthwiseResults {
  std::vector<Element> values;
  std::vector<double> slack;

  DepthwiseResults(const ConvProblem& p, const double* x, const double* d, const double* b) {
    constexpr double kRounding = std::is_same_v<Element, float>     ? 0x1p-22
                                 : std::is_same_v<Element, Float16> ? 0x1p-10
                                                                    : 0x1p-7;
    for (int64_t i = 0; i < p.result_elements(); ++i) {
      const int64_t column = i % p.output[2], row = i / p.output[2] % p.output[1];
      const int64_t k = i / p.output_size() % p.out_channels, n = i / p.output_size() / p.out_channels;
      const Expected expected = expected_after_epilogue(
          p, row, column, [&](int64_t r, int64_t c) { return expected_of(p, x, d, b, n, k, {0, r, c}); });
      values.push_back(static_cast<Element>(static_cast<float>(expected.sum)));
      slack.push_back(expected.terms * 0x1p-23 * expected.magnitude + kRounding * std::abs(expected.sum) +
                      0x1p-24);
    }
  }
};

// Tensor (N, C, S) as (N, S, C), at an address that TMA can take.
template <typename Element>
std::vector<Element> channels_last(const Element* from, int64_t n, int64_t channels, int64_t size) {
  std::vector<Element> to(n * channels * size);
  for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
    const int64_t channel = i / size % channels;
    to[(i / size / channels * size + i % size) * channels + channel] = from[i];
  }
  return to;
}

// `prints_plan`: prints the plan's description.
template <typename Element>
bool check(const Offer& offer, const ConvProblem& p, Random& random, Values values, bool prints_plan = false,
           Spread spread = {}) {
  // Wide ranges do not fit into float16.
  const bool has_any = values == Values::any, is_wide = has_any && !std::is_same_v<Element, Float16>;
  const ConvProblem& first = p.depthwise.empty() ? p : p.depthwise.front();
  const int64_t x_count = p.batch * p.in_channels * first.input_size();
  const int64_t w_count = p.out_channels * p.channels_per_group() * p.filter_size();
  const int64_t y_count = p.result_elements();
  // Sometimes starts some elements after a 16-byte boundary.
  const bool reads_nhwc = p.layouts.input == Layout::nhwc;
  const int64_t shift = one_in(random, 3) && !reads_nhwc ? between(random, 1, 7) : 0;
  const int64_t y_shift = one_in(random, 3) && !reads_nhwc ? between(random, 1, 7) : 0;
  std::vector<Element> x =
      draw_values<Element>(random, x_count + shift, is_wide && one_in(random, 4) ? spread.x : 0);
  std::vector<Element> w = draw_values<Element>(random, w_count, is_wide && one_in(random, 4) ? spread.w : 0);
  if (is_wide && (spread.channels > 0 || spread.rows > 0)) {
    scale_channels_and_rows(p, spread, random, x.data() + shift, w);
  }
  for (int64_t i = 0; i < x_count; ++i) {
    if (i / first.input_size() % p.channels_per_group() % 32 < spread.zeros) {
      x[shift + i] = static_cast<Element>(0.0f);
    }
  }
  const std::vector<Element> b = draw_values<Element>(random, p.out_channels, 0);
  const std::vector<Element> z = draw_values<Element>(random, p.output_elements(), 0);
  if (has_any && one_in(random, 8)) {
    for (const float special : {INFINITY, -INFINITY, NAN}) {
      x[between(random, shift, x_count + shift - 1)] = static_cast<Element>(special);
    }
  }
  // With padding, an infinite weight would meet zeros, which `reference` skips and `tiled` multiplies.
  const auto is_zero = [](int64_t padding) { return padding == 0; };
  const bool is_padded =
      !std::ranges::all_of(p.pad_begin, is_zero) || !std::ranges::all_of(p.pad_end, is_zero);
  if (has_any && !is_padded && one_in(random, 4)) {
    for (const float special : {INFINITY, -INFINITY, NAN}) {
      if (one_in(random, 2)) w[between(random, 0, w_count - 1)] = static_cast<Element>(special);
    }
  }
  // Elements around the input must not count, not even times zero: 32 channels on both sides are NaN.
  const int64_t guard_x = 32 * first.input_size() + 16;
  x.insert(x.begin() + shift, guard_x, static_cast<Element>(NAN));
  x.insert(x.end(), guard_x, static_cast<Element>(NAN));
  const Element* const x_begin = x.data() + shift + guard_x;
  constexpr int64_t kGuard = 16;
  std::vector<Element> y(kGuard + y_shift + y_count + kGuard, static_cast<Element>(NAN));
  const Element* const bias = p.has_bias ? b.data() : nullptr;
  Element* const y_begin = y.data() + kGuard + y_shift;
  const std::vector<Element> d =
      draw_values<Element>(random, p.depthwise.empty() ? 0 : p.in_channels * first.filter_size(), 0);
  const std::vector<Element> db = draw_values<Element>(random, p.depthwise.empty() ? 0 : p.in_channels, 0);
  const Element* const d_bias = first.has_bias && !p.depthwise.empty() ? db.data() : nullptr;
  std::vector<double> exact_x = numbers(x_begin, x_count);
  const std::vector<double> exact_w = numbers(w.data(), w_count), exact_b = numbers(b.data(), p.out_channels);
  const double* const exact_bias = p.has_bias ? exact_b.data() : nullptr;
  std::optional<DepthwiseResults<Element>> depthwise_results;
  if (!p.depthwise.empty()) {
    const std::vector<double> exact_d = numbers(d.data(), d.size()), exact_db = numbers(db.data(), db.size());
    depthwise_results.emplace(first, exact_x.data(), exact_d.data(), d_bias ? exact_db.data() : nullptr);
    exact_x = numbers(depthwise_results->values.data(), depthwise_results->values.size());
  }

  const std::unique_ptr<Plan> plan = offer.make();
  if (prints_plan) std::printf("%s\n", plan->describe().c_str());
  const Element* const residual = p.epilogue.has_residual ? z.data() : nullptr;
  if (p.layouts.output == Layout::nhwc) {
    auto x_last = channels_last(x_begin, p.batch, p.in_channels, p.input_size());
    auto z_last = channels_last(z.data(), p.batch, p.out_channels, p.output_size());
    auto y_last = channels_last(y_begin, p.batch, p.out_channels, p.result_size());
    const int64_t misaligned = reads_nhwc && one_in(random, 8) ? 1 : 0,
                  y_misaligned = one_in(random, 8) ? 1 : 0,
                  z_misaligned = residual != nullptr && one_in(random, 8) ? 1 : 0;
    x_last.insert(x_last.begin(), misaligned, static_cast<Element>(NAN));
    y_last.insert(y_last.begin(), y_misaligned, static_cast<Element>(NAN));
    z_last.insert(z_last.begin(), z_misaligned, static_cast<Element>(NAN));
    run_plan(*plan,
             {reads_nhwc ? x_last.data() + misaligned : x_begin, w.data(), bias, y_last.data() + y_misaligned,
              residual == nullptr ? nullptr : z_last.data() + z_misaligned},
             random);
    std::ranges::copy(channels_last(y_last.data() + y_misaligned, p.batch, p.result_size(), p.out_channels),
                      y_begin);
  } else {
    run_plan(*plan, {x_begin, w.data(), bias, y_begin, residual, d.data(), d_bias}, random);
  }

  int64_t wrong = 0;
  for (int64_t i = 0; i < y_count; ++i) {
    const int64_t column = i % p.result[2];
    const int64_t row = i / p.result[2] % p.result[1];
    const int64_t depth = i / p.result[2] / p.result[1] % p.result[0];
    const int64_t k = i / p.result_size() % p.out_channels;
    const int64_t n = i / p.result_size() / p.out_channels;
    const Expected expected = expected_after_epilogue(p, row, column, [&](int64_t r, int64_t c) {
      Expected convolution = expected_of(p, exact_x.data(), exact_w.data(), exact_bias, n, k, {depth, r, c});
      for (int64_t channel = 0; depthwise_results && channel < p.in_channels; ++channel) {
        const int64_t at = ((n * p.in_channels + channel) * p.input[1] + r) * p.input[2] + c;
        convolution.slack += depthwise_results->slack[at] * std::abs(exact_w[k * p.in_channels + channel]);
      }
      if (p.epilogue.has_residual) {
        const double residual =
            number(z[(((n * p.out_channels + k) * p.output[0] + depth) * p.output[1] + r) * p.output[2] + c]);
        convolution.sum += residual, convolution.magnitude += std::abs(residual);
      }
      return convolution;
    });
    const double actual = number(y_begin[i]);
    if (is_within_bound<Element>(actual, expected, p.precision)) continue;
    if (wrong++ < 3) {
      std::printf("image %ld filter %ld depth %ld row %ld column %ld: %g, expected %g\n", n, k, depth, row,
                  column, actual, expected.sum);
    }
  }
  for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
    const bool is_guard = i < kGuard + y_shift || i >= kGuard + y_shift + y_count;
    if (is_guard && !std::isnan(static_cast<float>(y[i]))) ++wrong, std::printf("a write outside y\n");
  }
  if (wrong > 0) std::printf("%ld of %ld outputs are wrong; %s\n", wrong, y_count, plan->describe().c_str());
  return wrong == 0;
}

// Makes the problem one whose kernels are compiled into this program, by changing its element type and
// precision; false if that is impossible.
bool choose_compiled_format(ConvProblem& problem, const Algorithm& algorithm, const Device& device) {
  const std::string kernel = std::string(algorithm.name()) + "::kernel<";
  const auto is_compiled = [&] {
    const Offer offer = offer_of(algorithm, problem, device);
    if (!offer.is_refusal()) return std::ranges::all_of(offer.kernels(), has_kernels_of);
    return has_kernels_of(kernel + std::string(tensor_core_format(problem)) + ",") ||
           has_kernels_of(kernel + std::string(element_name(problem.type)));
  };
  if (is_compiled()) return true;
  if (problem.is_quantised()) {
    problem.type = problem.type == ElementType::int8 ? ElementType::uint8 : ElementType::int8;
    // Zero points of both types are from 0 to 127.
    Quantization& codes = *problem.quantization;
    for (int* zero_point : {&codes.x_zero_point, &codes.residual_zero_point, &codes.sum_zero_point}) {
      *zero_point = std::clamp(*zero_point, 0, 127);
    }
    return is_compiled();
  }
  for (const Precision precision : {Precision::tf32, Precision::ieee}) {
    for (const ElementType type : {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
      problem.type = type, problem.precision = precision;
      if (is_compiled()) return true;
    }
  }
  return false;
}

// The algorithm's offer for a problem, or the offers for all of its tilings; empty if it refuses the problem.
std::vector<Offer> offers_of(const Algorithm& algorithm, const ConvProblem& problem, const Device& device,
                             bool every_tiling) {
  // A separate epilogue kernel is the same for every tiling, so one tiling is enough.
  if (every_tiling && algorithm.fuses(problem)) return algorithm.alternatives(problem, device, 64);
  std::vector<Offer> offers;
  offers.push_back(offer_of(algorithm, problem, device));
  if (offers.front().is_refusal()) offers.clear();
  return offers;
}

// The offer of one of an algorithm's first tilings.
std::vector<Offer> drawn_offer_of(const Algorithm& algorithm, const ConvProblem& problem,
                                  const Device& device, int seed) {
  const std::vector<Offer> offers = offers_of(algorithm, problem, device, true);
  return offers.empty() ? offers : std::vector{offers[seed % std::min<std::size_t>(8, offers.size())]};
}

// The program's task for each problem.
enum class Task { compute, compute_by_every_tiling, plan };

// True if the problem of a seed is computed correctly or refused. `computed` counts the problems that the
// algorithm takes.
bool check_seed(const Algorithm& algorithm, int seed, Task task, bool prints_plan, int& computed) {
  Random random(seed);
  ConvProblem problem = draw_problem(random);
  Device device = draw_device(random);
  if (seed % 8 == 3) pad_left(problem, device, random);
  Spread spread;
  if (seed >= kFirstDerivedSeed) {
    make_derived(problem, device, random);
  } else if (seed >= kFirstQuantisedSeed) {
    make_codes(problem, device, random);
  } else if (seed >= kFirstChannelsLastMmaSeed) {
    make_channels_last_mma(problem, device, random);
  } else if (seed >= kFirstNhwcOutputSeed) {
    make_nhwc_output(problem, random);
  } else if (seed >= kFirstDepthwiseSeed) {
    (seed >= kFirstChannelsLastDepthwiseSeed ? make_channels_last_depthwise
     : seed >= kFirstChannelsLastSeed        ? make_channels_last
     : seed >= kFirstSeparableSeed           ? make_separable
     : seed >= kFirstSlidingSeed             ? make_sliding
                                             : make_depthwise)(problem, device, random);
  } else if (seed >= kFirstPooledSeed) {
    make_pooled(problem, random);
  } else if (seed >= kFirstManyChannelsSeed) {
    (seed >= kFirstPointwiseSeed ? make_pointwise
     : seed >= kFirstWideSeed    ? make_wide
                                 : make_many_channels)(problem, device, random);
    spread = seed % 2 == 0 ? Spread{5 * (seed % 7), 7 * (seed % 3)} : Spread{0, 0, seed % 14, seed % 60};
    spread.zeros = seed % 5 == 1 ? 16 * (seed / 5 % 3) : 0;
    // TF32 keeps fewer bits below 2^-126.
    if (seed >= kFirstPointwiseSeed) spread.rows = std::min(spread.rows, 20);
  } else if (seed >= kFirstMultiImageSeed) {
    make_multi_image(problem, device, random);
  }
  // many_channels multiplies by mma.sync instead of wgmma on cards other than those of 9.0.
  if (algorithm.name() == "many_channels" && seed / 2 % 2 == 1) device.compute_capability = 80;
  if (algorithm.name() == "channels_last_mma" && problem.is_quantised() && seed / 2 % 2 == 1) make_75(device);
  emulation::initial_shared = seed % 2 == 0 ? emulation::kNanWord : emulation::kNumberWord;
  emulation::slow_warpgroup = seed % 4 - 1;
  emulation::slow_rank = seed / 4 % 3 - 1;
  emulation::slow_warp_pair = seed % 7 - 1;
  if (!choose_compiled_format(problem, algorithm, device)) return true;
  for (ConvProblem& before : problem.depthwise)
    before.type = problem.type, before.precision = problem.precision;
  // The small problems of depthwise codes would all be planned alike.
  const bool every_tiling = task == Task::compute_by_every_tiling ||
                            (task == Task::compute && problem.is_quantised() && problem.is_depthwise());
  // Estimates choose few tilings that split K.
  const bool draws_tiling = algorithm.name() == "channels_last" && device.multiprocessors == 132;
  const std::vector<Offer> offers = draws_tiling && !every_tiling
                                        ? drawn_offer_of(algorithm, problem, device, seed / 4)
                                        : offers_of(algorithm, problem, device, every_tiling);
  if (task == Task::plan) {
    for (const Offer& offer : offers) {
      std::printf("%d: %s; %s\n", seed, problem.text().c_str(), offer.make()->describe().c_str());
    }
    return true;
  }
  if (!offers.empty()) ++computed;
  if (problem.is_quantised()) {
    return std::ranges::all_of(offers, [&](const Offer& offer) {
      Random offer_random = random;
      return check_quantised(offer, problem, offer_random, prints_plan);
    });
  }
  return with_floating_type(problem.type, [&]<typename Element>() {
    return std::ranges::all_of(offers, [&](const Offer& offer) {
      Random offer_random = random;
      return check<Element>(offer, problem, offer_random, Values::any, prints_plan, spread);
    });
  });
}

}  // namespace

void run_plan(const Plan& plan, const ConvTensors& tensors, Random& random) {
  const PreparedForm form = plan.prepared_form();
  const bool is_prepared = form.bytes > 0 && one_in(random, 2);
  const std::size_t scratch_bytes = is_prepared ? plan.scratch_bytes() : scratch_bytes_with_weights(plan);
  constexpr std::size_t kGuard = 64;
  std::vector<float> scratch(scratch_bytes / sizeof(float) + kGuard, NAN);
  std::vector<float> prepared(form.bytes / sizeof(float) + kGuard, NAN);
  Execution execution{.scratch = scratch.data(), .weights_are_constant = is_prepared};
  if (is_prepared) {
    plan.prepare(tensors.w, prepared.data(), nullptr);
    execution.prepared_weights = prepared.data();
    plan.run(tensors, execution);
  } else {
    prepare_and_run(plan, tensors, execution);
  }
  const auto guard = std::span(scratch).subspan((scratch_bytes + sizeof(float) - 1) / sizeof(float));
  if (!std::ranges::all_of(guard, [](float word) { return std::isnan(word); })) {
    throw std::logic_error("a write behind scratch memory");
  }
}

bool computes_float32(const Offer& offer, const ConvProblem& problem, Random& random, Values values) {
  return check<float>(offer, problem, random, values);
}

int check_seeds(const Algorithm& algorithm, int count, char** arguments) {
  const std::string_view task_name = count == 4 ? arguments[3] : "";
  const Task task = task_name == "every-tiling" ? Task::compute_by_every_tiling
                    : task_name == "plans"      ? Task::plan
                                                : Task::compute;
  if (count != 3 && task == Task::compute) {
    std::printf("usage: %s FIRST END [every-tiling|plans]\n", arguments[0]);
    return 2;
  }
  const int first = std::atoi(arguments[1]), end = std::atoi(arguments[2]);
  int computed = 0, wrong = 0;
  for (int seed = first; seed < end; ++seed) {
    if (check_seed(algorithm, seed, task, end == first + 1, computed)) continue;
    std::printf("seed %d\n", seed);
    ++wrong;
  }
  if (task != Task::plan) std::printf("%d problems computed, %d wrong\n", computed, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace convswap
