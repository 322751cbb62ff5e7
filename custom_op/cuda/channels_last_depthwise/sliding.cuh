#pragma once

// The kernel of channels_last_depthwise for filters of 3x3, 5x5 and 7x7 taps; see channels_last_depthwise.cc.

#include "cuda/channels_last_depthwise/common.cuh"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/shared_memory_at.cuh"

namespace convswap::channels_last_depthwise {

// Pixels of a row of x in shared memory: kGroupBytes of channels each. A warp reads those of two neighbouring
// strips, whose pixels are kDistance columns apart. Of the halves of a line of 128 bytes the strips have
// different ones, so that a load takes no bank twice.
template <int kStride>
struct RowLayout {
  static constexpr int kDistance = kStripColumns * kStride;
  static_assert(kDistance % 2 == 0);

  static __device__ int half(int column) { return (column ^ column / kDistance) & 1; }
  static __device__ int offset(int column) { return (column / 2 * 2 + half(column)) * kGroupBytes; }
};

// Copies the rows of x that a run reads to a ring of kSlidingStages rows in shared memory, and finds them
// there. A thread copies the same pieces of each row.
template <typename T, int kSize, int kStride>
class RowCopies {
 public:
  static constexpr int kChannels = kWordBytes / int(sizeof(T));

  __device__ RowCopies(const Arguments<T>& a, const Place<kChannels>& place)
      : row_(place.first_row * kStride - a.pad_height),
        end_(place.rows > 0 ? max(0, min(a.input_height, row_ + (a.run_rows - 1) * kStride + kSize)) : 0),
        row_bytes_(static_cast<long long>(a.input_width) * a.channels * int(sizeof(T))) {
    constexpr int kPieces = kGroupBytes / kVectorBytes;  // of a pixel
    const int strips = static_cast<int>(a.tile_strips.divisor), pixels = a.stage_bytes / kGroupBytes;
    const SharedAddress ring =
        shared_address(shared_memory_at(a.stages) + place.run * kSlidingStages * a.stage_bytes);
    const int first_channel = place.filter - place.vector * kChannels;
    const int first_column = (place.column - place.strip * kStripColumns) * kStride - a.pad_width;
    const long long line = static_cast<long long>(place.plane) * a.input_height + row_;
    from_ = global_address(a.x) + static_cast<unsigned long long>(line * row_bytes_);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int index = (i * strips + place.strip) * kGroupWords + place.vector;
      const int pixel = index / kPieces, piece = index % kPieces;
      const int column = first_column + pixel,
                channel = first_channel + piece * kVectorBytes / int(sizeof(T));
      exists_[i] = pixel < pixels;
      in_bounds_[i] = is_inside(column, a.input_width) && channel < a.channels;
      to_[i] = ring + RowLayout<kStride>::offset(pixel) + piece * kVectorBytes;
      offsets_[i] = in_bounds_[i] ? (column * a.channels + channel) * int(sizeof(T)) : 0;
    }
  }

  // Copies the next row; zeros, if it is padding or not of this run.
  __device__ void copy(unsigned stage) {
    const bool has_row = is_inside(row_, end_);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!exists_[i]) continue;
      cp_async_zfill<kVectorBytes>(to_[i] + stage, reinterpret_cast<const void*>(from_ + offsets_[i]),
                                   in_bounds_[i] & has_row);
    }
    cp_async_commit_group();
    ++row_, from_ += static_cast<unsigned long long>(row_bytes_);
  }

 private:
  static constexpr int kCopies = copies_per_row(kStride);

  int row_;
  const int end_;
  const long long row_bytes_;
  unsigned long long from_;  // the row in x
  bool exists_[kCopies], in_bounds_[kCopies];
  SharedAddress to_[kCopies];
  unsigned offsets_[kCopies];
};

