// Chooses what a block of few_channels does: the cheapest by estimate among hundreds of candidates, without
// any measurement. It takes tens of microseconds, for very large images up to a millisecond, once per shape.

#include "cuda/few_channels_tiling.h"

#include <algorithm>
#include <optional>

#include "cuda/few_channels_layout.h"

namespace convswap {
namespace {

constexpr int kMostTiles = 2;
constexpr int kMostQuads = 1 << 14;

// Coordinates and tile numbers, and the sums of two of them, fit into the kernel's 32 bits.
constexpr int64_t kMostIndex = 1 << 30;
constexpr int64_t kMostGridRows = 65535;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The taps of the kernel that serves filter rows of `taps`. The common odd widths have kernels of their own;
// the others take the next larger one that tolerates shorter rows. Every kernel costs compile time and size.
FewChannelsTiling kernel_for(const FilterRows& rows) {
  FewChannelsTiling tiling;
  const bool is_exact = rows.taps == 1 || rows.taps == 3 || rows.taps == 5 || rows.taps == 7;
  if (is_exact && !rows.ragged) {
    tiling.taps = static_cast<int>(rows.taps);
    return tiling;
  }
  tiling.ragged = true;
  for (const int taps : {2, 3, 4, 7, kFewChannelsMostTaps}) {
    tiling.taps = taps;
    if (taps >= rows.taps) break;
  }
  return tiling;
}

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device)
      : problem_(problem),
        device_(device),
        filter_rows_(problem),
        quads_per_row_(few_channels_quads_per_row(problem)) {}

  // The cheapest tiling that fits; empty where none does.
  std::optional<FewChannelsTiling> best() const {
    FewChannelsTiling best;
    FewChannelsTiling tiling = kernel_for(filter_rows_);
    for (tiling.tiles = 1; tiling.tiles <= kMostTiles; ++tiling.tiles) {
      const int64_t blocks = ceil_divide(problem_.filters_per_group(), 16 * tiling.tiles);
      for (tiling.warps = 8; tiling.warps <= 16; tiling.warps *= 2) {
        for (int64_t splits = 1; splits < blocks; splits *= 2) try_quads(tiling, blocks, splits, best);
        try_quads(tiling, blocks, blocks, best);
      }
    }
    if (best.shared_bytes == 0) return std::nullopt;
    return best;
  }

 private:
  void try_quads(FewChannelsTiling tiling, int64_t blocks, int64_t splits, FewChannelsTiling& best) const {
    tiling.filter_blocks = static_cast<int>(ceil_divide(blocks, splits));
    tiling.filter_splits = static_cast<int>(ceil_divide(blocks, tiling.filter_blocks));
    if (problem_.group * tiling.filter_splits > kMostGridRows) return;
    for (int64_t tiles = 1; tiles <= quads_per_row_; tiles *= 2) {
      tiling.quads = static_cast<int>(ceil_divide(quads_per_row_, tiles));
      if (tiling.quads <= kMostQuads) try_rows(tiling, best);
    }
  }

