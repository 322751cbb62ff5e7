#pragma once

// What products take: of pixels, which a thread loads two of, and of a block's filters, for each element
// type.

#include "conv/small_floats.h"
#include "cuda/pointwise/arguments.h"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::pointwise {

// The words of a product: of a thread's channels, both pixels.
using Words = unsigned[4];

// kLoads: a thread's channels of a product, of which number `load` is channel_of(lane % 4, load).
template <typename Element>
struct Numbers;

template <>
struct Numbers<float> {
  using Product = Tf32;
  static constexpr int kLoads = 2;
  static __device__ int channel_of(int quarter, int load) { return quarter + 4 * load; }

  // A channel of two pixels, as it lies where they are neighbours, and the words that it is.
  using Pair = uint2;
  static __device__ Pair pair_at(const float* first, const float* second) {
    return make_uint2(__float_as_uint(*first), __float_as_uint(*second));
  }
  static __device__ void put(Words& to, int load, Pair pair) {
    to[2 * load] = pair.x, to[2 * load + 1] = pair.y;
  }

  // What was loaded as the product takes it.
  static __device__ void finish(Words& words) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = of_weights(words[i]);
  }

  // A word of a filter's channels, of which `left` are left, and as the product takes it.
  static __device__ unsigned word_at(const float* from, int left, int word) {
    return left > word ? __float_as_uint(from[word]) : 0u;
  }
  static constexpr bool kRoundsWeights = true;
  static __device__ unsigned of_weights(unsigned word) {
    return __float_as_uint(round_to_tf32(__uint_as_float(word)));
  }

  // Results of two neighbouring pixels, and of one.
  static __device__ Pair pair_of(float first, float second) {
    return make_uint2(__float_as_uint(first), __float_as_uint(second));
  }
  static __device__ float2 floats_of(Pair pair) {
    return make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
  }
  static __device__ unsigned one_of(float result) { return __float_as_uint(result); }
};

// Of 16 bits: a word has two channels of a pixel to the products, and two pixels of a channel in memory.
template <typename Small>
struct Numbers {
  using Product = Small;
  static constexpr int kLoads = 4;
  static __device__ int channel_of(int quarter, int load) { return 2 * quarter + load % 2 + load / 2 * 8; }

  using Pair = unsigned;
  static __device__ Pair pair_at(const Small* first, const Small* second) {
    return first->bits | static_cast<unsigned>(second->bits) << 16;
  }
  static __device__ void put(Words& to, int load, Pair pair) { to[load] = pair; }

  static __device__ void finish(Words& words) {
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
  static __device__ unsigned short one_of(float result) { return Small(result).bits; }
};

// Where the pixel of a number lies in the first channel of its image, and its output in the first plane.
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
    const int of_plane = output - depth * static_cast<int>(problem.output_area.divisor);
    const int row = problem.output_width.quotient_of_any(of_plane);
    const int column = of_plane - row * static_cast<int>(problem.output_width.divisor);
    input = depth * problem.depth_step + row * problem.row_step + column * problem.column_step;
  }
};

// The two pixels of a thread, of a tile of a warpgroup: neighbours where the thread stores both at once, else
// eight apart, so that lanes store neighbours.
struct ThreadPixels {
  int first, distance;
  int quarter;  // of a product's channels

  __device__ explicit ThreadPixels(bool are_pairs)
      : distance(are_pairs ? 1 : 8), quarter(static_cast<int>(threadIdx.x) % 4) {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = warpgroup_thread() / 32 * 16 + (are_pairs ? 2 * row : row);
  }

  __device__ unsigned number(int tile, int i) const {
    return static_cast<unsigned>(tile * kPixels + first + distance * i);
  }
};

// Loads chunks of a warpgroup's tiles, one after the other, to where they wait.
template <typename Element, int kSteps>
class ChunkLoader {
 public:
  __device__ ChunkLoader(const Arguments<Element>& problem, const ThreadPixels& own, int group, int tile,
                         int stride)
      : problem_(problem), own_(own), group_(group), tile_(tile), stride_(stride) {}

