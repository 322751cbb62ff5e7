// The tiling search of implicit_gemm: takes the tiling with the least estimated time.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"
#include "cuda/implicit_gemm/family.h"

namespace convswap::implicit_gemm {
namespace {

// Input rows that the taps of all folds of one output span.
int64_t rows_across(const ConvProblem& problem, int64_t folds) {
  return (folds - 1) * problem.stride[1] + (problem.filter[1] - 1) * problem.dilation[1] + 1;
}

// Half steps along the GEMM depth: for each channel block, the taps of the rows that any fold reads. In the
// half-filled channel block, a half step covers two rows or two taps.
std::vector<HalfStep> half_steps_of(const ConvProblem& problem, const Tiling& tiling) {
  const int64_t rows = rows_across(problem, tiling.folds);
  // One row more, so that the last row can be paired.
  std::vector<bool> is_row_read(rows + 1);
  for (int64_t fold = 0; fold < tiling.folds; ++fold) {
    for (int64_t r = 0; r < problem.filter[1]; ++r) {
      is_row_read[fold * problem.stride[1] + r * problem.dilation[1]] = true;
    }
  }
  std::vector<HalfStep> half_steps;
  for (int64_t channel_block = 0; channel_block < tiling.channel_blocks; ++channel_block) {
    const bool is_half = 2 * channel_block == tiling.half_chunk;
    const int64_t down = is_half && tiling.pairs_rows ? 2 : 1;
    const int64_t across = is_half && !tiling.pairs_rows && problem.dilation[2] == 1 ? 2 : 1;
    for (int64_t row = 0; row < rows; row += down) {
      if (!is_row_read[row] && !(down == 2 && is_row_read[row + 1])) continue;
      for (int64_t s = 0; s < problem.filter[2]; s += across) {
        half_steps.push_back({static_cast<short>(channel_block), static_cast<short>(row),
                              static_cast<short>(s * problem.dilation[2])});
      }
    }
  }
  half_steps.resize(round_up(half_steps.size(), 2 * kUnrolledSteps), {-1, 0, 0});
  return half_steps;
}

// Lower bound of the steps of all tilings: the steps of one fold, as if its rows could be paired.
int64_t steps_lower_bound(const ConvProblem& problem) {
  // A chunk fills half of a vector.
  const int64_t chunks = ceil_divide(problem.channels_per_group(), kChunkChannels);
  const int64_t taps = problem.filter[1] * problem.filter[2];
  const int64_t column_pair_steps =
      problem.dilation[2] == 1 ? problem.filter[1] * ceil_divide(problem.filter[2], 2) : taps;
  const int64_t half_block_steps =
      std::min(column_pair_steps, ceil_divide(problem.filter[1], 2) * problem.filter[2]);
  return round_up(ceil_divide(chunks / 2 * taps + chunks % 2 * half_block_steps, 2), kUnrolledSteps);
}

// Time of two things that overlap: longer than either if they take about as long.
double overlapped(double a, double b) {
  const double a_squared = a * a, b_squared = b * b;
  return std::sqrt(std::sqrt(a_squared * a_squared + b_squared * b_squared));
}

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device) : problem_(problem), device_(device) {}

  void search(Candidates<Tiling>& found) const {
    Tiling tiling = start();
    for (tiling.folds = 1; can_fold(tiling); tiling.folds *= 2) {
      choose_row_mapping(tiling);
      for (const bool pairs_rows : {false, true}) {
        if (!set_folding(tiling, pairs_rows)) continue;
        for (const int tiles : {kMaxTiles, kFewerTiles}) {
          set_tiles(tiling, tiles);
          for (tiling.stages = 1; tiling.stages <= kMaxStages; ++tiling.stages) {
            for (tiling.buffers = 1; tiling.buffers <= kMaxBuffers; ++tiling.buffers) {
              if (!fit_shared_memory(tiling)) continue;
              tiling.cost = cost_of(problem_, device_, tiling);
              found.add(tiling);
            }
          }
        }
      }
    }
  }

