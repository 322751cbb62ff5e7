#pragma once

// Wgmma operands for each element type: pixels as register fragments (two per thread), filters in shared
// memory.

#include "conv/small_floats.h"
#include "cuda/pointwise/arguments.h"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::pointwise {

// A thread's A fragment of one wgmma: its channels of two pixels.
using Fragment = unsigned[4];

// kLoads: channels per thread and wgmma; channel `load` is channel_of(lane % 4, load).
template <typename Element>
struct WgmmaOperands;

template <>
struct WgmmaOperands<float> {
  using Product = Tf32;
  static constexpr int kLoads = 2;
  static __device__ int channel_of(int quad_lane, int load) { return quad_lane + 4 * load; }

  // One channel of two adjacent pixels, as in memory.
  using Pair = uint2;
  static __device__ Pair pair_at(const float* first, const float* second) {
    return make_uint2(__float_as_uint(*first), __float_as_uint(*second));
  }
  static __device__ void set(Fragment& to, int load, Pair pair) {
    to[2 * load] = pair.x, to[2 * load + 1] = pair.y;
  }

  // Converts loaded words to the fragment's layout and rounding.
  static __device__ void make_fragment(Fragment& words) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = round_weights(words[i]);
  }

  // Word `word` of a filter's channels, zero beyond the `left` channels that remain.
  static __device__ unsigned word_at(const float* from, int left, int word) {
    return left > word ? __float_as_uint(from[word]) : 0u;
  }
  static constexpr bool kRoundsWeights = true;
  static __device__ unsigned round_weights(unsigned word) {
    return __float_as_uint(round_to_tf32(__uint_as_float(word)));
  }

  // Bits of the outputs of two adjacent pixels, and of one pixel.
  static __device__ Pair pair_of(float first, float second) {
    return make_uint2(__float_as_uint(first), __float_as_uint(second));
  }
  static __device__ float2 floats_of(Pair pair) {
    return make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
  }
  static __device__ unsigned bits_of(float result) { return __float_as_uint(result); }
};

// 16-bit types. A fragment word has two channels of one pixel; a word in memory has two pixels of one
// channel.
template <typename Small>
struct WgmmaOperands {
  using Product = Small;
  static constexpr int kLoads = 4;
  static __device__ int channel_of(int quad_lane, int load) {
    return 2 * quad_lane + load % 2 + load / 2 * 8;
  }

  using Pair = unsigned;
  static __device__ Pair pair_at(const Small* first, const Small* second) {
    return first->bits | static_cast<unsigned>(second->bits) << 16;
  }
  static __device__ void set(Fragment& to, int load, Pair pair) { to[load] = pair; }

  static __device__ void make_fragment(Fragment& words) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const unsigned even = words[i], odd = words[i + 1];
      words[i] = (even & 0xffffu) | odd << 16;
      words[i + 1] = even >> 16 | (odd & 0xffff0000u);
    }
  }

  static constexpr bool kRoundsWeights = false;
  static __device__ unsigned word_at(const Small* from, int left, int word) {
    const unsigned lower = left > 2 * word ? from[2 * word].bits : 0u;
    const unsigned upper = left > 2 * word + 1 ? from[2 * word + 1].bits : 0u;
    return lower | upper << 16;
  }

  static __device__ Pair pair_of(float first, float second) { return pack_rounded<Small>(first, second); }
  static __device__ float2 floats_of(Pair pair) {
    return make_float2(unpack_low<Small>(pair), unpack_high<Small>(pair));
  }
  static __device__ unsigned short bits_of(float result) { return Small(result).bits; }
};

// Offsets of a numbered pixel: `input` in an input channel of its image, `output` in an output plane.
struct Pixel {
  unsigned image;
  int input, output;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& problem, unsigned number)
      : image(problem.output_plane.quotient_of_any(number)),
        output(static_cast<int>(number - image * problem.output_plane.divisor)) {
    input = output;
    if (problem.is_dense) return;
    const int depth = problem.output_area.quotient_of_any(output);
    const int in_plane = output - depth * static_cast<int>(problem.output_area.divisor);
    const int row = problem.output_width.quotient_of_any(in_plane);
    const int column = in_plane - row * static_cast<int>(problem.output_width.divisor);
    input = depth * problem.depth_step + row * problem.row_step + column * problem.column_step;
  }
};

// A thread's two pixels of a tile of its warpgroup. They are adjacent if the thread stores both at once,
// else eight apart, so that adjacent lanes store adjacent pixels.
struct ThreadPixels {
  int first, distance;
  int quad_lane;  // lane % 4: selects the channels of a fragment

  __device__ explicit ThreadPixels(bool are_pairs)
      : distance(are_pairs ? 1 : 8), quad_lane(static_cast<int>(threadIdx.x) % 4) {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = warpgroup_thread() / 32 * 16 + (are_pairs ? 2 * row : row);
  }

  __device__ unsigned number(int tile, int i) const {
    return static_cast<unsigned>(tile * kTilePixels + first + distance * i);
  }
};