  // Where there is no more, none.
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
    const long long further = kSteps * kDepth * static_cast<long long>(problem_.input_plane);
    from_[0] += further, from_[1] += further;
    if (++chunk_ == problem_.chunks) chunk_ = 0, tile_ += stride_;
  }

 private:
  using Of = Numbers<Element>;
  static constexpr int kDepth = kDepthBytes / sizeof(Element);

  // What lies behind the last pixel is as the last.
  __device__ void find_pixels() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned last = problem_.pixels - (problem_.stores_pairs ? 2u - i : 1u);
      const Pixel pixel(problem_, min(own_.number(tile_, i), last));
      const long long channel = static_cast<long long>(pixel.image) * problem_.in_channels +
                                group_ * problem_.channels + Of::channel_of(own_.quarter, 0);
      from_[i] = problem_.x + channel * problem_.input_plane + pixel.input;
    }
  }

  template <bool kArePairs, typename To>
  __device__ void load(const To& to, int left) const {
    const auto load_channel = [&](int step, int load, bool is_there) {
      const long long at =
          (step * kDepth + Of::channel_of(0, load)) * static_cast<long long>(problem_.input_plane);
      if constexpr (kArePairs) {
        to.load_pair(step, load, from_[0] + at, is_there);
      } else {
        to.load_each(step, load, from_[0] + at, from_[1] + at, is_there);
      }
    };
    if (left >= kSteps * kDepth) [[likely]] {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int load = 0; load < Of::kLoads; ++load) load_channel(step, load, true);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int load = 0; load < Of::kLoads; ++load) {
          load_channel(step, load, step * kDepth + Of::channel_of(own_.quarter, load) < left);
        }
      }
    }
  }

  const Arguments<Element>& problem_;
  const ThreadPixels& own_;
  int group_, tile_, stride_, chunk_ = 0;
  const Element* from_[2];
};

// Where a thread's chunks wait until they are multiplied: one in registers, or a few in shared memory.

// The channels of a chunk of a thread's pixels, product after product.
template <int kSteps>
using Chunk = Words[kSteps];

// A chunk in registers, as ChunkLoader loads it.
template <typename Element, int kSteps>
struct InRegisters {
  using Of = Numbers<Element>;
  using Pair = typename Of::Pair;

  __device__ explicit InRegisters(Chunk<kSteps>& chunk) : to(chunk) {}
  // Zeros where it is not there.
  __device__ void load_pair(int step, int load, const Element* from, bool is_there) const {
    Of::put(to[step], load, is_there ? *reinterpret_cast<const Pair*>(from) : Pair{});
  }
  __device__ void load_each(int step, int load, const Element* first, const Element* second,
                            bool is_there) const {
    Of::put(to[step], load, is_there ? Of::pair_at(first, second) : Pair{});
  }

  Chunk<kSteps>& to;
};

// A chunk in shared memory, of which a thread has its own pairs alone, so that nothing but the thread itself
// has to wait for them.
template <typename Element, int kSteps>
class InSlot {
 public:
  using Of = Numbers<Element>;
  using Pair = typename Of::Pair;
  static_assert(kSteps * Of::kLoads * kWarpgroupThreads * sizeof(Pair) == kSteps * kSlotStepBytes);

  __device__ explicit InSlot(unsigned char* slot)
      : own_(reinterpret_cast<Pair*>(slot) + warpgroup_thread()) {}

  __device__ void load_pair(int step, int load, const Element* from, bool is_there) const {
    cp_async_zfill<sizeof(Pair)>(place(step, load), from, is_there);
  }
  // Where a tensor turns out not to be aligned, which is not known when the tiling is chosen.
  __device__ void load_each(int step, int load, const Element* first, const Element* second,
                            bool is_there) const {
    *place(step, load) = is_there ? Of::pair_at(first, second) : Pair{};
  }

  __device__ void take(Chunk<kSteps>& to) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int load = 0; load < Of::kLoads; ++load) Of::put(to[step], load, *place(step, load));
    }
  }

 private:
  __device__ Pair* place(int step, int load) const {
    return own_ + (step * Of::kLoads + load) * kWarpgroupThreads;
  }

  Pair* own_;
};

// The slots of a warpgroup, which its chunks take in turns.
template <typename Element, int kSteps, int kSlots>
class Slots {
 public:
  __device__ explicit Slots(unsigned char* all)
      : first_(all + warpgroup_index() * (kSlots * kSteps * kSlotStepBytes)) {}