  int64_t min_steps() const {
    const int64_t lower_bound = steps_lower_bound(problem_);
    if (lower_bound > kMaxSteps) return lower_bound;
    std::optional<int64_t> minimum;
    Tiling tiling = start();
    // Folds that span more rows than shared memory has vectors do not fit, and counting their steps is slow.
    for (tiling.folds = 1; can_fold(tiling) && rows_across(problem_, tiling.folds) <= max_vectors();
         tiling.folds *= 2) {
      tiling.row_phases = tiling.folds * problem_.stride[1];
      for (const bool pairs_rows : {false, true}) {
        if (pairs_rows && !can_pair_rows(tiling)) continue;
        tiling.pairs_rows = pairs_rows;
        tiling.half_steps = half_steps_of(problem_, tiling);
        minimum = std::min(minimum.value_or(tiling.k_steps()), tiling.k_steps());
      }
    }
    return minimum.value_or(lower_bound);
  }

 private:
  int64_t max_vectors() const { return device_.shared_memory_per_block / kVectorBytes; }

  bool can_fold(const Tiling& tiling) const {
    return tiling.folds * tiling.filters <= kWgmmaM && tiling.folds <= problem_.output[1];
  }

  // The fields that are the same for all tilings of the problem.
  Tiling start() const {
    Tiling tiling;
    tiling.filter_blocks = static_cast<int>(ceil_divide(problem_.filters_per_group(), kWgmmaM));
    tiling.filters = static_cast<int>(ceil_divide(problem_.filters_per_group(), tiling.filter_blocks));
    tiling.chunks = ceil_divide(problem_.channels_per_group(), kChunkChannels);
    tiling.channel_blocks = ceil_divide(tiling.chunks, 2);
    tiling.half_chunk = tiling.chunks % 2 == 1 ? tiling.chunks - 1 : -1;
    tiling.column_phases = problem_.stride[2];
    return tiling;
  }

  // Sets the fields that depend on the number of folds and on whether rows are paired. Returns false if rows
  // cannot be paired, sums take too many wgmmas, or an image does not fit.
  bool set_folding(Tiling& tiling, bool pairs_rows) const {
    const int64_t limit = max_vectors();
    tiling.row_phases = tiling.folds * problem_.stride[1];
    if (pairs_rows && !can_pair_rows(tiling)) return false;
    tiling.pairs_rows = pairs_rows;
    tiling.folded_rows = ceil_divide(problem_.output[1], tiling.folds);
    const int64_t extra_rows = (rows_across(problem_, tiling.folds) - 1) / tiling.row_phases;
    const int64_t extra_columns = (problem_.filter[2] - 1) * problem_.dilation[2] / tiling.column_phases;
    tiling.plane_rows = tiling.folded_rows + extra_rows;
    tiling.pitch = problem_.output[2] + extra_columns;
    const int64_t planes = tiling.row_phases * tiling.column_phases;
    if (tiling.plane_rows > limit || tiling.pitch > limit || planes > limit) return false;
    tiling.plane_vectors = tiling.plane_rows * tiling.pitch;
    if (tiling.plane_vectors > limit || planes * tiling.plane_vectors > limit) return false;
    tiling.channel_block_vectors = planes * tiling.plane_vectors;
    // Checked before half_steps_of, to bound the length of its list.
    if (tiling.channel_blocks * tiling.channel_block_vectors > limit ||
        steps_lower_bound(problem_) > kMaxSteps)
      return false;
    tiling.half_steps = half_steps_of(problem_, tiling);
    if (tiling.k_steps() > max_steps(problem_, device_)) return false;
    tiling.part_vectors = tiling.channel_blocks * tiling.channel_block_vectors -
                          (tiling.pairs_rows ? tiling.channel_block_vectors / 2 : 0);
    tiling.shared_steps =
        tiling.k_steps() - tiling.register_steps() + (parts_of(problem_) - 1) * tiling.k_steps();
    tiling.stage_bytes = round_up(
        std::min<int64_t>(kChunkChannels, problem_.channels_per_group()) * problem_.input_size() * size() +
            2 * kAlignment,
        kAlignment);
    return true;
  }

  // Sets the fields that depend on N of the wgmmas.
  void set_tiles(Tiling& tiling, int tiles) const {
    tiling.tiles = tiles;
    tiling.output_tiles =
        ceil_divide((tiling.folded_rows - 1) * tiling.pitch + problem_.output[2], tiling.columns());
    // The last tile's wgmmas read past the last output's vectors.
    int64_t farthest = 1;
    for (const HalfStep& half : tiling.half_steps) farthest = std::max(farthest, tiling.offset_of(half) + 1);
    tiling.slot_vectors = (parts_of(problem_) - 1) * tiling.part_vectors +
                          std::max(tiling.part_vectors, farthest + tiling.output_tiles * tiling.columns());
  }

