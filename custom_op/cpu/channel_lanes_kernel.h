#pragma once

#include "cpu/activation_lanes.h"
#include "cpu/lanes.h"

// Like position_lanes_kernel.h, this header is compiled once per instruction set.

namespace convswap {

// A transposition between planes of channels and an array with one vector of channels per pixel.
struct ChannelPlanes {
  int64_t channels, pixels;  // at most as many channels as a vector has lanes
  int64_t plane;             // distance of two channels' planes
  const int64_t* offsets;    // of each pixel's vector; null: consecutive
};

// The outputs of one vector of channels.
struct ChannelOutputs {
  const float* image;
  int64_t outputs;         // at least kOutputsPerPass
  const int64_t* offsets;  // of each output's first tap in the image
  int64_t taps;
  const int64_t* tap_offsets;  // relative to the first tap
  const float* weights;        // a vector per tap
  const float* bias;           // a vector
  bool clips;                  // clamps results to [lower, upper]
  float lower, upper;          // lower <= upper
  float* results;              // a vector per output
};

constexpr int kOutputsPerPass = 8;

struct ChannelLanesKernels {
  int lanes;
  void (*to_lanes)(const ChannelPlanes&, const float* planes, float* vectors);
  void (*to_planes)(const ChannelPlanes&, const float* vectors, float* planes);
  void (*compute)(const ChannelOutputs&);
  ActivationKernels activations;
};

const ChannelLanesKernels& channel_lanes_kernels_avx512();
const ChannelLanesKernels& channel_lanes_kernels_avx2();
const ChannelLanesKernels& channel_lanes_kernels_baseline();

namespace {

// Transposes a square matrix in registers. For kSize = 1, 2, 4, ... it swaps the off-diagonal blocks of kSize
// in each square of four: Eklundh, "A Fast Computer Method for Matrix Transposing" (1972).
template <int kLanes, int kSize = 1>
__attribute__((always_inline)) inline void transpose(typename Lanes<kLanes>::Vector (&rows)[kLanes]) {
  if constexpr (kSize < kLanes) {
    typedef Lanes<kLanes> L;
    typename L::Indices upper, lower;
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_first = (lane & kSize) == 0;
      upper[lane] = is_first ? lane : kLanes + lane - kSize;
      lower[lane] = is_first ? lane + kSize : kLanes + lane;
    }
#pragma GCC unroll 16
    for (int row = 0; row < kLanes; ++row) {
      if ((row & kSize) != 0) continue;
      const typename L::Vector above = rows[row], below = rows[row + kSize];
      rows[row] = __builtin_shuffle(above, below, upper);
      rows[row + kSize] = __builtin_shuffle(above, below, lower);
    }
    transpose<kLanes, 2 * kSize>(rows);
  }
}

// Calls call(first pixel, pixels) for squares of kLanes pixels. The last square is moved back to end with the
// plane; a plane of fewer pixels is one smaller square.
template <int kLanes, typename Call>
__attribute__((always_inline)) inline void for_each_square(int64_t pixels, Call call) {
  const int64_t last = pixels < kLanes ? 0 : pixels - kLanes;
  const int count = pixels < kLanes ? static_cast<int>(pixels) : kLanes;
  for (int64_t i = 0; i < pixels; i += kLanes) call(i < last ? i : last, count);
}

template <int kLanes>
void to_lanes(const ChannelPlanes& args, const float* planes, float* vectors) {
  typedef Lanes<kLanes> L;
  for_each_square<kLanes>(args.pixels, [&](int64_t first, int pixels) {
    typename L::Vector square[kLanes];
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* const from = planes + lane * args.plane + first;
      square[lane] = lane >= args.channels ? typename L::Vector{}
                     : pixels == kLanes    ? L::load(from)
                                           : LaneMask<kLanes>(0, pixels).load(from);
    }
    transpose<kLanes>(square);
#pragma GCC unroll 16
    for (int pixel = 0; pixel < kLanes; ++pixel) {
      if (pixel >= pixels) break;
      const int64_t offset = args.offsets == nullptr ? (first + pixel) * kLanes : args.offsets[first + pixel];
      L::store(vectors + offset, square[pixel]);
    }
  });
}

template <int kLanes>
void to_planes(const ChannelPlanes& args, const float* vectors, float* planes) {
  typedef Lanes<kLanes> L;
  for_each_square<kLanes>(args.pixels, [&](int64_t first, int pixels) {
    typename L::Vector square[kLanes];
#pragma GCC unroll 16
    for (int pixel = 0; pixel < kLanes; ++pixel) {
      square[pixel] = pixel < pixels ? L::load(vectors + (first + pixel) * kLanes) : typename L::Vector{};
    }
    transpose<kLanes>(square);
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lane >= args.channels) break;
      float* const to = planes + lane * args.plane + first;
      if (pixels == kLanes) {
        L::store(to, square[lane]);
      } else {
        LaneMask<kLanes>(0, pixels).store(to, square[lane]);
      }
    }
  });
}

// Computes all outputs. Each tap's weights are loaded once for kOutputsPerPass outputs.
template <int kLanes>
void compute_channels(const ChannelOutputs& args) {
  typedef Lanes<kLanes> L;
  const auto bias = L::load(args.bias);
  for (int64_t i = 0; i < args.outputs; i += kOutputsPerPass) {
    // The last pass is moved back to end with the last output.
    const int64_t first = i + kOutputsPerPass <= args.outputs ? i : args.outputs - kOutputsPerPass;
    const float* sources[kOutputsPerPass];
    typename L::Vector accumulators[kOutputsPerPass];
#pragma GCC unroll 8
    for (int j = 0; j < kOutputsPerPass; ++j) {
      sources[j] = args.image + args.offsets[first + j];
      accumulators[j] = bias;
    }
    for (int64_t tap = 0; tap < args.taps; ++tap) {
      const auto weights = L::load(args.weights + tap * kLanes);
      const int64_t offset = args.tap_offsets[tap];
#pragma GCC unroll 8
      for (int j = 0; j < kOutputsPerPass; ++j) accumulators[j] += L::load(sources[j] + offset) * weights;
    }
#pragma GCC unroll 8
    for (int j = 0; j < kOutputsPerPass; ++j) {
      if (args.clips) accumulators[j] = clipped<kLanes>(accumulators[j], args.lower, args.upper);
      L::store(args.results + (first + j) * kLanes, accumulators[j]);
    }
  }
}

template <int kLanes>
constexpr ChannelLanesKernels channel_lanes_kernels_for() {
  return {kLanes, to_lanes<kLanes>, to_planes<kLanes>, compute_channels<kLanes>,
          activation_kernels_for<kLanes>()};
}

}  // namespace
}  // namespace convswap