  // Starts the copies of all slots but one.
  template <typename Loader>
  __device__ void fill(Loader& loader) {
    for (int slot = 0; slot < kSlots - 1; ++slot) start(loader, slot);
  }

  // Starts the copies of the chunk that is kSlots - 1 further on, into the slot whose chunk was taken last
  // and has been multiplied, so that nobody reads it any more; then takes the next chunk.
  template <typename Loader>
  __device__ void take_next(Loader& loader, Chunk<kSteps>& to) {
    start(loader, next_ == 0 ? kSlots - 1 : next_ - 1);
    cp_async_wait_group<kSlots - 1>();
    slot(next_).take(to);
    if (++next_ == kSlots) next_ = 0;
  }

 private:
  __device__ InSlot<Element, kSteps> slot(int number) const {
    return InSlot<Element, kSteps>(first_ + number * (kSteps * kSlotStepBytes));
  }

  template <typename Loader>
  __device__ void start(Loader& loader, int number) const {
    loader.load_next(slot(number));
    cp_async_commit_group();
  }

  unsigned char* first_;
  int next_ = 0;
};

// A block's filters, for all its tiles: weights as the tensor core takes them, core after core of channels
// those of all filters, then the bias.
template <int kFilters>
struct Filters {
  uint4* weights;
  float* bias;

  // Starts the copies of the weights, which are one group of each thread. `first`: of the group, and of all.
  template <typename Element>
  __device__ void start_copies(const Arguments<Element>& problem, int cores, int first,
                               int first_of_all) const {
    using Of = Numbers<Element>;
    constexpr int kCore = kCoreBytes / sizeof(Element);
    const bool are_whole =
        problem.channels % kCore == 0 && reinterpret_cast<unsigned long long>(problem.w) % kCoreBytes == 0;
    for_each(cores, [&](int core, int filter, uint4& to) {
      const Element* const from =
          problem.w + static_cast<long long>(first_of_all + filter) * problem.channels + core * kCore;
      const int left = first + filter < problem.filters ? problem.channels - core * kCore : 0;
      if (!are_whole) {
        to = make_uint4(Of::word_at(from, left, 0), Of::word_at(from, left, 1), Of::word_at(from, left, 2),
                        Of::word_at(from, left, 3));
      } else if (left > 0) {
        cp_async_16(&to, from);
      } else {
        to = make_uint4(0u, 0u, 0u, 0u);
      }
    });
    cp_async_commit_group();
  }

  // Of the thread's filter, where it has one.
  template <typename Element>
  static __device__ Element bias_of_thread(const Arguments<Element>& problem, int first, int first_of_all) {
    const int own = static_cast<int>(threadIdx.x);
    const bool is_there = own < kFilters && first + own < problem.filters && problem.b != nullptr;
    return is_there ? problem.b[first_of_all + own] : Element(0.0f);
  }

  // Waits for the copies, behind which the thread has started kLater groups, and has the block meet.
  template <int kLater, typename Element>
  __device__ void finish(int cores, Element bias_of_own) const {
    using Of = Numbers<Element>;
    if (threadIdx.x < kFilters) bias[threadIdx.x] = static_cast<float>(bias_of_own);
    cp_async_wait_group<kLater>();
    if constexpr (Of::kRoundsWeights) {
      for_each(cores, [](int, int, uint4& own) {
        own = make_uint4(Of::of_weights(own.x), Of::of_weights(own.y), Of::of_weights(own.z),
                         Of::of_weights(own.w));
      });
    }
    fence_proxy_async();
    __syncthreads();
  }

 private:
  // Calls back with a thread's cores of filters. A warp has four cores, 64 bytes, of eight filters, which go
  // to as many different banks at a time.
  template <typename Call>
  __device__ void for_each(int cores, const Call& call) const {
    constexpr int kAcross = 4, kDown = 8;
    static_assert(kFilters % kDown == 0);
    for (int i = threadIdx.x; i < cores * kFilters; i += blockDim.x) {
      const int rest = i / (kAcross * kDown);
      const int core = rest / (kFilters / kDown) * kAcross + i / kDown % kAcross;
      const int filter = rest % (kFilters / kDown) * kDown + i % kDown;
      call(core, filter, weights[core * kFilters + filter]);
    }
  }
};

}  // namespace convswap::pointwise