  void try_rows(FewChannelsTiling tiling, FewChannelsTiling& best) const {
    const int64_t most = std::min<int64_t>(problem_.output[1], kMostQuads / tiling.quads);
    // Beyond a few rows one more makes little difference.
    for (int64_t rows = 1; rows <= most;
         rows = rows < most ? std::min(most, rows + 1 + rows / 32) : most + 1) {
      tiling.rows = static_cast<int>(rows);
      tiling.images = 1;
      if (!measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
      if (rows == problem_.output[1]) try_images(tiling, best);
    }
  }

  void try_images(FewChannelsTiling tiling, FewChannelsTiling& best) const {
    if (tiling.quads != quads_per_row_) return;
    const int64_t image_elements = problem_.out_channels * problem_.output_size();
    const int64_t most = std::min<int64_t>({16, problem_.batch, kMostIndex / image_elements});
    for (int images = 2; images <= most; ++images) {
      tiling.images = images;
      if (images * tiling.rows * tiling.quads > kMostQuads || !measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
    }
  }

  int64_t tiles_of(const FewChannelsTiling& tiling) const {
    return ceil_divide(problem_.batch, tiling.images) * ceil_divide(problem_.output[1], tiling.rows) *
           ceil_divide(quads_per_row_, tiling.quads);
  }

  // Fills in the sizes and the cost; false where the tile does not fit.
  bool measure(FewChannelsTiling& tiling) const {
    const int64_t raw_rows =
        (tiling.rows - 1) * problem_.stride[1] + (problem_.filter[1] - 1) * problem_.dilation[1] + 1;
    // Whole quads read up to taps + 3 columns, in pieces of two.
    const int64_t beyond = std::max<int64_t>((tiling.taps + 4) / 2 * 2 - kQuad, filter_rows_.reach);
    const int64_t columns = ceil_divide(tiling.quads * kQuad + beyond, 4) * 4;
    const int64_t raw_columns = columns * problem_.stride[2];
    // Each of these alone takes at least so many words; beyond, the products below might not fit into 64
    // bits.
    const int64_t most = device_.shared_memory_per_block;
    if (raw_rows > most || columns > most || filter_rows_.phases > most || filter_rows_.pairs > most)
      return false;
    if (raw_columns > kMostIndex || tiles_of(tiling) > kMostIndex) return false;

    tiling.raw_rows = static_cast<int>(raw_rows);
    tiling.raw_columns = static_cast<int>(raw_columns);
    tiling.columns = static_cast<int>(columns);
    tiling.line_words = 2 * tiling.columns + 4;  // 4 modulo 8, see quad_of_column
    // A row may start anywhere within its first 16 bytes.
    tiling.raw_chunks = static_cast<int>(ceil_divide(std::min(raw_columns, problem_.input[2]) + 3, 4));
    const int64_t lines = (raw_rows - filter_rows_.row_distance) * filter_rows_.phases;
    // The first line of a plane continues the banks where the last filter row of the one before it ended.
    const int64_t wanted = problem_.filter[1] * filter_rows_.phases * tiling.line_words % 32;
    tiling.plane_words = lines * tiling.line_words;
    tiling.plane_words += (wanted - tiling.plane_words % 32 + 32) % 32;
    const int64_t raw_lines = tiling.images * problem_.channels_per_group() * raw_rows;
    if (raw_lines > most) return false;
    tiling.raw_words = raw_lines * tiling.raw_chunks * 4;
    const int64_t weight_words =
        128ll * tiling.filter_blocks * filter_rows_.steps() * tiling.taps * tiling.tiles;
    tiling.shared_bytes =
        filter_rows_.steps() * kPairsPerStep * static_cast<int64_t>(sizeof(FilterPair)) +
        4 * (weight_words + tiling.images * filter_rows_.planes * tiling.plane_words + tiling.raw_words +
             tiling.warps * kStagedWords) +
        tiling.images * filter_rows_.planes * lines * static_cast<int64_t>(sizeof(LineSource));
    if (tiling.shared_bytes > device_.shared_memory_per_block) return false;
    tiling.cost = cost(tiling);
    return true;
  }

  // Cycles of a multiprocessor, roughly: enough to rank tilings, not to predict times.
  double cost(const FewChannelsTiling& tiling) const {
    const int tiles = tiling.tiles;
    const double multiply = filter_rows_.steps() * (tiling.taps * tiles * 12.0 + 20.0);
    const double store = (problem_.output[2] % kQuad == 0 ? 60.0 : 160.0) * tiles + 100;
    const int64_t units = ceil_divide(int64_t{tiling.images} * tiling.rows * tiling.quads, kQuadsPerUnit);
    const int64_t rounds = ceil_divide(units * tiling.filter_blocks, tiling.warps);
    const double staging = tiling.images * filter_rows_.planes * tiling.plane_words / 128.0 * 12.0;
    const double tile = rounds * tiling.warps * (multiply + store) + staging + 1500;
    // One resident block leaves the tensor cores idle at its barriers.
    const int resident = std::clamp<int>(
        static_cast<int>(device_.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024)), 1,
        16 / tiling.warps);
    const int64_t rows = problem_.group * tiling.filter_splits;
    const int64_t slots = int64_t{device_.multiprocessors} * resident;
    const int64_t columns = few_channels_grid_columns(tiles_of(tiling), rows, slots);
    const int64_t waves = ceil_divide(rows * columns, slots) * ceil_divide(tiles_of(tiling), columns);
    const double idle = resident * tiling.warps < 16 ? 1.6 : resident == 1 ? 1.2 : 1.0;
    return waves * resident * tile * idle;
  }

  const ConvProblem problem_;
  const Device& device_;
  const FilterRows filter_rows_;
  const int64_t quads_per_row_;
};

}  // namespace

