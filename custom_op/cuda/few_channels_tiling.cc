// Chooses what a block of few_channels does. The choice is by estimated cost over a few hundred candidates,
// so it costs microseconds and no measurement.

#include "cuda/few_channels_tiling.h"

#include <algorithm>

#include "cuda/few_channels_layout.h"

namespace convswap {
namespace {

constexpr int kMostTiles = 2;
constexpr int kMostQuads = 1 << 14;

int ceil_divide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The taps of the kernel that serves filter rows of `taps`. The common odd widths have kernels of their own;
// the others take the next larger one that tolerates shorter rows. Every kernel costs compile time and size.
FewChannelsTiling kernel_for(const FilterRows& rows) {
  FewChannelsTiling tiling;
  const bool is_exact = rows.taps == 1 || rows.taps == 3 || rows.taps == 5 || rows.taps == 7;
  if (is_exact && !rows.ragged) {
    tiling.taps = rows.taps;
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
      : problem_(problem), device_(device), filter_rows_(problem) {
    quads_per_row_ = few_channels_quads_per_row(problem);
  }

  // The cheapest tiling that fits; empty where none does.
  std::optional<FewChannelsTiling> best() const {
    FewChannelsTiling best;
    FewChannelsTiling tiling = kernel_for(filter_rows_);
    for (tiling.tiles = 1; tiling.tiles <= kMostTiles; ++tiling.tiles) {
      const int blocks = ceil_divide(problem_.filters_per_group(), 16 * tiling.tiles);
      for (tiling.warps = 8; tiling.warps <= 16; tiling.warps *= 2) {
        for (int splits = 1; splits < blocks; splits *= 2) try_quads(tiling, blocks, splits, best);
        try_quads(tiling, blocks, blocks, best);
      }
    }
    if (best.shared_bytes == 0) return std::nullopt;
    return best;
  }

 private:
  void try_quads(FewChannelsTiling tiling, int blocks, int splits, FewChannelsTiling& best) const {
    tiling.filter_splits = splits;
    tiling.filter_blocks = ceil_divide(blocks, splits);
    for (int tiles = 1; tiles <= quads_per_row_; tiles *= 2) {
      tiling.quads = ceil_divide(quads_per_row_, tiles);
      try_rows(tiling, best);
    }
  }

  void try_rows(FewChannelsTiling tiling, FewChannelsTiling& best) const {
    const int64_t most = std::min<int64_t>(problem_.output[1], kMostQuads / tiling.quads);
    for (int rows = 1; rows <= most; ++rows) {
      tiling.rows = rows;
      tiling.images = 1;
      if (!measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
      if (rows == problem_.output[1]) try_images(tiling, best);
    }
  }

  void try_images(FewChannelsTiling tiling, FewChannelsTiling& best) const {
    if (tiling.quads != quads_per_row_) return;
    // The kernel's offsets inside a tile have 32 bits.
    const int64_t image_elements = problem_.out_channels * problem_.output_size();
    const int64_t most = std::min<int64_t>({16, problem_.batch, (int64_t{1} << 31) / image_elements});
    for (int images = 2; images <= most; ++images) {
      tiling.images = images;
      if (images * tiling.rows * tiling.quads > kMostQuads || !measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
    }
  }

  // Fills in the sizes and the cost; false where the tile does not fit.
  bool measure(FewChannelsTiling& tiling) const {
    const int64_t raw_rows =
        (tiling.rows - 1) * problem_.stride[1] + (problem_.filter[1] - 1) * problem_.dilation[1] + 1;
    // Whole quads read up to taps + 3 columns, in pieces of two.
    const int beyond = std::max((tiling.taps + 4) / 2 * 2 - kQuad, filter_rows_.reach);
    tiling.columns = ceil_divide(tiling.quads * kQuad + beyond, 4) * 4;
    tiling.line_words = 2 * tiling.columns + 4;  // 4 modulo 8, see quad_of_column
    tiling.raw_rows = static_cast<int>(std::min<int64_t>(raw_rows, 1 << 20));
    const int64_t raw_columns = tiling.columns * problem_.stride[2];
    tiling.raw_columns = static_cast<int>(std::min<int64_t>(raw_columns, 1 << 20));
    // A row may start anywhere within its first 16 bytes.
    tiling.raw_chunks = ceil_divide(std::min<int64_t>(tiling.raw_columns, problem_.input[2]) + 3, 4);
    const int64_t lines = (raw_rows - filter_rows_.row_distance) * filter_rows_.phases;
    // The first line of a plane continues the banks where the last filter row of the one before it ended.
    const int64_t wanted = problem_.filter[1] * filter_rows_.phases * tiling.line_words % 32;
    tiling.plane_words = lines * tiling.line_words;
    tiling.plane_words += (wanted - tiling.plane_words % 32 + 32) % 32;
    tiling.raw_words = tiling.images * problem_.channels_per_group() * raw_rows * tiling.raw_chunks * 4;
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
    const int units = ceil_divide(int64_t{tiling.images} * tiling.rows * tiling.quads, kQuadsPerUnit);
    const int rounds = ceil_divide(int64_t{units} * tiling.filter_blocks, tiling.warps);
    const double staging = tiling.images * filter_rows_.planes * tiling.plane_words / 128.0 * 12.0;
    const double tile = rounds * tiling.warps * (multiply + store) + staging + 1500;
    // One resident block leaves the tensor cores idle at its barriers.
    const int resident = std::clamp<int>(
        static_cast<int>(device_.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024)), 1,
        16 / tiling.warps);
    const int64_t blocks = int64_t{ceil_divide(problem_.batch, tiling.images)} *
                           ceil_divide(problem_.output[1], tiling.rows) *
                           ceil_divide(quads_per_row_, tiling.quads) * tiling.filter_splits * problem_.group;
    const double idle = resident * tiling.warps < 16 ? 1.6 : resident == 1 ? 1.2 : 1.0;
    return ceil_divide(blocks, int64_t{device_.multiprocessors} * resident) * resident * tile * idle;
  }

  const ConvProblem& problem_;
  const Device& device_;
  FilterRows filter_rows_;
  int quads_per_row_ = 0;
};

}  // namespace

FilterRows::FilterRows(const ConvProblem& problem) {
  const int64_t width = problem.filter[2];
  const int64_t stride = problem.stride[2];
  const int64_t last = (width - 1) * problem.dilation[2];
  const bool single_taps = problem.dilation[2] != 1;
  phases = static_cast<int>(std::min(stride, last + 1));
  taps = single_taps ? 1 : ceil_divide(width, stride);
  ragged = taps > 1 && phases > 1 && width % stride != 0;
  reach = static_cast<int>(last / stride);

  const int per_line = static_cast<int>(single_taps ? width : phases);
  const int channels = static_cast<int>(problem.channels_per_group());
  const int rows = static_cast<int>(problem.filter[1]);
  const int by_channels = ceil_divide(channels, 2) * rows * per_line;
  const int by_rows = channels * ceil_divide(rows, 2) * per_line;
  // Paired rows are staged twice, paired channels once.
  pairs_channels = channels > 1 && by_channels <= by_rows;
  pairs = pairs_channels ? by_channels : by_rows;
  planes = pairs_channels ? ceil_divide(channels, 2) : channels;
  row_distance = pairs_channels ? 0 : static_cast<int>(rows / 2 * problem.dilation[1]);
}

int FilterRows::steps() const { return ceil_divide(pairs, kPairsPerStep); }

int few_channels_quads_per_row(const ConvProblem& problem) { return ceil_divide(problem.output[2], kQuad); }

std::optional<FewChannelsTiling> best_few_channels_tiling(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).best();
}

}  // namespace convswap
