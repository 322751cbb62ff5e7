#pragma once

#include "cpu/activation_lanes.h"
#include "cpu/lanes.h"

// As position_lanes_kernel.h, this header is compiled once per instruction set.

namespace convswap {

// Planes of so many channels, at most as many as a vector has lanes, and the same with the channels of a
// pixel in the lanes of one vector.
struct ChannelPlanes {
  int64_t channels, pixels;
  int64_t plane;          // from a channel to the next
  const int64_t* places;  // of each pixel's vector; null: they follow each other
};

// Outputs of all channels of a vector.
struct ChannelOutputs {
  const float* image;
  int64_t outputs;        // at least as many as are computed at once
  const int64_t* places;  // where the first tap of each reads
  int64_t taps;
  const int64_t* tap_offsets;  // where each tap reads, from the first
  const float* weights;        // a vector of each tap
  const float* bias;           // a vector
  bool clips;                  // what is stored, to [least, most]
  float least, most;           // least <= most
  float* results;              // a vector of each output
};

constexpr int kOutputsAtOnce = 8;

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

// Swaps the blocks off the diagonal of each square of blocks of kSize, for kSize = 1, 2, 4, ...: Eklundh,
// "A Fast Computer Method for Matrix Transposing" (1972).
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

// Calls back with the first of as many pixels as a vector has lanes, the last so far back that they end with
// the plane, and with how many there are where it has fewer.
template <int kLanes, typename Call>
__attribute__((always_inline)) inline void for_each_square(int64_t pixels, Call call) {
  const int64_t last = pixels < kLanes ? 0 : pixels - kLanes;
  const int count = pixels < kLanes ? static_cast<int>(pixels) : kLanes;
  for (int64_t i = 0; i < pixels; i += kLanes) call(i < last ? i : last, count);
}

template <int kLanes>
void to_lanes(const ChannelPlanes& what, const float* planes, float* vectors) {
  typedef Lanes<kLanes> L;
  for_each_square<kLanes>(what.pixels, [&](int64_t first, int pixels) {
    typename L::Vector square[kLanes];
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* const from = planes + lane * what.plane + first;
      square[lane] = lane >= what.channels ? typename L::Vector{}
                     : pixels == kLanes    ? L::load(from)
                                           : Part<kLanes>(0, pixels).load(from);
    }
    transpose<kLanes>(square);
#pragma GCC unroll 16
    for (int pixel = 0; pixel < kLanes; ++pixel) {
      if (pixel >= pixels) break;
      const int64_t place = what.places == nullptr ? (first + pixel) * kLanes : what.places[first + pixel];
      L::store(vectors + place, square[pixel]);
    }
  });
}

template <int kLanes>
void to_planes(const ChannelPlanes& what, const float* vectors, float* planes) {
  typedef Lanes<kLanes> L;
  for_each_square<kLanes>(what.pixels, [&](int64_t first, int pixels) {
    typename L::Vector square[kLanes];
#pragma GCC unroll 16
    for (int pixel = 0; pixel < kLanes; ++pixel) {
      square[pixel] = pixel < pixels ? L::load(vectors + (first + pixel) * kLanes) : typename L::Vector{};
    }
    transpose<kLanes>(square);
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lane >= what.channels) break;
      float* const to = planes + lane * what.plane + first;
      if (pixels == kLanes) {
        L::store(to, square[lane]);
      } else {
        Part<kLanes>(0, pixels).store(to, square[lane]);
      }
    }
  });
}

// Each tap's weights are loaded once for kOutputsAtOnce outputs.
template <int kLanes>
void compute_channels(const ChannelOutputs& what) {
  typedef Lanes<kLanes> L;
  const auto bias = L::load(what.bias);
  for (int64_t i = 0; i < what.outputs; i += kOutputsAtOnce) {
    // The last so far back that they end with the others.
    const int64_t first = i + kOutputsAtOnce <= what.outputs ? i : what.outputs - kOutputsAtOnce;
    const float* sources[kOutputsAtOnce];
    typename L::Vector sums[kOutputsAtOnce];
#pragma GCC unroll 8
    for (int j = 0; j < kOutputsAtOnce; ++j) {
      sources[j] = what.image + what.places[first + j];
      sums[j] = bias;
    }
    for (int64_t tap = 0; tap < what.taps; ++tap) {
      const auto weights = L::load(what.weights + tap * kLanes);
      const int64_t offset = what.tap_offsets[tap];
#pragma GCC unroll 8
      for (int j = 0; j < kOutputsAtOnce; ++j) sums[j] += L::load(sources[j] + offset) * weights;
    }
#pragma GCC unroll 8
    for (int j = 0; j < kOutputsAtOnce; ++j) {
      if (what.clips) sums[j] = clipped<kLanes>(sums[j], what.least, what.most);
      L::store(what.results + (first + j) * kLanes, sums[j]);
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
