#pragma once

// Which pixels of the input a tile takes, as runs of neighbours, and where these lie in a stage of shared
// memory: for a chunk's first channel and the first tap of the depth.

#include "cuda/many_channels/share.cuh"

namespace convswap::many_channels {

// No plane of the input is as far from any output's as that of what is no pixel.
constexpr int kNoPlane = -(1 << 30);

// The number of the run that has the pixel of a place.
template <typename Element>
__device__ inline int run_of(const Arguments<Element>& problem, const Position& at, int phase_row) {
  if (problem.run_kind == RunKind::slices) return at.slice;
  if (problem.run_kind == RunKind::images) return at.image;
  return at.line * static_cast<int>(problem.phases_down.divisor) + phase_row;
}

template <typename Element>
class Runs {
 public:
  // `image`: where the tile's first image begins, in the group's first channel.
  __device__ Runs(const Arguments<Element>& problem, const TileStart& tile, const Element* image)
      : problem_(problem),
        tile_(tile),
        misaligned_(static_cast<unsigned>(reinterpret_cast<unsigned long long>(image))),
        first_bytes_(problem.run_bytes) {
    if (problem.run_kind == RunKind::slices) {
      first_bytes_ =
          staged_bytes(rows_of_slice(tile.row, problem.rows.divisor - 1).count * problem.input_width);
    } else if (problem.run_kind == RunKind::rows) {
      first_runs_ = problem.phases_down.divisor;
      const Columns own = columns_of_line(0, tile.of_slice(problem, 0).strip);
      first_bytes_ = staged_bytes(max(0, own.end - own.first));
    }
  }

  // A run as it is staged, by its number.
  __device__ StagedRun staged(int number) const {
    const Run own = run(number);
    const int begin = kGranuleBytes + min(number, first_runs_) * first_bytes_ +
                      max(number - first_runs_, 0) * problem_.run_bytes;
    // As far from a granule's boundary as in memory.
    const unsigned misaligned =
        (misaligned_ + static_cast<unsigned>(own.element) * sizeof(Element)) % kGranuleBytes;
    return {own.element, begin + static_cast<int>(misaligned),
            own.elements * static_cast<int>(sizeof(Element)), own.plane};
  }

 private:
  struct Run {
    int element, elements, plane;
  };
  __device__ Run run(int number) const {
    if (problem_.run_kind == RunKind::slices) return of_slice(number);
    if (problem_.run_kind == RunKind::rows) return of_row(number);
    const bool exists = tile_.image + number < problem_.batch;
    return {number * problem_.in_channels * problem_.input_plane,
            problem_.chunk_channels * problem_.input_plane, exists ? 0 : kNoPlane};
  }

  struct Rows {
    int first, count;
  };
  // The rows of the input that lines of a slice read.
  __device__ Rows rows_of_slice(int first_line, int last_line) const {
    const int first =
        max(0, first_line * problem_.stride_height + problem_.phase_rows[0] - problem_.pad_height);
    const int end = min(problem_.input_height, last_line * problem_.stride_height + problem_.last_phase_row -
                                                   problem_.pad_height + 1);
    return {first, last_line < first_line ? 0 : max(0, end - first)};
  }
  static __device__ int staged_bytes(int elements) {
    const int bytes = elements * static_cast<int>(sizeof(Element)) + kGranuleBytes - 1;
    return (bytes & -kGranuleBytes) + kRunGap;
  }
  __device__ int element_of(const Position& at, int plane, int row) const {
    return at.image * problem_.in_channels * problem_.input_plane +
           (plane * problem_.input_height + row) * problem_.input_width;
  }
  __device__ int plane_of(const Position& at) const {
    return at.depth * problem_.stride_depth - problem_.pad_depth;
  }

  __device__ Run of_slice(int number) const {
    const Position at = tile_.of_slice(problem_, number);
    const int rows = problem_.rows.divisor;
    // Counted from the slice's first.
    const int last_line = tile_.row +
                          static_cast<int>(problem_.pitch.quotient_of_any(
                              tile_.column + static_cast<int>(problem_.span.divisor) - 1)) -
                          number * rows;
    const Rows own = rows_of_slice(number == 0 ? tile_.row : 0, min(rows - 1, last_line));
    const bool exists = tile_.image + at.image < problem_.batch;
    return {element_of(at, plane_of(at), own.first), own.count * problem_.input_width,
            exists && own.count > 0 ? plane_of(at) : kNoPlane};
  }

  struct Columns {
    int first, end;
  };
  // The columns of the input that a line's places read, as far as they are of the tile.
  __device__ Columns columns_of_line(int line, int strip) const {
    const int pitch = problem_.pitch.divisor;
    const int first_place = line == 0 ? tile_.column : 0;
    const int last_place =
        min(pitch, tile_.column + static_cast<int>(problem_.span.divisor) - line * pitch) - 1;
    const int origin = strip * problem_.strip_columns * problem_.stride_width + problem_.phase_columns[0] -
                       problem_.pad_width;
    return {max(0, origin + first_place * problem_.stride_width),
            min(problem_.input_width, origin + last_place * problem_.stride_width +
                                          problem_.last_phase_column - problem_.phase_columns[0] + 1)};
  }

  __device__ Run of_row(int number) const {
    const int line = problem_.phases_down.quotient_of_any(number);
    const int phase_row = number - line * static_cast<int>(problem_.phases_down.divisor);
    const Position at = tile_.of_line(problem_, line);
    const int row = at.row * problem_.stride_height +
                    problem_.phase_rows[phase_row * problem_.phases_across.divisor] - problem_.pad_height;
    const auto [first, end] = columns_of_line(line, at.strip);
    const bool exists =
        tile_.image + at.image < problem_.batch && row >= 0 && row < problem_.input_height && first < end;
    return {element_of(at, plane_of(at), row) + first, end - first, exists ? plane_of(at) : kNoPlane};
  }

  const Arguments<Element>& problem_;
  const TileStart& tile_;
  unsigned misaligned_;  // the low bits of the image's address
  // The first slice, and the runs of the first line, may be shorter than the others.
  int first_runs_ = 1, first_bytes_;
};

}  // namespace convswap::many_channels
