#pragma once

// The way of the pixels to shared memory: a chunk of channels at a time, as they are, by bulk copies that are
// under way while chunks before are being converted.

#include "cuda/many_channels/runs.cuh"
#include "cuda/many_channels/weights.cuh"
#include "cuda/primitives/bulk_load.cuh"
#include "cuda/primitives/bulk_store.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/warpgroup_barrier.cuh"

namespace convswap::many_channels {

// Copies a granule of which some does not belong to x.
template <typename Element>
__device__ __noinline__ void copy_edge(const Arguments<Element>& problem, unsigned char* to,
                                       const char* from) {
  const char* const begin = reinterpret_cast<const char*>(problem.x);
  for (int i = 0; i < kGranuleBytes / static_cast<int>(sizeof(Element)); ++i) {
    const char* const element = from + i * sizeof(Element);
    if (element >= begin && element < begin + problem.x_bytes) {
      reinterpret_cast<Element*>(to)[i] = *reinterpret_cast<const Element*>(element);
    }
  }
  // The next copy to this place follows what has been written.
  show_to_copies_and_products();
}

// What is known of the tiles whose copies have been started, kTileSlots in turns: in shared memory, since
// local memory, where registers do not suffice, is as far as global memory.
template <typename Element>
struct SharedTiles {
  StagedRun* runs;
  const Element** images;
};

// Goes through the chunks of all tiles of a block, ahead of their conversion: each warp of converters has its
// share copied, of the channels or, where these lie together, of the runs.
template <typename Format>
class Copies {
 public:
  using Element = typename Format::Element;

  // Behind it copies may be started.
  __device__ Copies(const Arguments<Element>& problem, const Works& works, SharedTiles<Element> tiles,
                    unsigned char* stages, TransactionBarrier* loaded)
      : problem_(problem),
        tiles_(tiles),
        stages_(stages),
        loaded_(loaded),
        work_(works.first),
        end_(works.end) {
    begin();
  }

  // Starts the copies of the next chunk, if there is one, into the stage that was read last.
  __device__ void start() {
    if (work_ >= end_) return;
    if (first_.chunks >= 0) [[likely]] {
      if (chunk_ < first_.chunks) {
        bulk_load(stages_ + stage_ * problem_.pixel_stage_bytes + first_.at, first_.from, first_.bytes,
                  &loaded_[stage_]);
      }
      first_.from += problem_.chunk_bytes;
    } else {
      start_seldom(threadIdx.x % 32);
    }
    for (int i = threadIdx.x % 32 + 32; i < copies_of_warp(); i += 32) start_seldom(i);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&loaded_[stage_]);
    if (++stage_ == problem_.pixel_stages) stage_ = 0;
  }
  // Goes on, when all converters have started the chunk; they meet.
  __device__ void advance(const WeightWindows<Format>& windows) {
    if (work_ >= end_ || ++chunk_ < problem_.chunks) return;
    chunk_ = 0;
    first_.from -= problem_.chunks * problem_.chunk_bytes;
    if (++pass_ < 2 && windows.of(problem_, Share(problem_, work_).block) == 2) return;
    pass_ = 0;
    if (++work_ < end_ && Share(problem_, work_).filter_block == 0) {
      if (++slot_ == kTileSlots) slot_ = 0;
      begin();
    }
  }

 private:
  static constexpr int kWarps = kConverters / 32;
  // A run of a channel.
  struct Copy {
    const char* from;  // of the first chunk, and the first tap of the depth
    int at, bytes;
    int channel, plane;
  };
  // The same as whole granules, for a lane's first, whose address goes from chunk to chunk.
  struct Granules {
    const char* from;
    int at, bytes;
    int chunks;  // that have it; negative where each chunk has to be looked at
  };

  __device__ bool are_together() const { return problem_.run_kind == RunKind::images; }
  __device__ int copies_of_warp() const {
    return are_together() ? (problem_.runs + kWarps - 1) / kWarps : problem_.runs << problem_.channel_shift;
  }

