#pragma once

// The way of a tile's input into the cores of a team.

#include "cuda/primitives/shared_store.cuh"
#include "cuda/primitives/team_barrier.cuh"
#include "cuda/tensor_core_formats.cuh"
#include "cuda/toeplitz/tile.cuh"

namespace convswap::toeplitz {

// Where the cores of a bundle, a row and a core column of the tile's input begin, among those of an image.
template <typename Element>
__device__ inline int core_place(const Arguments<Element>& problem, int bundle, int row, int column) {
  const int row_phases = problem.row_phases.divisor, column_phases = problem.column_phases.divisor;
  const int lower_row = problem.row_phases.quotient(row);
  const int lower_column = problem.column_phases.quotient(column);
  const int plane = (bundle * row_phases + row - lower_row * row_phases) * column_phases + column -
                    lower_column * column_phases;
  return plane * problem.plane_cores + lower_row * static_cast<int>(problem.pitch.divisor) + lower_column;
}

// One row of a core, on its way.
template <typename Element>
struct CoreRow {
  Element values[kCoreElements];
  int place;
};

// Loads a tile's input, converts it with the window's scale and stores it as cores; returns what the thread
// has seen. `kWindowed` leaves out what lies outside the window.
template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_tile(const Arguments<Element>& problem, const Tile& tile,
                                                 int first_channel, BinadeWindow window, unsigned* cores) {
  constexpr int kAtOnce = 2;  // loads in flight before the first store
  const int bundle_mask = (1 << problem.log2_bundle) - 1;
  const int log2_pixels = 3 - problem.log2_bundle;
  const int first_row = tile.first_row * problem.stride_height - problem.pad_height;
  const int first_column = tile.first_column * problem.stride_width - problem.pad_width;
  int beyond[kCoreElements];  // from the first number of a core's row to the others
#pragma unroll
  for (int j = 0; j < kCoreElements; ++j) {
    beyond[j] = (j & bundle_mask) * problem.input_plane + (j >> problem.log2_bundle);
  }
  const float scale = window.scale();
  ValueRange<Element> range;

  const auto load = [&](const Element* image, int item, CoreRow<Element>& core) {
    const int line = problem.cores_per_row.quotient_of_any(item);
    const int core_column = item - line * static_cast<int>(problem.cores_per_row.divisor);
    const int bundle = problem.input_rows.quotient_of_any(line);
    const int row = line - bundle * static_cast<int>(problem.input_rows.divisor);
    const int channel = bundle << problem.log2_bundle;
    const int h = first_row + row;
    const int column = first_column + (core_column << log2_pixels);
    const bool is_inside = static_cast<unsigned>(h) < static_cast<unsigned>(problem.input_height);
    const int channels_left = is_inside ? problem.channels - channel : 0;
    const Element* const source = image + channel * problem.input_plane + h * problem.input_width + column;
    core.place = core_place(problem, bundle, row, core_column);
#pragma unroll
    for (int j = 0; j < kCoreElements; ++j) {
      const unsigned pixel = column + (j >> problem.log2_bundle);
      core.values[j] = Format::zero();
      if ((j & bundle_mask) < channels_left && pixel < static_cast<unsigned>(problem.input_width)) {
        core.values[j] = source[beyond[j]];
      }
    }
  };
  const auto store = [&](unsigned* target, CoreRow<Element>& core) {
#pragma unroll
    for (int j = 0; j < kCoreElements; j += 2) {
      range.include(core.values[j], core.values[j + 1]);
      if constexpr (kWindowed) {
        core.values[j] = window.holds(core.values[j]) ? core.values[j] : Format::zero();
        core.values[j + 1] = window.holds(core.values[j + 1]) ? core.values[j + 1] : Format::zero();
      }
    }
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      unsigned words[kCoreElements / 2];
#pragma unroll
      for (int j = 0; j < kCoreElements / 2; ++j) {
        words[j] = Format::pair(core.values[2 * j], core.values[2 * j + 1], scale, part);
      }
      store_shared(target + (core.place + part * problem.part_cores) * 4, words[0], words[1], words[2],
                   words[3]);
    }
  };

  for (int image = 0; image < tile.images; ++image) {
    const Element* const source =
        problem.x + ((tile.n + image) * problem.in_channels + first_channel) * problem.input_plane;
    unsigned* const target = cores + image * problem.image_cores * 4;
    for (int item = thread_of_team(); item < problem.image_items; item += kAtOnce * kTeamThreads) {
      CoreRow<Element> rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (item + i * kTeamThreads < problem.image_items) load(source, item + i * kTeamThreads, rows[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (item + i * kTeamThreads < problem.image_items) store(target, rows[i]);
      }
    }
  }
  return range;
}

// What all threads of the team have seen.
template <typename Element>
__device__ inline ValueRange<Element> reduce_team(ValueRange<Element> range, TeamState* state) {
  range.reduce_warp();
  if (threadIdx.x % 32 == 0) {
    atomicMax(&state->most, range.most);
    atomicMin(&state->least_less_one, range.least_less_one);
  }
  meet_team();
  const ValueRange<Element> whole{state->most, state->least_less_one};
  meet_team();
  if (thread_of_team() == 0) state->most = 0u, state->least_less_one = ~0u;
  return whole;
}

}  // namespace convswap::toeplitz