// Loads the chunks of a warpgroup's tiles, one after the other, into pipeline stages. `tile_step` is the
// distance to the warpgroup's next tile.
template <typename Element, int kSteps>
class ChunkLoader {
 public:
  __device__ ChunkLoader(const Arguments<Element>& problem, const ThreadPixels& pixels, int group, int tile,
                         int tile_step)
      : problem_(problem), pixels_(pixels), group_(group), tile_(tile), tile_step_(tile_step) {}

  // Does nothing after the last chunk.
  template <typename To>
  __device__ void load_next(const To& to) {
    if (tile_ >= problem_.tiles) return;
    if (chunk_ == 0) find_pixels();
    const int left = problem_.channels - chunk_ * kSteps * kDepth;
    if (problem_.loads_pairs) {
      load<true>(to, left);
    } else {
      load<false>(to, left);
    }
    const long long chunk_offset = kSteps * kDepth * static_cast<long long>(problem_.input_plane);
    from_[0] += chunk_offset, from_[1] += chunk_offset;
    if (++chunk_ == problem_.chunks) chunk_ = 0, tile_ += tile_step_;
  }

 private:
  using Operands = WgmmaOperands<Element>;
  static constexpr int kDepth = kWgmmaDepthBytes / sizeof(Element);

  // Pixels past the last are clamped to the last.
  __device__ void find_pixels() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned last = problem_.pixels - (problem_.stores_pairs ? 2u - i : 1u);
      const Pixel pixel(problem_, min(pixels_.number(tile_, i), last));
      const long long channel = static_cast<long long>(pixel.image) * problem_.in_channels +
                                group_ * problem_.channels + Operands::channel_of(pixels_.quad_lane, 0);
      from_[i] = problem_.x + channel * problem_.input_plane + pixel.input;
    }
  }

  template <bool kArePairs, typename To>
  __device__ void load(const To& to, int left) const {
    const auto load_channel = [&](int step, int load, bool in_bounds) {
      const long long at =
          (step * kDepth + Operands::channel_of(0, load)) * static_cast<long long>(problem_.input_plane);
      if constexpr (kArePairs) {
        to.load_pair(step, load, from_[0] + at, in_bounds);
      } else {
        to.load_each(step, load, from_[0] + at, from_[1] + at, in_bounds);
      }
    };
    if (left >= kSteps * kDepth) [[likely]] {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int load = 0; load < Operands::kLoads; ++load) load_channel(step, load, true);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int load = 0; load < Operands::kLoads; ++load) {
          load_channel(step, load, step * kDepth + Operands::channel_of(pixels_.quad_lane, load) < left);
        }
      }
    }
  }

  const Arguments<Element>& problem_;
  const ThreadPixels& pixels_;
  int group_, tile_, tile_step_, chunk_ = 0;
  const Element* from_[2];
};

// A thread's fragments of a chunk, one per wgmma.
template <int kSteps>
using Chunk = Fragment[kSteps];

// Pipeline stage in registers.
template <typename Element, int kSteps>
struct RegisterStage {
  using Operands = WgmmaOperands<Element>;
  using Pair = typename Operands::Pair;

  __device__ explicit RegisterStage(Chunk<kSteps>& chunk) : to(chunk) {}
  // Sets zeros if the channel is out of range.
  __device__ void load_pair(int step, int load, const Element* from, bool in_bounds) const {
    Operands::set(to[step], load, in_bounds ? *reinterpret_cast<const Pair*>(from) : Pair{});
  }
  __device__ void load_each(int step, int load, const Element* first, const Element* second,
                            bool in_bounds) const {
    Operands::set(to[step], load, in_bounds ? Operands::pair_at(first, second) : Pair{});
  }

  Chunk<kSteps>& to;
};

// Pipeline stage in shared memory. Each thread reads only the pairs that it copied itself, so no barrier is
// needed.
template <typename Element, int kSteps>
class SmemStage {
 public:
  using Operands = WgmmaOperands<Element>;
  using Pair = typename Operands::Pair;
  static_assert(kSteps * Operands::kLoads * kWarpgroupThreads * sizeof(Pair) == kSteps * kStageStepBytes);

  __device__ explicit SmemStage(unsigned char* stage)
      : pairs_(reinterpret_cast<Pair*>(stage) + warpgroup_thread()) {}

  __device__ void load_pair(int step, int load, const Element* from, bool in_bounds) const {
    cp_async_zfill<sizeof(Pair)>(pair_address(step, load), from, in_bounds);
  }
  // For unaligned tensors; alignment is not known when the tiling is chosen.
  __device__ void load_each(int step, int load, const Element* first, const Element* second,
                            bool in_bounds) const {
    *pair_address(step, load) = in_bounds ? Operands::pair_at(first, second) : Pair{};
  }

  __device__ void take(Chunk<kSteps>& to) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int load = 0; load < Operands::kLoads; ++load) {
        Operands::set(to[step], load, *pair_address(step, load));
      }
    }
  }

 private:
  __device__ Pair* pair_address(int step, int load) const {
    return pairs_ + (step * Operands::kLoads + load) * kWarpgroupThreads;
  }

  Pair* pairs_;
};

