#include "cuda/few_channels/plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/few_channels/arguments.h"
#include "cuda/few_channels/instances.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"

namespace convswap::few_channels {
namespace {

// What the multiplication takes the pass for.
ConvProblem folded_problem_of(const ConvProblem& problem, const Pass& pass) {
  return folded_problem(problem_with_channels(problem, pass.channels), pass.tiling.folds);
}

const KnownKernels known({.header = "cuda/few_channels/kernel.cuh",
                          .instances = instance_names("few_channels::kernel", kTensorCoreFormats, kInstances),
                          .least_capability = 80});

struct Family {
  using Tiling = Pass;
  using Arguments = few_channels::Arguments<void>;
  static std::string name(const Pass&) { return "few_channels"; }

  static std::string kernel_name(const ConvProblem& problem, const Pass& pass) {
    const int bundle = FilterBundles(folded_problem_of(problem, pass)).size;
    return instance_name("few_channels::kernel", tensor_core_format(problem),
                         Instance{bundle, pass.tiling.taps, pass.tiling.tiles}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Pass& pass) {
    const few_channels::Tiling& tiling = pass.tiling;
    const ConvProblem folded = folded_problem_of(problem, pass);
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.definition = definition_of(problem);
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
    to.following = following_of(problem.epilogue);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();

    to.tile_images = tiling.tile_images();
    to.tile_rows = tiling.tile_rows();
    to.half_images = tiling.halves_images ? tiling.images : 0;
    to.half_rows = tiling.halves_images ? 0 : tiling.rows;
    to.half_offset =
        narrow((to.half_images * problem.out_channels * problem.output[1] + to.half_rows * tiling.folds) *
               problem.output[2]);
    to.places_images = tiling.images;
    to.places_rows = tiling.rows;
    to.places_quads = tiling.quads;
    to.bands = FastDivisor(narrow(ceil_divide(folded.output[1], to.tile_rows)));
    to.column_tiles = FastDivisor(narrow(ceil_divide(quads_per_output_row(problem), tiling.quads)));
    to.tiles = narrow(tiling.tile_count);
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
    to.copy_sharers = FastDivisor(std::max(1, tiling.warps / to.runs));

    to.bundle_channels = narrow(bundles.channels);
    to.bundle_rows = narrow(bundles.size / bundles.channels);
    to.row_step = narrow(bundles.row_step * problem.dilation[1]);
    to.planes = narrow(bundles.planes);
    to.phases = narrow(bundles.phases);
    to.line_words = tiling.line_words;
    to.plane_words = narrow(tiling.plane_words);
    to.columns = FastDivisor(tiling.columns);
    to.lines_per_plane = FastDivisor(tiling.lines);
    to.lines = tiling.images * to.planes * tiling.lines;
    to.planes_divisor = FastDivisor(to.planes);
    to.phases_divisor = FastDivisor(to.phases);

    to.bundles = narrow(bundles.count);
    to.steps = narrow(bundles.steps());
    to.shared = tiling.shared;
    to.filter_blocks = tiling.filter_blocks;
    to.filter_splits = tiling.filter_splits;
    to.filter_block_divisor = FastDivisor(tiling.filter_blocks);
    to.store_width = store_width(problem);
    const int64_t plane = problem.output_size();
    const auto offset_of = [&](int filter) {
      return filter / tiling.folds * plane + filter % tiling.folds * problem.output[2];
    };
    for (int i = 0; i < kFiltersPerTile; ++i) {
      if (i % 2 == 0) to.even_filters[i / 2] = static_cast<unsigned>(offset_of(i));
      if (i % tiling.folds == 0) to.first_folds |= 1u << i;
    }
    to.odd_filter = static_cast<unsigned>(offset_of(1));
    to.next_filters = offset_of(kFiltersPerTile);
    return to;
  }

  static void bind(const ConvProblem& problem, const Pass&, Arguments& to) {
    if (to.accumulates) to.b = nullptr;
    to.copies_16_bytes = reinterpret_cast<uintptr_t>(to.x) % 16 == 0;
    const auto address = reinterpret_cast<uintptr_t>(to.y);
    while (to.store_width > 1 &&
           address % static_cast<uintptr_t>(to.store_width * size_of(problem.type)) != 0) {
      to.store_width /= 2;
    }
  }

  static int threads(const Pass& pass) { return 32 * pass.tiling.warps; }
  static int64_t shared_bytes(const Pass& pass) { return pass.tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem& problem, const Device& device, const Pass& pass,
                         const Launch& launch) {
    const int resident = resident_blocks(launch);
    if (resident == 0) throw std::runtime_error("few_channels: a block does not fit on " + device.name);
    const int64_t rows = problem.group * pass.tiling.filter_splits;
    const int64_t slots = int64_t{device.multiprocessors} * resident;
    return {static_cast<unsigned>(grid_columns(pass.tiling.tile_count, rows, slots)),
            static_cast<unsigned>(rows)};
  }

  static std::string describe(const ConvProblem&, const Pass& pass, const Launch& launch) {
    const few_channels::Tiling& tiling = pass.tiling;
    return "tiles of " + std::to_string(tiling.tile_images()) + " images x " +
           std::to_string(tiling.tile_rows() * tiling.folds) + " rows x " +
           std::to_string(tiling.quads * kQuad) + " columns x " +
           std::to_string(tiling.filter_blocks * tiling.tiles * kFiltersPerTile / tiling.folds) +
           " filters (" + std::to_string(tiling.tiles * kFiltersPerTile) + " at a time, of " +
           std::to_string(tiling.folds) + " rows each), " + std::to_string(launch.grid.x) + " x " +
           std::to_string(launch.grid.y) + " blocks of " + std::to_string(launch.block.x) + " threads, " +
           std::to_string(tiling.shared_bytes) + " bytes of shared memory";
  }
};

class PassesPlan final : public Plan {
 public:
  explicit PassesPlan(std::vector<std::unique_ptr<Plan>> passes) : passes_(std::move(passes)) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    for (const auto& pass : passes_) pass->run(tensors, execution);
  }

  std::vector<KernelFacts> kernels() const override {
    std::vector<KernelFacts> facts;
    for (const auto& pass : passes_) facts.push_back(pass->kernels().front());
    return facts;
  }

  std::string describe() const override {
    return std::to_string(passes_.size()) + " passes, each " + passes_.front()->describe();
  }

 private:
  std::vector<std::unique_ptr<Plan>> passes_;
};

}  // namespace

std::vector<std::string> kernel_names(const ConvProblem& problem, const std::vector<Pass>& passes) {
  std::vector<std::string> names;
  for (const Pass& pass : passes) {
    std::string name = Family::kernel_name(problem, pass);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device,
                                const std::vector<Pass>& passes) {
  std::vector<std::unique_ptr<Plan>> plans;
  for (const Pass& pass : passes)
    plans.push_back(std::make_unique<KernelPlan<Family>>(problem, device, pass));
  if (plans.size() == 1) return std::move(plans.front());
  return std::make_unique<PassesPlan>(std::move(plans));
}

}  // namespace convswap::few_channels
