#pragma once

// Weights: conversion into wgmma fragments in registers, and into shared memory for the steps that do not fit
// there.

#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::implicit_gemm {

// Copies weights to shared memory unconverted. Called by all threads of the block.
template <typename Element>
__device__ inline void copy_weights(const Element* from, int count, Element* to) {
  constexpr int kWordElements = sizeof(uint4) / sizeof(Element);
  const bool is_aligned = reinterpret_cast<unsigned long long>(from) % sizeof(uint4) == 0;
  const int words = is_aligned ? count / kWordElements : 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
#pragma unroll 8
  for (int i = words * kWordElements + threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

// Filters of a block, to be converted with a binade window. Binade window 0 begins at each filter's uppermost
// binade.
template <typename Format>
struct Weights {
  using Element = typename Format::Element;
  const Element* from;  // filters in global or shared memory
  const int* tops;
  int filters;  // existing filters of the block
  int window;
};

// Conversion of an accumulator row's weights. Four threads share a row; each converts two neighbouring
// numbers of every half step.
template <typename Format>
class RowWeightConverter {
 public:
  using Element = typename Format::Element;

  __device__ RowWeightConverter(const Arguments<Element>& problem, const Weights<Format>& weights)
      : binades_(0), thread_(threadIdx.x - (kThreads - kConsumerThreads)) {
    const RowMapping mapping = problem.row_mapping[thread_ / 4];
    is_row_ = mapping.filter >= 0 && mapping.filter < weights.filters;
    const int filter = is_row_ ? mapping.filter : 0;
    fold_row_ = mapping.fold * problem.stride_height;
    from_ = weights.from + filter * problem.channels * problem.filter_height * problem.filter_width;
    if constexpr (Format::kIsScaled) {
      binades_ = BinadeWindow(weights.tops[filter] - weights.window * kBinades);
    }
  }

  // Converts the weights of some steps to shared memory.
  __device__ void stage(const Arguments<Element>& problem, int part, int first_step, int steps,
                        unsigned* to) const {
#pragma unroll 4
    for (int i = 0; i < 2 * steps; ++i) {
      to[i * kConsumerThreads + thread_] = pair(problem, problem.half_steps[2 * first_step + i], part);
    }
  }

 private:
  __device__ unsigned pair(const Arguments<Element>& problem, HalfStep half, int part) const {
    const int first = thread_ % 4 * 2;
    const bool is_half = 2 * half.channel_block == problem.half_chunk;
    const int pixel = is_half ? first / kChunkChannels : 0;  // index of the pixel in its vector
    // Distance of the input pixel from the fold's first filter tap; a multiple of the dilations at a tap.
    const int row_distance = half.row + (problem.pairs_rows ? pixel : 0) - fold_row_;
    const int column_distance = half.column + (problem.pairs_rows ? 0 : pixel);
    const int r = problem.dilation_height_divisor.quotient(max(0, row_distance));
    const int s = problem.dilation_width_divisor.quotient(column_distance);
    const bool is_tap = is_row_ && half.channel_block >= 0 && r < problem.filter_height &&
                        s < problem.filter_width &&
                        r * static_cast<int>(problem.dilation_height_divisor.divisor) == row_distance &&
                        s * static_cast<int>(problem.dilation_width_divisor.divisor) == column_distance;
    const auto weight_at = [&](int j) -> Element {
      const int channel = half.channel_block * 8 + (is_half ? j % kChunkChannels : j);
      if (!is_tap || channel >= problem.channels) return Format::zero();
      const Element value = from_[(channel * problem.filter_height + r) * problem.filter_width + s];
      if constexpr (Format::kIsScaled) return binades_.holds(value) ? value : 0.0f;
      return value;
    };
    return Format::pair(weight_at(first), weight_at(first + 1), binades_.scale(), part);
  }

  BinadeWindow binades_;
  int thread_;  // index among the consumers, and in each half step of its word
  bool is_row_;
  int fold_row_;
  const Element* from_;  // the filter's weights
};
static_assert(kConsumerThreads == 4 * kWgmmaM);

// wgmma fragments of the weights' first part, in registers.
struct RegisterWeights {
  unsigned fragments[kRegisterSteps][4];

  // Converts by way of kStagedBytes of shared memory at `weight_buffer`.
  template <typename Format, typename Element = typename Format::Element>
  __device__ RegisterWeights(const Arguments<Element>& problem, const RowWeightConverter<Format>& weights,
                             unsigned* weight_buffer) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int first = 0; first < kRegisterSteps; first += kStagedSteps) {
      const int steps = max(0, min(kStagedSteps, problem.register_steps - first));
      named_barrier_sync(kConsumerBarrier, kConsumerThreads);
      weights.stage(problem, 0, first, steps, weight_buffer);
      named_barrier_sync(kConsumerBarrier, kConsumerThreads);
#pragma unroll
      for (int i = 0; i < kStagedSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int word = ((i * 2 + j / 2) * kWgmmaM + row + j % 2 * 8) * 4 + lane % 4;
          fragments[first + i][j] = i < steps ? weight_buffer[word] : 0u;
        }
      }
    }
  }
};

}  // namespace convswap::implicit_gemm