  // The warp's copy of a number.
  __device__ Copy find(int i) const {
    const int warp = threadIdx.x / 32;
    const int number = are_together() ? i * kWarps + warp : i >> problem_.channel_shift;
    if (number >= problem_.runs) return {nullptr, 0, 0, 0, kNoPlane};
    const int channel = are_together() ? 0 : warp + (i - (number << problem_.channel_shift)) * kWarps;
    const StagedRun run = tiles_.runs[slot_ * problem_.runs + number];
    return {reinterpret_cast<const char*>(tiles_.images[slot_] + run.element) +
                static_cast<unsigned long long>(channel) * problem_.channel_bytes,
            run.at + channel * problem_.staged_channel_bytes, run.bytes, channel, run.plane};
  }

  __device__ Granules granules_of(const Copy& copy) const {
    const int misaligned = copy.at % kGranuleBytes;
    const char* const from = copy.from - misaligned;
    const int bytes = (misaligned + copy.bytes + kGranuleBytes - 1) & -kGranuleBytes;
    const int channels = problem_.channels - copy.channel;
    int chunks = channels <= 0 ? 0 : (channels + problem_.chunk_channels - 1) / problem_.chunk_channels;
    const char* const begin = reinterpret_cast<const char*>(problem_.x);
    if (problem_.depth_taps.divisor > 1) {
      chunks = -1;
    } else if (copy.plane < 0 || copy.plane >= problem_.input_depth || copy.bytes == 0) {
      chunks = 0;
    } else if ((are_together() && problem_.channels % problem_.chunk_channels != 0) || from < begin ||
               from + (chunks - 1) * problem_.chunk_bytes + bytes > begin + problem_.x_bytes) {
      // The last chunk has fewer channels, or granules are not of x.
      chunks = -1;
    }
    return {from, copy.at - misaligned, bytes, chunks};
  }

  // Any copy of any chunk.
  __device__ void start_seldom(int i) {
    const Chunk chunk(problem_, chunk_);
    const Copy copy = find(i);
    const int plane = copy.plane + chunk.depth_tap * problem_.dilation_depth;
    const int channels = problem_.channels - chunk.channel;
    if (copy.channel >= channels || plane < 0 || plane >= problem_.input_depth) return;
    const int missing =
        are_together() ? max(problem_.chunk_channels - channels, 0) * problem_.staged_channel_bytes : 0;
    const int at = copy.at + chunk.shift(problem_);
    const int misaligned = at % kGranuleBytes;
    unsigned char* to = stages_ + stage_ * problem_.pixel_stage_bytes + at - misaligned;
    const char* from = copy.from + static_cast<unsigned long long>(chunk.channel) * problem_.channel_bytes +
                       chunk.depth_bytes(problem_) - misaligned;
    int bytes = (misaligned + copy.bytes - missing + kGranuleBytes - 1) & -kGranuleBytes;
    // The first and the last granule may not be of x.
    const char* const begin = reinterpret_cast<const char*>(problem_.x);
    if (from < begin) [[unlikely]] {
      copy_edge(problem_, to, from);
      to += kGranuleBytes, from += kGranuleBytes, bytes -= kGranuleBytes;
    }
    if (from + bytes > begin + problem_.x_bytes) [[unlikely]] {
      bytes -= kGranuleBytes;
      if (bytes >= 0) copy_edge(problem_, to + bytes, from + bytes);
    }
    if (bytes > 0) bulk_load(to, from, bytes, &loaded_[stage_]);
  }

  __device__ void begin() {
    const Share share(problem_, work_);
    const TileStart tile(problem_, share.tile);
    const Element* const image = image_of(problem_, tile, share.group);
    if (threadIdx.x == 0) tiles_.images[slot_] = image;
    const Runs<Element> runs(problem_, tile, image);
    for (int i = threadIdx.x; i < problem_.runs; i += kConverters) {
      tiles_.runs[slot_ * problem_.runs + i] = runs.staged(i);
    }
    sync_threads(kConverterBarrier, kConverters);
    first_ = granules_of(find(threadIdx.x % 32));
  }

  const Arguments<Element>& problem_;
  const SharedTiles<Element> tiles_;
  unsigned char* const stages_;
  TransactionBarrier* const loaded_;
  int work_;
  const int end_;
  int pass_ = 0, chunk_ = 0, stage_ = 0, slot_ = 0;
  Granules first_;
};

}  // namespace convswap::many_channels