  bool can_pair_rows(const Tiling& tiling) const {
    return tiling.half_chunk >= 0 && tiling.row_phases % 2 == 0;
  }

  // An smem descriptor has addresses and offsets of 14 bits, in units of 16 bytes.
  int64_t max_shared_bytes() const {
    return std::min<int64_t>(device_.shared_memory_per_block, ((1 << 14) - 64) * kVectorBytes);
  }

  // Lays out shared memory, and returns false if it does not fit. Memory left over by a single result buffer
  // becomes a second buffer of the last filters.
  bool fit_shared_memory(Tiling& tiling) const {
    const auto set_double_buffered_filters = [&](int64_t filters) {
      tiling.double_buffered_filters = static_cast<int>(filters);
      tiling.second_buffer_offset =
          filters == 0 ? 0 : round_up(filters * problem_.output_size() * size() + kAlignment, 128);
      return lay_out_shared_memory(tiling);
    };
    if (!set_double_buffered_filters(0)) return false;
    if (tiling.buffers > 1) return true;
    const int64_t free_bytes =
        (max_shared_bytes() - tiling.shared_bytes) / 128 * 128 - kDoubleBufferGap - kAlignment;
    return set_double_buffered_filters(std::min<int64_t>(
        tiling.filters - 1, std::max<int64_t>(0, free_bytes) / (problem_.output_size() * size())));
  }

  bool lay_out_shared_memory(Tiling& tiling) const {
    const int64_t limit = max_shared_bytes();
    const int64_t second_buffer_bytes =
        tiling.double_buffered_filters == 0 ? 0 : kDoubleBufferGap + tiling.second_buffer_offset;
    tiling.buffer_bytes =
        round_up((tiling.filters * problem_.output_size() + kAlignment / size()) * size(), 128);
    tiling.results_bytes =
        std::max<int64_t>(tiling.buffers * tiling.buffer_bytes + second_buffer_bytes, kStagedBytes);
    if (tiling.results_bytes > limit) return false;
    SharedOffsets& shared = tiling.shared;
    SharedLayout block(128, limit);
    block.place<unsigned>(tiling.shared_steps * kStepUnits * 4);
    shared.slots = block.place<unsigned char>(kSlots * tiling.slot_vectors * kVectorBytes);
    shared.stages = block.place<unsigned char>(tiling.stages * tiling.stage_bytes);
    shared.results = block.place<unsigned char>(tiling.results_bytes);
    // After the results: threads clamp the addresses of columns without an output to this area.
    shared.discard = block.place<unsigned char>(kConsumerThreads * kDiscardBytes);
    shared.pixel_offsets = block.place<PixelOffsets>(problem_.input_size());
    shared.output_offsets = block.place<int>(tiling.output_tiles * kOutputsPerTile);
    shared.row_scales = block.place<RowScale>(kConsumerWarpgroups * kWgmmaM);
    shared.filter_tops = block.place<int>(tiling.filters);
    shared.state = block.place<BlockState>(1);
    tiling.shared_bytes = block.end();
    return block.end() <= limit;
  }

  // Chooses filter and fold of each accumulator row. A warp writes the results of eight rows at once. Each
  // row in turn takes the filter and fold with the fewest bank conflicts with the previous rows of its eight.
  void choose_row_mapping(Tiling& tiling) const {
    constexpr int kBanks = 32;
    tiling.row_mapping.fill({-1, 0});
    tiling.bank_cycles = 0;
    const auto bank = [&](const RowMapping& mapping, int i) {
      const int64_t element =
          mapping.filter * problem_.output_size() + mapping.fold * problem_.output[2] + 2 * i;
      return element * size() / 4 % kBanks;
    };
    std::vector<RowMapping> unassigned;
    for (int fold = 0; fold < tiling.folds; ++fold) {
      for (int filter = 0; filter < tiling.filters; ++filter) {
        unassigned.push_back({static_cast<short>(filter), static_cast<short>(fold)});
      }
    }
    for (int row = 0; !unassigned.empty(); row += 8) {
      std::array<int, kBanks> bank_requests{};
      for (int i = 0; i < 8 && !unassigned.empty(); ++i) {
        const auto conflicts = [&](const RowMapping& mapping) {
          int count = 0;
          for (int j = 0; j < 4; ++j) count += bank_requests[bank(mapping, j)];
          return count;
        };
        const auto best =
            std::min_element(unassigned.begin(), unassigned.end(),
                             [&](const auto& a, const auto& b) { return conflicts(a) < conflicts(b); });
        for (int j = 0; j < 4; ++j) ++bank_requests[bank(*best, j)];
        tiling.row_mapping[row + i] = *best;
        unassigned.erase(best);
      }
      tiling.bank_cycles += *std::max_element(bank_requests.begin(), bank_requests.end());
    }
  }

