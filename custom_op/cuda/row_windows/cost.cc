// Chooses the band that a block of row_windows takes at a time, and how many output rows its products have:
// the cheapest by estimate, without any measurement.

#include <algorithm>
#include <cmath>
#include <set>

#include "conv/arithmetic.h"
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

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device) : problem_(problem), device_(device) {}

  std::vector<Tiling> all() const {
    std::vector<Tiling> found;
    Tiling tiling;
    tiling.lead = lead_of(problem_);
    tiling.filter_blocks = ceil_divide(problem_.filters_per_group(), int64_t{kRows});
    tiling.block_filters = ceil_divide(problem_.filters_per_group(), tiling.filter_blocks);
    for (tiling.folds = 1; tiling.folds * tiling.block_filters <= kRows && tiling.folds <= problem_.output[1];
         tiling.folds *= 2) {
      tiling.row_phases = tiling.folds * problem_.stride[1];
      const std::vector<int64_t> rows = rows_of(tiling.folds);
      const int64_t windows =
          problem_.channels_per_group() * static_cast<int64_t>(rows.size()) * windows_across(problem_);
      if (windows > kMaxSteps * kWindowsPerStep) continue;
      const int64_t groups = ceil_divide(problem_.output[1], tiling.folds);
      // As many groups as make another number of bands.
      for (tiling.groups = 1; tiling.groups <= groups; ++tiling.groups) {
        tiling.bands = ceil_divide(groups, tiling.groups);
        if (tiling.groups > 1 && ceil_divide(groups, tiling.groups - 1) == tiling.bands) continue;
        lay_out(tiling, rows);
        if (tiling.shared_bytes > device_.shared_memory_per_block) break;
        tiling.cost = cost(tiling);
        found.push_back(tiling);
      }
    }
    return found;
  }

 private:
  // The rows of the image that a group of output rows reads, from its first on.
  std::vector<int64_t> rows_of(int64_t folds) const {
    std::set<int64_t> rows;
    for (int64_t fold = 0; fold < folds; ++fold) {
      for (int64_t r = 0; r < problem_.filter[1]; ++r) {
        rows.insert(fold * problem_.stride[1] + r * problem_.dilation[1]);
      }
    }
    return {rows.begin(), rows.end()};
  }

  // Gives the windows their windows, and the parts of shared memory theirs.
  void lay_out(Tiling& tiling, const std::vector<int64_t>& rows) const {
    const int64_t window = window_of(problem_), across = windows_across(problem_);
    // Places from a window of a filter's row to the next.
    const int64_t further = across == 1 ? 0 : window / problem_.stride[2];
    tiling.pitch = problem_.output[2] + (across - 1) * further;
    // So that results that may be one store are neighbours in a product's columns.
    tiling.pitch = round_up(tiling.pitch, int64_t{max_outputs_per_store(problem_)});
    tiling.phase_windows = (tiling.groups + rows.back() / tiling.row_phases) * tiling.pitch;
    tiling.channel_windows = tiling.row_phases * tiling.phase_windows;
    tiling.band_rows = (tiling.groups - 1) * tiling.row_phases + rows.back() + 1;
    tiling.column_chunks =
        ceil_divide((tiling.groups - 1) * tiling.pitch + problem_.output[2], int64_t{kColumns});

    struct Window {
      DepthWindow taps;
      int64_t offset;
    };
    std::vector<Window> windows;
    for (int64_t channel = 0; channel < problem_.channels_per_group(); ++channel) {
      for (const int64_t row : rows) {
        for (int64_t i = 0; i < across; ++i) {
          windows.push_back({{static_cast<short>(channel), static_cast<short>(row),
                              static_cast<short>(i * window - tiling.lead)},
                             channel * tiling.channel_windows +
                                 row % tiling.row_phases * tiling.phase_windows +
                                 row / tiling.row_phases * tiling.pitch + i * further});
        }
      }
    }
    // The second of a product is behind the first, or the same.
    std::ranges::sort(windows, {}, &Window::offset);
    if (windows.size() % kWindowsPerStep != 0) windows.push_back({{-1, 0, 0}, windows.back().offset});
    tiling.depth.clear();
    tiling.step_offsets.clear();
    for (std::size_t i = 0; i < windows.size(); i += kWindowsPerStep) {
      tiling.depth.push_back(windows[i].taps);
      tiling.depth.push_back(windows[i + 1].taps);
      tiling.step_offsets.push_back(static_cast<unsigned>(windows[i].offset) |
                                    static_cast<unsigned>(windows[i + 1].offset - windows[i].offset) << 16);
    }
    // The last columns' products read beyond the last window.
    tiling.stage_windows = std::max(problem_.channels_per_group() * tiling.channel_windows,
                                    windows.back().offset + tiling.column_chunks * kColumns);

    SharedLayout block(128, device_.shared_memory_per_block);
    SharedOffsets& shared = tiling.shared;
    shared.stages = block.place<unsigned char>(kStages * tiling.stage_windows * kWindowBytes);
    // Behind the stages: memcheck takes a product for reading the columns of both windows in one piece, which
    // for the last would end beyond the stages.
    shared.weights = block.place<unsigned char>(tiling.steps() * kWindowsPerStep * kRows * kWindowBytes);
    // Which segments there are is known only with the tensors' addresses.
    shared.segments = block.place<Segment>(segments_of(problem_, tiling, kMinWindowsPerSegment));
    shared.outputs = block.place<int>(tiling.column_chunks * kColumns);
    shared.bias = block.place<float>(tiling.block_filters);
    shared.state = block.place<BlockState>(1);
    tiling.shared_bytes = block.end();
  }

  // Taken from times of an H100, what results take from those of an H200: the multiprocessor's path to shared
  // and global memory is what products that read from it, windows that are put into it and results share, so
  // that their times add up. What a store has of a row is a request to the second-level cache; requests that
  // are no whole sectors take a time of their own, of the whole card.
  double cost(const Tiling& tiling) const {
    constexpr double kLaunch = 1300, kWeights = 2700, kBand = 570, kCyclesOfNanosecond = 1.755;
    constexpr double kRequest = 0.022;  // nanoseconds
    const double rows = to_double(problem_.group * tiling.filter_blocks);
    const double share = std::max(1.0, std::floor(device_.multiprocessors / rows));
    const double waves = std::ceil(rows / std::max(1, device_.multiprocessors));
    const double tiles = to_double(problem_.batch * tiling.bands), steps = to_double(tiling.steps());
    const double chunk = 120 + (is_wide() ? 62 : 76) * steps + storing();
    const Loading loading = loading_of(problem_, tiling.lead, kWordsOfPair);
    const double band =
        to_double(tiling.column_chunks) * chunk +
        to_double(segments_of(problem_, tiling, windows_per_segment_of(loading))) * putting(loading) + kBand;
    const double results = to_double(problem_.batch * problem_.out_channels * problem_.output_size());
    const double elements =
        to_double(problem_.batch * problem_.in_channels * problem_.input_size() * tiling.filter_blocks) +
        results;
    // The first band's windows are not there when the products could begin.
    const double computing =
        waves * (kWeights + 204 * steps + (std::ceil(tiles / share) + 0.36) * band) / kCyclesOfNanosecond;
    return kLaunch + std::hypot(computing, to_double(bytes_per_element(problem_.type)) * elements / 3600,
                                results * requests_of_result() * kRequest);
  }

  // Requests of a result, where they are no whole sectors.
  double requests_of_result() const {
    const int together = max_outputs_per_store(problem_);
    return together * bytes_per_element(problem_.type) < kWindowBytes ? 0.25 / together : 0;
  }

  // Cycles for the results of 128 columns.
  double storing() const {
    const double activation = 64 * activation_cycles(problem_.epilogue, costs_of(device_));
    switch (max_outputs_per_store(problem_)) {
      case 1:
        return 600 + activation;
      case 2:
        return 100 + activation;
      case 4:
        return (is_wide() ? 420 : 100) + activation;
      default:
        return 250 + activation;
    }
  }

  // Cycles for a segment.
  double putting(Loading loading) const {
    switch (loading) {
      case Loading::elements:
        return is_wide() ? 30 : 20;
      case Loading::word_steps:
        return 10;
      case Loading::two_word_steps:
        return 18;
      default:
        return 15;
    }
  }

  bool is_wide() const { return problem_.type == ElementType::float32; }

  const ConvProblem& problem_;
  const Device& device_;
};

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

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  std::vector<Tiling> all = Tiler(problem, device).all();
  std::ranges::stable_sort(all, {}, &Tiling::cost);
  return all;
}

}  // namespace convswap::row_windows