FilterRows::FilterRows(const ConvProblem& problem) {
  const int64_t width = problem.filter[2];
  const int64_t stride = problem.stride[2];
  const int64_t last = (width - 1) * problem.dilation[2];
  const bool single_taps = problem.dilation[2] != 1;
  phases = std::min(stride, last + 1);
  taps = single_taps ? 1 : ceil_divide(width, stride);
  ragged = taps > 1 && phases > 1 && width % stride != 0;
  reach = last / stride;

  const int64_t per_line = single_taps ? width : phases;
  const int64_t channels = problem.channels_per_group();
  const int64_t rows = problem.filter[1];
  const int64_t by_channels = ceil_divide(channels, 2) * rows * per_line;
  const int64_t by_rows = channels * ceil_divide(rows, 2) * per_line;
  // Paired rows are staged twice, paired channels once.
  pairs_channels = channels > 1 && by_channels <= by_rows;
  pairs = pairs_channels ? by_channels : by_rows;
  planes = pairs_channels ? ceil_divide(channels, 2) : channels;
  row_distance = pairs_channels ? 0 : rows / 2 * problem.dilation[1];
}

int64_t FilterRows::steps() const { return ceil_divide(pairs, kPairsPerStep); }

int64_t few_channels_quads_per_row(const ConvProblem& problem) {
  return ceil_divide(problem.output[2], kQuad);
}

int64_t few_channels_grid_columns(int64_t tiles, int64_t rows, int64_t slots) {
  // Rounded down, every block is resident; rounded up, fewer slots stay empty but some blocks wait.
  const int64_t down = std::max<int64_t>(1, slots / rows);
  const int64_t up = ceil_divide(slots, rows);
  const auto rounds = [&](int64_t columns) {
    return ceil_divide(rows * columns, slots) * ceil_divide(tiles, columns);
  };
  const int64_t columns = rounds(up) < rounds(down) ? up : down;
  // Every block takes the same number of tiles, to within one.
  return ceil_divide(tiles, ceil_divide(tiles, columns));
}

std::vector<FewChannelsPass> few_channels_passes(const ConvProblem& problem, const Device& device) {
  const int64_t all = problem.channels_per_group();
  // As few passes as possible: each reads and writes the output again.
  for (int64_t count = 1; count <= all; ++count) {
    const int64_t channels = ceil_divide(all, count);
    if (count > 1 && channels == ceil_divide(all, count - 1)) continue;
    std::vector<FewChannelsPass> passes;
    for (int64_t first = 0; first < all; first += channels) {
      // Fewer channels in the last pass may be paired another way, which may take more memory.
      const int64_t left = std::min(channels, all - first);
      const bool is_repeated = !passes.empty() && left == channels;
      const std::optional<FewChannelsTiling> tiling =
          is_repeated ? passes.front().tiling : Tiler(with_channels(problem, left), device).best();
      if (!tiling) break;
      passes.push_back({first, left, *tiling});
      if (first + left == all) return passes;
    }
  }
  return {};
}

ConvProblem with_channels(ConvProblem problem, int64_t channels) {
  problem.in_channels = channels * problem.group;
  return problem;
}

}  // namespace convswap