  int64_t size() const { return bytes_per_element(problem_.type); }

  const ConvProblem& problem_;
  const Device& device_;
};

}  // namespace

int64_t Tiling::offset_of(const HalfStep& half) const {
  if (half.channel_block < 0) return 0;
  const int64_t rows = pairs_rows && 2 * half.channel_block == half_chunk ? 2 : 1;  // in one vector
  const int64_t plane = half.row % row_phases / rows * column_phases + half.column % column_phases;
  return half.channel_block * channel_block_vectors + plane * plane_vectors + half.row / row_phases * pitch +
         half.column / column_phases;
}

// Persistent blocks compute image after image. Producers prepare an image while consumers compute the
// previous one. Memory bounds all blocks together.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).implicit_gemm;
  const double multiprocessors = std::max(1, device.multiprocessors);
  const double parts = parts_of(problem), steps = to_double(tiling.k_steps());
  const double chunks = to_double(tiling.chunks), output_tiles = to_double(tiling.output_tiles);

  const double columns = to_double(tiling.tiles) / kMaxTiles;
  const double multiplying = costs.output_tile + columns * costs.step * steps * terms_of(problem);
  const double writing =
      columns * costs.bank_cycle * tiling.bank_cycles / (writes_pairs(problem, tiling) ? 2 : 1);
  // Warpgroups alternate: one writes while the other multiplies.
  const double computing = output_tiles * std::max(multiplying, (multiplying + writing) / 2);
  const double storing = multiprocessors / costs.store * to_double(tiling.buffer_bytes);

  const double rounds = to_double(ceil_divide(problem.input_size(), kPixelsInFlight * kProducerThreads));
  const double channels = to_double(problem.channels_per_group()) / chunks;
  const double converting = costs.chunk + rounds * parts * (costs.pixels + costs.channel * channels);
  const double loading = multiprocessors / costs.load * to_double(tiling.stage_bytes);
  // Producers wait for loads, of which as many are in flight as there are stages.
  const double chunk = std::max(converting, (converting + loading) / tiling.stages);

  // Consumers slow down while producers convert, and wait for stores from a single buffer.
  const double unbuffered =
      tiling.buffers == 1 ? 1 - to_double(tiling.double_buffered_filters) / tiling.filters : 0;
  // Fewer than three stages do not hide all loads of an image of several chunks.
  const double exposed = chunks > 1 && tiling.stages < kMaxStages ? costs.exposed * chunks * loading : 0;
  const double image =
      overlapped(chunks * chunk, computing + chunks * converting + unbuffered * storing + exposed);
  const double only_image = loading + converting + (chunks - 1) * chunk + computing + storing;

  const double blocks_per_image = to_double(problem.group * tiling.filter_blocks);
  const double images_in_parallel = std::max(1.0, std::floor(multiprocessors / blocks_per_image));
  const double images = std::ceil(to_double(problem.batch) / images_in_parallel);
  const double waves = std::ceil(blocks_per_image / multiprocessors);
  const double block = costs.block + costs.step_weights * steps * parts + costs.filter * tiling.filters;
  const double blocks = waves * (block + only_image + (images - 1) * image);
  const double bytes = to_double(problem.batch * bytes_per_element(problem.type) *
                                 (problem.in_channels * problem.input_size() * tiling.filter_blocks +
                                  problem.out_channels * problem.output_size()));
  return costs.launch + overlapped(blocks, bytes / costs.memory);
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  Tiler(problem, device).search(found);
}

bool writes_pairs(const ConvProblem& problem, const Tiling& tiling) {
  return problem.output[2] % 2 == 0 && tiling.pitch % 2 == 0;
}

int64_t min_steps(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).min_steps();
}

int64_t max_steps(const ConvProblem& problem, const Device& device) {
  return parts_of(problem) > 1 ? std::min<int64_t>(kMaxSteps, max_ieee_products(device)) : kMaxSteps;
}

}  // namespace convswap::implicit_gemm
