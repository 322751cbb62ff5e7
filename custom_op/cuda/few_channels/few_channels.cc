// Implicit GEMM on the tensor cores for few input channels.
//
// With few channels a convolution reads little, writes much and multiplies little, so it should take as long
// as its output takes to write. The obstacle is the work around the multiplication. im2col fetches each input
// from shared memory once per filter tap, computes an address for each fetch and moves the value to the mma's
// operand layout. Here M is pixels and N is filters; a *filter* is the weights of one output channel. K runs
// over *bundles* of two or four filter rows (c, r), four bundles per k-step. The taps s of a filter row are a
// loop outside the mma:
//
//   once per output tile:     staged[line, column] = the pixels of a bundle, of one half of the tile
//                             and of the other, as float16 in the order of the mma's A operand
//   for each four bundles:    each thread loads the taps + 3 columns that a quad of pixels needs
//     for each tap s:         accumulators[pixel, k] += columns[pixel + s] * w[bundle, s, k]      (mma)
//
// A bundle is up to four channels, or several rows of one channel at a constant distance, whichever fills K
// best. The inner loop has only loads and mma instructions: the 16-byte loads put the operands into the
// registers of the mma's fragments. The outputs of a *quad*, four neighbouring columns, end up in one thread.
// They are stored 16 bytes at a time if rows are aligned, else through shared memory. Columns of a strided
// convolution are staged by *stride phase*, their remainder by the stride. Each stride phase of a filter row
// is then a filter row of its own with unit stride.
//
// If y is NHWC, the columns of neighbouring accumulator tiles are permuted so that a thread has up to 16
// bytes of a pixel's filters side by side. Four threads store 64 bytes of each pixel from registers, or 32
// bytes if filter rows are long and leave no registers for four accumulator tiles of 16-bit data.
//
// If filters are few, *folds* fill N: neighbouring output rows count as one folded row, and each of them has
// its own folded filter, which is the filter shifted by the stride.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does.
// tensor_core_formats.cuh describes the conversion, and the binade windows for values that one scale cannot
// hold. float16 and bfloat16 data are used as they are. In precision ieee float32 data become two
// float16 each, with three products. Accumulators are float32. Output tiles with an infinity or a NaN are
// computed by the naive loop.
//
// Data flow: persistent blocks. The weights are converted and staged once per block. The raw input of the
// next output tile is copied asynchronously (cp.async) while the tensor cores work on the current one. No
// scratch memory.
//
// The epilogue is fused if it is only an activation that clamps, SiLU or HardSwish. The activation is applied
// after the last pass and the last binade window, when the results are complete.
//
// Limits: 1-D and 2-D; float16, bfloat16 and float32; compute capability 8.0 or newer; filter rows of at most
// 11 taps for each stride phase; a smallest output tile that fits into shared memory; y in NHWC with one
// group of at least five filters. All channels are staged at once, which suits few channels. If they do not
// fit, or if their sums get too long for precision ieee (limits.h), several *passes* over some of the
// channels follow each other. Each pass reads and writes the output again, so only float32 data may have
// several.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/few_channels/arguments.h"
#include "cuda/few_channels/family.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"

namespace convswap {
namespace few_channels {
namespace {

// The folded problem of a pass.
ConvProblem folded_problem_of(const ConvProblem& problem, const Pass& pass) {
  return folded_problem(problem_with_channels(problem, pass.channels), pass.tiling.folds);
}

const KernelRegistration registration({.header = "cuda/few_channels/kernel.cuh",
                                       .instances = instance_names("few_channels::kernel", kTensorCoreFormats,
                                                                   kInstances),
                                       .min_capability = 80});

struct Family {
  using Tiling = Pass;
  using Arguments = few_channels::Arguments<void>;
  static std::string name(const Pass&) { return "few_channels"; }