// A warpgroup's cp.async pipeline of chunks.
template <typename Element, int kSteps, int kStages>
class SmemPipeline {
 public:
  __device__ explicit SmemPipeline(unsigned char* all)
      : first_(all + warpgroup_index() * (kStages * kSteps * kStageStepBytes)) {}

  // Prologue: starts the copies of all stages but one.
  template <typename Loader>
  __device__ void fill(Loader& loader) {
    for (int stage = 0; stage < kStages - 1; ++stage) start_load(loader, stage);
  }

  // Starts the copies of the chunk kStages - 1 ahead into the stage that was read last, then waits for the
  // next chunk and reads it into registers.
  template <typename Loader>
  __device__ void consume_next(Loader& loader, Chunk<kSteps>& to) {
    start_load(loader, next_ == 0 ? kStages - 1 : next_ - 1);
    cp_async_wait_group<kStages - 1>();
    stage(next_).take(to);
    if (++next_ == kStages) next_ = 0;
  }

 private:
  __device__ SmemStage<Element, kSteps> stage(int index) const {
    return SmemStage<Element, kSteps>(first_ + index * (kSteps * kStageStepBytes));
  }

  template <typename Loader>
  __device__ void start_load(Loader& loader, int index) const {
    loader.load_next(stage(index));
    cp_async_commit_group();
  }

  unsigned char* first_;
  int next_ = 0;
};

// A block's filters in shared memory, loaded once for all tiles: weights as [channel vector][filter] core
// matrices without swizzle, then the bias.
template <int kFilters>
struct SmemFilters {
  uint4* weights;
  float* bias;

  // Starts the copies of the weights, one cp.async group per thread. `first`: the block's first filter in its
  // group; `first_out_channel`: the same among all filters.
  template <typename Element>
  __device__ void start_loads(const Arguments<Element>& problem, int vectors, int first,
                              int first_out_channel) const {
    using Operands = WgmmaOperands<Element>;
    constexpr int kVectorChannels = kVectorBytes / sizeof(Element);
    const bool vectorized = problem.channels % kVectorChannels == 0 &&
                            reinterpret_cast<unsigned long long>(problem.w) % kVectorBytes == 0;
    for_each(vectors, [&](int vector, int filter, uint4& to) {
      const Element* const from = problem.w +
                                  static_cast<long long>(first_out_channel + filter) * problem.channels +
                                  vector * kVectorChannels;
      const int left = first + filter < problem.filters ? problem.channels - vector * kVectorChannels : 0;
      if (!vectorized) {
        to = make_uint4(Operands::word_at(from, left, 0), Operands::word_at(from, left, 1),
                        Operands::word_at(from, left, 2), Operands::word_at(from, left, 3));
      } else if (left > 0) {
        cp_async_16(&to, from);
      } else {
        to = make_uint4(0u, 0u, 0u, 0u);
      }
    });
    cp_async_commit_group();
  }

  // Bias of the thread's filter, or zero.
  template <typename Element>
  static __device__ Element bias_of_thread(const Arguments<Element>& problem, int first,
                                           int first_out_channel) {
    const int filter = static_cast<int>(threadIdx.x);
    const bool in_bounds = filter < kFilters && first + filter < problem.filters && problem.b != nullptr;
    return in_bounds ? problem.b[first_out_channel + filter] : Element(0.0f);
  }

  // Waits for the copies (kLaterGroups cp.async groups were committed after them), rounds the weights if
  // needed and synchronises the block.
  template <int kLaterGroups, typename Element>
  __device__ void wait(int vectors, Element thread_bias) const {
    using Operands = WgmmaOperands<Element>;
    if (threadIdx.x < kFilters) bias[threadIdx.x] = static_cast<float>(thread_bias);
    cp_async_wait_group<kLaterGroups>();
    if constexpr (Operands::kRoundsWeights) {
      for_each(vectors, [](int, int, uint4& vector) {
        vector = make_uint4(Operands::round_weights(vector.x), Operands::round_weights(vector.y),
                            Operands::round_weights(vector.z), Operands::round_weights(vector.w));
      });
    }
    fence_proxy_async();
    __syncthreads();
  }

 private:
  // Calls `call` for each 16-byte vector of a thread. A warp takes four vectors (64 bytes) of eight filters,
  // in an order without bank conflicts.
  template <typename Call>
  __device__ void for_each(int vectors, const Call& call) const {
    constexpr int kAcross = 4, kDown = 8;
    static_assert(kFilters % kDown == 0);
    for (int i = threadIdx.x; i < vectors * kFilters; i += blockDim.x) {
      const int vector_block = i / (kAcross * kDown);
      const int vector = vector_block / (kFilters / kDown) * kAcross + i / kDown % kAcross;
      const int filter = vector_block % (kFilters / kDown) * kDown + i % kDown;
      call(vector, filter, weights[vector * kFilters + filter]);
    }
  }
};

}  // namespace convswap::pointwise
