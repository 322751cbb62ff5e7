#pragma once

// Constants that the plan and the kernels of channels_last_depthwise share, and the kernels' arguments.
// channels_last_depthwise.cc describes the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::channels_last_depthwise {

constexpr int kMaxThreads = 256, kPrepareThreads = 256;
constexpr int kVectorBytes = 16;

template <typename T>
struct Arguments : Tensors<T> {
  T* prepared_weights;  // (taps, weight_pitch)
  int weight_pitch;     // filters, rounded up to whole vectors
  int taps;             // of a filter, along all axes
  EpilogueParams epilogue;

  int rows;  // of y, of all images and depths
  FastDivisor output_depth, output_height;
  int output_width, filters;
  FastDivisor filters_per_channel;
  int input_depth, input_height, input_width, channels;
  int filter_depth, filter_height, filter_width;
  int stride_depth, stride_height, stride_width;
  int dilation_depth, dilation_height, dilation_width;
  int pad_depth, pad_height, pad_width;

  // A block's tile: vectors of channels, strips of a row, and bands of rows, which a block computes one after
  // the other. A vector is one element in kernels without vectors.
  FastDivisor vectors_per_tile, strips_per_tile;
  int band_rows, bands;                   // rows of a band, bands of a tile
  FastDivisor vector_tiles, strip_tiles;  // tiles along the vectors of a position, and along a row
};

}  // namespace convswap::channels_last_depthwise