  static std::string kernel_name(const ConvProblem& problem, const Pass& pass) {
    const int bundle = FilterBundles(folded_problem_of(problem, pass)).size;
    return instance_name(
        "few_channels::kernel", tensor_core_format(problem),
        Instance{bundle, pass.tiling.taps, pass.tiling.accumulator_tiles, is_nhwc(problem)}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Pass& pass) {
    const few_channels::Tiling& tiling = pass.tiling;
    const ConvProblem folded = folded_problem_of(problem, pass);
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.naive_conv = naive_conv_of(problem);
    to.log2_folds = std::countr_zero(static_cast<unsigned>(tiling.folds));
    to.folded_filters = narrow(folded.filters_per_group());
    to.folded_filter_height = narrow(folded.filter[1]);
    to.folded_stride_height = narrow(folded.stride[1]);
    to.folded_rows = narrow(folded.output[1]);
    to.first_channel = narrow(pass.first_channel);
    to.pass_channels = narrow(pass.channels);
    to.accumulates = pass.first_channel > 0;
    to.activates = problem.epilogue.activation != Activation::none &&
                   pass.first_channel + pass.channels == problem.channels_per_group();
    to.epilogue_params = epilogue_params_of(problem.epilogue);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();

    to.tile_images = tiling.tile_images();
    to.tile_rows = tiling.tile_rows();
    to.half_images = tiling.halves_images ? tiling.images : 0;
    to.half_rows = tiling.halves_images ? 0 : tiling.rows;
    const int64_t half_rows_of_y =
        is_nhwc(problem)
            ? (to.half_images * problem.output[1] + to.half_rows) * problem.out_channels
            : to.half_images * problem.out_channels * problem.output[1] + to.half_rows * tiling.folds;
    to.half_offset = narrow(half_rows_of_y * problem.output[2]);
    to.images_per_half = tiling.images;
    to.rows_per_half = tiling.rows;
    to.quads_per_half_row = tiling.quads;
    to.row_tiles = FastDivisor(narrow(ceil_divide(folded.output[1], to.tile_rows)));
    to.column_tiles = FastDivisor(narrow(ceil_divide(quads_per_output_row(problem), tiling.quads)));
    to.output_tiles = narrow(tiling.tile_count);
    to.quads_per_row = FastDivisor(tiling.quads);
    to.quads_per_image = FastDivisor(tiling.rows * tiling.quads);

    const FilterBundles bundles(folded);
    to.raw_rows = tiling.raw_rows;
    to.raw_columns = tiling.raw_columns;
    to.raw_words = narrow(tiling.raw_words);
    to.part_words = narrow(tiling.part_words);
    to.zero_words = tiling.zero_words;
    to.runs_per_plane = tiling.runs_per_plane;
    to.runs = to.tile_images * to.pass_channels * to.runs_per_plane;
    to.run_elements = tiling.run_elements;
    to.runs_per_plane_divisor = FastDivisor(to.runs_per_plane);
    to.channels_divisor = FastDivisor(to.pass_channels);
    to.warps_per_run = FastDivisor(std::max(1, tiling.warps / to.runs));

    to.bundle_channels = narrow(bundles.channels);
    to.bundle_rows = narrow(bundles.size / bundles.channels);
    to.row_step = narrow(bundles.row_step * problem.dilation[1]);
    to.channel_blocks = narrow(bundles.channel_blocks);
    to.stride_phases = narrow(bundles.stride_phases);
    to.line_words = tiling.line_words;
    to.channel_block_words = narrow(tiling.channel_block_words);
    to.columns = FastDivisor(tiling.columns);
    to.lines_per_channel_block = FastDivisor(tiling.lines);
    to.lines = tiling.images * to.channel_blocks * tiling.lines;
    to.channel_blocks_divisor = FastDivisor(to.channel_blocks);
    to.stride_phases_divisor = FastDivisor(to.stride_phases);

    to.bundles = narrow(bundles.count);
    to.steps = narrow(bundles.steps());
    to.shared = tiling.shared;
    to.filter_blocks = tiling.filter_blocks;
    to.blocks_per_group = tiling.blocks_per_group;
    to.filter_block_divisor = FastDivisor(tiling.filter_blocks);
    to.store_width = store_width(problem, tiling.accumulator_tiles);
    const int64_t plane = problem.output_size();
    const auto offset_of = [&](int filter) {
      return filter / tiling.folds * plane + filter % tiling.folds * problem.output[2];
    };
    for (int i = 0; i < kMmaN; ++i) {
      if (i % 2 == 0) to.even_filters[i / 2] = static_cast<unsigned>(offset_of(i));
      if (i % tiling.folds == 0) to.first_fold_mask |= 1u << i;
    }
    to.odd_filter = static_cast<unsigned>(offset_of(1));
    to.next_filters = offset_of(kMmaN);
    return to;
  }

  static void bind(const ConvProblem& problem, const Pass&, Arguments& to) {
    if (to.accumulates) to.b = nullptr;
    to.copies_16_bytes = reinterpret_cast<uintptr_t>(to.x) % 16 == 0;
    while (to.store_width > 1 && !is_aligned(to.y, problem, to.store_width)) to.store_width /= 2;
  }

  static int threads(const Pass& pass) { return 32 * pass.tiling.warps; }
  static int64_t shared_bytes(const Pass& pass) { return pass.tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Pass& pass,
                      const Launch& launch) {
    const int resident = resident_blocks(launch);
    if (resident == 0) throw std::runtime_error("few_channels: a block does not fit on " + device.name);
    const int64_t rows = problem.group * pass.tiling.blocks_per_group;
    const int64_t slots = int64_t{device.multiprocessors} * resident;
    return {static_cast<unsigned>(grid_columns(pass.tiling.tile_count, rows, slots)),
            static_cast<unsigned>(rows)};
  }

  static std::string describe(const ConvProblem&, const Pass& pass, const Launch& launch) {
    const few_channels::Tiling& tiling = pass.tiling;
    return joined("tiles of ", tiling.tile_images(), " images x ", tiling.tile_rows() * tiling.folds,
                  " rows x ", tiling.quads * kQuad, " columns x ",
                  tiling.filter_blocks * tiling.accumulator_tiles * kMmaN / tiling.folds, " filters (",
                  tiling.accumulator_tiles * kMmaN, " at a time, of ", tiling.folds, " rows each), ",
                  text_of(launch));
  }
};

// All passes of a problem, with their cost.
struct Passes {
  std::vector<Pass> all;
  double cost;  // estimated nanoseconds

