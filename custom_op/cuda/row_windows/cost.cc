// Chooses the band that a block of row_windows takes at a time, and how many output rows its products have:
// the cheapest by estimate, without any measurement.

#include <algorithm>
#include <cmath>
#include <set>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/shared_layout.h"
#include "cuda/row_windows/family.h"

namespace convswap::row_windows {
namespace {

// Numbers of a window.
int64_t window_of(const ConvProblem& problem) { return kWindowBytes / bytes_per_element(problem.type); }

// Windows had better begin where words can be loaded, and pairs of them; not for that are there more windows
// of a filter's row.
int64_t lead_of(const ConvProblem& problem) {
  const int64_t window = window_of(problem), taps = problem.filter[2];
  const int64_t most = round_up(taps, window) - taps;
  // Two: a pair by one load, or as many as can be.
  const auto words_loaded = [&](int64_t lead) {
    switch (loading_of(problem, lead, kWordsOfPair)) {
      case Loading::elements:
        return 0;
      case Loading::word_steps:
      case Loading::two_word_steps:
        return 1;
      default:
        return 2;
    }
  };
  int64_t best = 0;
  for (int64_t lead = 1; lead <= most; ++lead) {
    if (words_loaded(lead) > words_loaded(best)) best = lead;
  }
  return best;
}

int64_t windows_across(const ConvProblem& problem) {
  return ceil_divide(problem.filter[2] + lead_of(problem), window_of(problem));
}

// The rows of the image that a group of output rows reads, from its first on.
std::vector<int64_t> rows_of(const ConvProblem& problem, int64_t folds) {
  std::set<int64_t> rows;
  for (int64_t fold = 0; fold < folds; ++fold) {
    for (int64_t r = 0; r < problem.filter[1]; ++r) {
      rows.insert(fold * problem.stride[1] + r * problem.dilation[1]);
    }
  }
  return {rows.begin(), rows.end()};
}

// Places from a window of a filter's row to the next.
int64_t places_between_windows(const ConvProblem& problem) {
  return windows_across(problem) == 1 ? 0 : window_of(problem) / problem.stride[2];
}

// Place in a stage of the first window of a row, relative to those of the channel.
int64_t row_offset(const Tiling& tiling, int64_t row) {
  return row % tiling.row_phases * tiling.phase_windows + row / tiling.row_phases * tiling.pitch;
}

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device) : problem_(problem), device_(device) {}

  void search(Candidates<Tiling>& found) const {
    Tiling tiling;
    tiling.lead = lead_of(problem_);
    tiling.filter_blocks = ceil_divide(problem_.filters_per_group(), int64_t{kRows});
    tiling.block_filters = ceil_divide(problem_.filters_per_group(), tiling.filter_blocks);
    for (tiling.folds = 1; tiling.folds * tiling.block_filters <= kRows && tiling.folds <= problem_.output[1];
         tiling.folds *= 2) {
      tiling.row_phases = tiling.folds * problem_.stride[1];
      const std::vector<int64_t> rows = rows_of(problem_, tiling.folds);
      const int64_t windows =
          problem_.channels_per_group() * static_cast<int64_t>(rows.size()) * windows_across(problem_);
      if (windows > kMaxSteps * kWindowsPerStep) continue;
      tiling.steps = ceil_divide(windows, int64_t{kWindowsPerStep});
      const int64_t groups = ceil_divide(problem_.output[1], tiling.folds);
      // As many groups as make another number of bands.
      for (tiling.groups = 1; tiling.groups <= groups; ++tiling.groups) {
        tiling.bands = ceil_divide(groups, tiling.groups);
        if (tiling.groups > 1 && ceil_divide(groups, tiling.groups - 1) == tiling.bands) continue;
        lay_out(tiling, rows);
        if (tiling.shared_bytes > device_.shared_memory_per_block) break;
        tiling.cost = cost_of(problem_, device_, tiling);
        found.add(tiling);
      }
    }
  }