// A thread has the taps of a word of channels in registers, and goes down the rows of x: it adds each row to
// the sums of all rows of y that the row contributes to. Those are at most kRing.
template <typename T, int kSize, int kStride>
__global__ void __launch_bounds__(kMaxThreads, min_sliding_blocks(kSize))
    sliding(const __grid_constant__ Arguments<T> a) {
  constexpr int kChannels = kWordBytes / int(sizeof(T));
  constexpr int kRing = (kSize + kStride - 1) / kStride;
  // Rows of y that a step of the loop finishes. With kRing of them no sums would have to move to other
  // registers, but 7x7 taps are then 110 KB of code, too much to stay in a multiprocessor until the next run.
  constexpr int kPhases = kSize == 3 ? kRing : 2;
  constexpr int kPixels = (kStripColumns - 1) * kStride + kSize;
  using Vector = ChannelVector<T, kChannels>;
  using Layout = RowLayout<kStride>;
  const Place<kChannels> place(a);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  RowCopies<T, kSize, kStride> copies(a, place);
  const unsigned stage_bytes = static_cast<unsigned>(a.stage_bytes);
#pragma unroll
  for (int i = 0; i < kSlidingStages - 1; ++i) copies.copy(i * stage_bytes);

  float taps[kSize][kSize][kChannels], bias[kChannels];
  const int filter = place.exists ? place.filter : 0;
  load_bias(a, filter, bias);
  const unsigned* const weights = reinterpret_cast<const unsigned*>(a.prepared_weights + filter);
  const int weight_words = a.weight_pitch / kChannels;
#pragma unroll
  for (int t = 0; t < kSize * kSize; ++t)
    Vector::unpack(weights[t * weight_words], taps[t / kSize][t % kSize]);

  // Where the strip's pixels are in a row, for pixels in either half of a line.
  const SharedAddress ring =
      shared_address(shared_memory_at(a.stages) + place.run * kSlidingStages * a.stage_bytes);
  const unsigned strip_offset = place.strip * Layout::kDistance * kGroupBytes + place.vector * kWordBytes;
  const SharedAddress halves[2] = {ring + strip_offset + (place.strip & 1) * kGroupBytes,
                                   ring + strip_offset + (~place.strip & 1) * kGroupBytes};
  unsigned stage = 0, last_stage = (kSlidingStages - 1) * stage_bytes;  // that is read, and the one before it
  // With few taps a test costs more than products that nobody needs.
  constexpr bool kSkipsOutside = kSize > 3;
  // The sums of the rows of y in progress are kRing neighbours, the newest row first.
  constexpr int kSums = kRing + kPhases - 1, kStripSums = kStripColumns * kChannels;
  float accumulators[kSums][kStripSums];
#pragma unroll
  for (auto& sums : accumulators) {
#pragma unroll
    for (int i = 0; i < kStripSums; ++i) sums[i] = bias[i % kChannels];
  }
  // The two strips of a run are a warp.
  const bool run_is_warp = a.tile_strips.divisor == 2;
  const int columns_left = place.exists ? a.output_width - place.column : 0;
  const long long row_elements = static_cast<long long>(a.output_width) * a.filters;
  int finished = 1 - kRing;  // row of the run that has all its products after the step
  long long element = place.element(a, place.first_row + finished);
#pragma unroll 1
  while (finished < a.run_rows) {
#pragma unroll
    for (int phase = 0; phase < kPhases; ++phase, ++finished, element += row_elements) {
      float (*const sums)[kStripSums] = accumulators + kPhases - 1 - phase;
      Residual<T, kChannels> residual{};
      if (a.z != nullptr && is_inside(finished, place.rows)) residual.load(a, columns_left, element);
#pragma unroll
      for (int m = 0; m < kStride; ++m) {
        cp_async_wait_group<kSlidingStages - 2>();
        // Behind it all threads of the run have read the row before, whose place the next copy takes.
        if (run_is_warp) {
          __syncwarp();
        } else {
          __syncthreads();
        }
        copies.copy(last_stage);
        const SharedAddress line[2] = {halves[0] + stage, halves[1] + stage};
        last_stage = stage;
        stage = stage == (kSlidingStages - 1) * stage_bytes ? 0 : stage + stage_bytes;
        float pixels[kPixels][kChannels];
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
          const SharedAddress pixel = line[Layout::half(i)] + i / 2 * 2 * kGroupBytes;
          Vector::unpack(__float_as_uint(load_shared_at(pixel)), pixels[i]);
        }
#pragma unroll
        for (int d = 0; d < kRing; ++d) {
          if (m + d * kStride >= kSize) continue;
          // The first and the last rows of x also belong to rows of y outside the run. All threads of the
          // grid skip the same ones, so that no warp diverges.
          if (kSkipsOutside && !is_inside(finished + kRing - 1 - d, a.run_rows)) continue;
          add_row<kSize, kStride, kChannels>(pixels, taps[m + d * kStride], sums[d]);
        }
      }
      if (is_inside(finished, place.rows)) {
        store_results<kChannels>(a, columns_left, element, residual, sums[kRing - 1]);
      }
    }
#pragma unroll
    for (int d = kSums - 1; d >= 0; --d) {
#pragma unroll
      for (int i = 0; i < kStripSums; ++i) {
        accumulators[d][i] = d < kPhases ? bias[i % kChannels] : accumulators[d - kPhases][i];
      }
    }
  }
  cp_async_wait_group<0>();
}

}  // namespace convswap::channels_last_depthwise