  // Names the tilings among those of a problem.
  std::string key() const {
    return all.size() == 1 ? all.front().tiling.key() : joined(all.size(), " passes");
  }
};

double cost_of(const ConvProblem& problem, const Device& device, const Passes& passes) {
  double sum = 0;
  for (const Pass& pass : passes.all) sum += cost_of(problem, device, pass);
  return sum;
}

std::optional<Passes> best_passes(const ConvProblem& problem, const Device& device) {
  Passes passes{passes_of(problem, device), 0};
  if (passes.all.empty() || (passes.all.size() > 1 && problem.type != ElementType::float32)) {
    return std::nullopt;
  }
  passes.cost = cost_of(problem, device, passes);
  return passes;
}

// All tilings of a single pass, in ascending order of cost; or the passes.
std::vector<Passes> cheapest_passes(const ConvProblem& problem, const Device& device) {
  std::vector<Passes> all;
  for (const Tiling& tiling : cheapest_tilings(problem, device)) {
    all.push_back({{{0, problem.channels_per_group(), tiling}}, tiling.cost});
  }
  if (!all.empty()) return all;
  if (std::optional<Passes> passes = best_passes(problem, device)) all.push_back(*std::move(passes));
  return all;
}

// A plan with one launch per pass, in the order of the channels.
class PassesPlan final : public Plan {
 public:
  PassesPlan(const ConvProblem& problem, const Device& device, const Passes& passes) {
    for (const Pass& pass : passes.all)
      passes_.push_back(std::make_unique<KernelPlan<Family>>(problem, device, pass));
  }

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Passes& passes) {
    std::vector<std::string> names;
    for (const Pass& pass : passes.all) {
      std::string name = Family::kernel_name(problem, pass);
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
    return names;
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    for (const auto& pass : passes_) pass->run(tensors, execution);
  }

  std::vector<KernelFacts> kernels() const override {
    std::vector<KernelFacts> facts;
    for (const auto& pass : passes_) facts.push_back(pass->kernels().front());
    return facts;
  }

  std::string describe() const override {
    const std::string each = passes_.front()->describe();
    return passes_.size() == 1 ? each : joined(passes_.size(), " passes, each ", each);
  }

 private:
  std::vector<std::unique_ptr<Plan>> passes_;
};

class FewChannels final : public AlgorithmByTiling<PassesPlan, best_passes, cheapest_passes> {
 public:
  std::string_view name() const override { return "few_channels"; }
  bool rounds_depthwise() const override { return true; }
  bool takes_layouts(const ConvProblem& problem) const override {
    // Fewer filters are folded, and a lane's two filters then lie in two rows of y. Two rows of y are the
    // smallest tile.
    return problem.layouts.input == Layout::nchw && problem.group == 1 && problem.out_channels > kMmaN / 2 &&
           2 * problem.output[2] * problem.out_channels <= kMaxIndex;
  }
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return !epilogue.has_residual && epilogue.pool.kind == PoolKind::none &&
           (only_clamps(epilogue) || is_swish(epilogue));
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its smallest tile, one channel of a filter's reach, does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_1d_or_2d(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_capability(80, device); !reason.empty()) return reason;
    // The kernel's indices inside an image have 32 bits. even_filters holds the offset across six planes of
    // eight filters as an unsigned 32-bit number.
    std::string reason = why_not_32_bit_indices(
        {problem.batch, problem.in_channels, problem.out_channels, problem.output_size() * 3 / 2,
         padded_input(problem, 1) + problem.stride[1], padded_input(problem, 2) + problem.stride[2],
         problem.channels_per_group() * problem.filter_size() * 16});
    if (!reason.empty()) return reason;
    const FilterBundles bundles(problem);
    if (bundles.taps > kMaxTaps) {
      return joined("filter rows of ", problem.filter[2], " taps at stride ", problem.stride[2],
                    " are wider than its ", kMaxTaps);
    }
    if (loses_accuracy(problem_with_channels(problem, 1), 1, device)) {
      return joined("sums over a filter of ", problem.filter[1], " x ", problem.filter[2],
                    " taps are too long for its precision ieee");
    }
    return {};
  }
};

}  // namespace
}  // namespace few_channels

const Algorithm& cuda_few_channels() {
  static const few_channels::FewChannels algorithm;
  return algorithm;
}

}  // namespace convswap