 private:
  // Sets the places of windows, and the parts of shared memory.
  void lay_out(Tiling& tiling, const std::vector<int64_t>& rows) const {
    const int64_t further = (windows_across(problem_) - 1) * places_between_windows(problem_);
    tiling.pitch = problem_.output[2] + further;
    // Results that may be one store are neighbours in a product's columns.
    tiling.pitch = round_up(tiling.pitch, int64_t{max_outputs_per_store(problem_)});
    tiling.phase_windows = (tiling.groups + rows.back() / tiling.row_phases) * tiling.pitch;
    tiling.channel_windows = tiling.row_phases * tiling.phase_windows;
    tiling.band_rows = (tiling.groups - 1) * tiling.row_phases + rows.back() + 1;
    tiling.column_chunks =
        ceil_divide((tiling.groups - 1) * tiling.pitch + problem_.output[2], int64_t{kColumns});
    int64_t last = 0;  // window of a product
    for (const int64_t row : rows) last = std::max(last, row_offset(tiling, row));
    last += (problem_.channels_per_group() - 1) * tiling.channel_windows + further;
    // The last columns' products read beyond the last window.
    tiling.stage_windows = std::max(problem_.channels_per_group() * tiling.channel_windows,
                                    last + tiling.column_chunks * kColumns);

    SharedLayout block(128, device_.shared_memory_per_block);
    SharedOffsets& shared = tiling.shared;
    shared.stages = block.place<unsigned char>(kStages * tiling.stage_windows * kWindowBytes);
    // Behind the stages: memcheck takes a product for reading the columns of both windows in one piece, which
    // for the last would end beyond the stages.
    shared.weights = block.place<unsigned char>(tiling.steps * kWindowsPerStep * kRows * kWindowBytes);
    // Which segments there are is known only with the tensors' addresses.
    shared.segments = block.place<Segment>(segments_of(problem_, tiling, kMinWindowsPerSegment));
    shared.outputs = block.place<int>(tiling.column_chunks * kColumns);
    shared.bias = block.place<float>(tiling.block_filters);
    shared.state = block.place<BlockState>(1);
    tiling.shared_bytes = block.end();
  }

  const ConvProblem& problem_;
  const Device& device_;
};

// Loads of a lane for a segment.
int loads_of_segment(const ConvProblem& problem, Loading loading) {
  if (loading == Loading::elements) return static_cast<int>(window_of(problem));
  const WordWindows words = words_of(loading);
  return words.by_pairs ? 1 : words.loads;
}

}  // namespace

int elements_per_word(const ConvProblem& problem) {
  return 4 / static_cast<int>(bytes_per_element(problem.type));
}

int max_outputs_per_store(const ConvProblem& problem) {
  for (const int count : {8, 4, 2}) {
    const bool is_one_store = count * bytes_per_element(problem.type) <= kWindowBytes;
    if (is_one_store && problem.output[2] % count == 0) return count;
  }
  return 1;
}

Loading loading_of(const ConvProblem& problem, int64_t lead, int words) {
  const int word_elements = elements_per_word(problem);
  const auto begins_at = [&](int elements) {
    return problem.input[2] % elements == 0 && (problem.pad_begin[2] + lead) % elements == 0;
  };
  if (words < 1 || !begins_at(word_elements)) return Loading::elements;
  const bool by_pairs = words >= kWordsOfPair && begins_at(kWordsOfPair * word_elements);
  switch (problem.stride[2] * 2 / word_elements) {
    case 1:
      return Loading::half_word_steps;
    case 2:
      return by_pairs ? Loading::word_steps_by_pairs : Loading::word_steps;
    case 4:
      return by_pairs ? Loading::two_word_steps_by_pairs : Loading::two_word_steps;
    case 8:
      return Loading::four_word_steps;
    default:
      return Loading::elements;
  }
}

int64_t segments_of(const ConvProblem& problem, const Tiling& tiling, int windows_per_segment) {
  return round_up(problem.channels_per_group() * tiling.band_rows *
                      ceil_divide(tiling.pitch, int64_t{windows_per_segment}),
                  int64_t{kSegmentMultiple});
}

int64_t windows_per_filter(const ConvProblem& problem) {
  return problem.channels_per_group() * problem.filter[1] * windows_across(problem);
}

bool can_lay_out_windows(const ConvProblem& problem) {
  return windows_across(problem) == 1 || window_of(problem) % problem.stride[2] == 0;
}

StepWindows step_windows_of(const ConvProblem& problem, const Tiling& tiling) {
  struct Window {
    DepthWindow taps;
    int64_t offset;
  };
  std::vector<Window> windows;
  for (int64_t channel = 0; channel < problem.channels_per_group(); ++channel) {
    for (const int64_t row : rows_of(problem, tiling.folds)) {
      for (int64_t i = 0; i < windows_across(problem); ++i) {
        windows.push_back({{static_cast<short>(channel), static_cast<short>(row),
                            static_cast<short>(i * window_of(problem) - tiling.lead)},
                           channel * tiling.channel_windows + row_offset(tiling, row) +
                               i * places_between_windows(problem)});
      }
    }
  }
  // The second of a product is behind the first, or the same.
  std::ranges::sort(windows, {}, &Window::offset);
  if (windows.size() % kWindowsPerStep != 0) windows.push_back({{-1, 0, 0}, windows.back().offset});
  StepWindows steps;
  for (std::size_t i = 0; i < windows.size(); i += kWindowsPerStep) {
    steps.depth.push_back(windows[i].taps);
    steps.depth.push_back(windows[i + 1].taps);
    steps.offsets.push_back(static_cast<unsigned>(windows[i].offset) |
                            static_cast<unsigned>(windows[i + 1].offset - windows[i].offset) << 16);
  }
  return steps;
}

// Products, windows and results share a multiprocessor's path to memory, so their times add up. The card's
// memory and L2 cache work beside the multiprocessors.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).row_windows;
  const double grid_rows = to_double(problem.group * tiling.filter_blocks);
  const double multiprocessors = std::max(1, device.multiprocessors);
  const double blocks_across = std::max(1.0, std::floor(multiprocessors / grid_rows));
  const double waves = std::ceil(grid_rows / multiprocessors);
  const double steps = to_double(tiling.steps);
  const double used_rows = to_double(tiling.folds * tiling.block_filters) / kRows;

  // A warp's store writes to eight rows, from four lanes each.
  const int together = max_outputs_per_store(problem);
  constexpr double kStoredRows = 8, kStoredLanes = 4, kAccumulators = kRows * kColumns / kWarpgroup;
  const double row_stores = kStoredRows * used_rows * kAccumulators / together;
  const double activation = kAccumulators * activation_cycles(problem.epilogue, costs_of(device));
  const double chunk =
      costs.chunk + costs.step * steps + costs.store * row_stores + costs.activation * activation;
  const Loading loading = loading_of(problem, tiling.lead, kWordsOfPair);
  const double segments = to_double(segments_of(problem, tiling, windows_per_segment_of(loading)));
  const double band = to_double(tiling.column_chunks) * chunk +
                      segments * (costs.segment + costs.load * loads_of_segment(problem, loading));
  const double bands = std::ceil(to_double(problem.batch * tiling.bands) / blocks_across);
  const double computing = waves * (costs.begin + costs.weights * steps + bands * band);

  const double results = to_double(problem.batch * problem.out_channels * problem.output_size());
  const double inputs =
      to_double(problem.batch * problem.in_channels * problem.input_size() * tiling.filter_blocks);
  const double memory = to_double(bytes_per_element(problem.type)) * (inputs + results) / costs.memory;
  // A store to a part of a sector is a request to the L2 cache. The fewer rows of a product are in use, the
  // less time a request takes.
  const bool has_whole_sectors = together * bytes_per_element(problem.type) >= kWindowBytes;
  const double requests =
      has_whole_sectors ? 0 : results / (kStoredLanes * together) * used_rows * costs.request;
  return costs.launch + std::sqrt(computing * computing + memory * memory + requests * requests);
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  Tiler(problem, device).search(found);
}

}  // namespace convswap::row_windows
