#include "cuda/toeplitz/plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "conv/arithmetic.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/primitives/warpgroup.h"
#include "cuda/toeplitz/arguments.h"
#include "cuda/toeplitz/instances.h"

namespace convswap::toeplitz {
namespace {

const KnownKernels known({.header = "cuda/toeplitz/kernel.cuh",
                          .instances = instance_names("toeplitz::kernel", kTensorCoreFormats, kInstances),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = toeplitz::Tiling;
  using Arguments = toeplitz::Arguments<void>;
  static std::string name(const Tiling&) { return "toeplitz"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("toeplitz::kernel", tensor_core_format(problem),
                         Instance{tiling.tiles, !problem.epilogue.is_empty()}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.definition = definition_of(problem);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();
    to.is_unpadded = is_unpadded(problem, tiling.cut);
    to.dilation_height_divisor = FastDivisor(to.dilation_height);
    to.dilation_width_divisor = FastDivisor(to.dilation_width);
    set_cut(problem, tiling, to);
    set_input(problem, tiling, to);
    set_tile(problem, tiling, to);
    set_results(problem, tiling, to);
    to.shared = tiling.shared;
    to.cores_bytes = narrow(tiling.cores_bytes);
    to.raw_bytes = narrow(tiling.raw_bytes);
    place_steps(tiling, to.step_cores, to.step_places);
    // A y that the cache cannot hold shall not drive out of it input that is asked for ahead of time. Where
    // copies bring the input nothing is to be kept, and parts of lines had better wait for the rest.
    const int64_t y_bytes = problem.result_elements() * size_of(problem.type);
    to.leaves_first = problem.epilogue.is_empty() && y_bytes > device.second_level_cache &&
                      (!tiling.copies_input || stores_whole_lines(problem, tiling));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    // Copies take what is aligned.
    to.copies_input = tiling.copies_input && reinterpret_cast<uintptr_t>(to.x) % kAlignment == 0;
    to.source_plane = to.copies_input ? narrow(tiling.source_plane) : to.input_plane;
    to.y_misalignment =
        narrow(static_cast<int64_t>(reinterpret_cast<uintptr_t>(to.y) % kCacheLine) / size_of(problem.type));
  }

  static int threads(const Tiling& tiling) { return kWarpgroupThreads * tiling.warpgroups; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling,
                         const Launch&) {
    const int64_t share = std::max<int64_t>(1, device.multiprocessors / problem.group);
    return {static_cast<unsigned>(std::min(tiling.tile_count, share)), static_cast<unsigned>(problem.group)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Cut& cut = tiling.cut;
    return "tiles of " + std::to_string(tiling.images) + " images x " +
           std::to_string(tiling.rows * cut.folds) + " rows" +
           (tiling.overlap > 0 ? " (" + std::to_string(tiling.overlap) + " of them the next tile's too)"
                               : "") +
           " x " + std::to_string(tiling.cores * cut.outputs) + " columns, " +
           std::to_string(tiling.filters_per_block) + " filters at a time; products of " +
           std::to_string(tiling.chunks * kRows) + " x " + std::to_string(cut.steps() * kDepth) + " x " +
           std::to_string(tiling.tiles * kTileColumns) + " for " + std::to_string(cut.outputs) + " x " +
           std::to_string(cut.folds) + " outputs, " + std::to_string(cut.bundle) +
           " channels side by side; " + (tiling.copies_input ? "input by bulk copies; " : "") +
           std::to_string(launch.grid.x) + " x " + std::to_string(launch.grid.y) + " blocks of " +
           std::to_string(launch.block.x) + " threads, " + std::to_string(tiling.shared_bytes) +
           " bytes of shared memory";
  }

 private:
  // How the filter's bundles lie in the product's depth.
  static void set_cut(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const auto log2 = [](int value) { return std::countr_zero(static_cast<unsigned>(value)); };
    const Cut& cut = tiling.cut;
    to.source_image = narrow(tiling.source_image);
    // Rows of cores begin whole widths of the input and whole rows of cores apart.
    to.load_bytes =
        1 << std::countr_zero(static_cast<unsigned>(kAlignment | problem.input[2] * size_of(problem.type) |
                                                    cut.pixels * size_of(problem.type)));
    to.log2_bundle = log2(cut.bundle);
    to.log2_outputs = log2(cut.outputs);
    to.folds = cut.folds;
    to.log2_folds = log2(cut.folds);
    to.bundles = FastDivisor(narrow(cut.bundles));
    to.window_rows = narrow(cut.window_rows);
    to.window_cores = narrow(cut.window_cores);
    to.steps = narrow(cut.steps());
    to.steps_divisor = FastDivisor(to.steps);
    to.row_phases = FastDivisor(cut.row_phases);
    to.column_phases = FastDivisor(cut.column_phases);
    to.window_rows_divisor = FastDivisor(to.window_rows);
    to.window_cores_divisor = FastDivisor(to.window_cores);
  }

  // How the input lies in shared memory.
  static void set_input(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const Cut& cut = tiling.cut;
    to.pitch = FastDivisor(narrow(tiling.pitch));
    to.core_rows = narrow(tiling.core_rows);
    to.plane_cores = narrow(tiling.plane_cores);
    to.image_cores = narrow(tiling.image_cores);
    to.part_cores = narrow(tiling.part_cores);
    to.cores_per_row = FastDivisor(narrow(tiling.cores_per_row));
    to.input_rows = narrow(tiling.input_rows);
    to.items_per_row = narrow(cut.bundles * tiling.cores_per_row);
    to.image_items = narrow(tiling.image_items);
    to.lines_per_channel =
        FastDivisor(narrow(tiling.input_rows * problem.input[2] * size_of(problem.type) / kCacheLine + 2));
  }

  static void set_tile(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const Cut& cut = tiling.cut;
    to.images = tiling.images;
    to.rows = tiling.rows;
    to.cores = tiling.cores;
    const int64_t core_columns = ceil_divide(problem.output[2], cut.outputs);
    to.bands = FastDivisor(narrow(tiling.bands));
    to.row_advance = narrow(tiling.row_advance);
    to.y_rows = narrow(tiling.y_rows);
    to.stores_lines = tiling.overlap > 0;
    to.pools = problem.epilogue.pool.kind != PoolKind::none;
    to.pool_pad_height = to.pools ? narrow(problem.epilogue.pool.pad_begin[0]) : 0;
    to.column_tiles = FastDivisor(narrow(ceil_divide(core_columns, tiling.cores)));
    to.tiles = narrow(tiling.tile_count);
    to.product_rows = narrow(tiling.product_rows);
  }

  // What becomes of the sums, and how results are stored.
  static void set_results(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const Cut& cut = tiling.cut;
    const int64_t element_bytes = size_of(problem.type);
    to.filters_per_block = tiling.filters_per_block;
    to.filter_blocks = tiling.filter_blocks;
    to.results = tiling.results;
    to.stored = tiling.stored;
    to.pools_sums = pools_sums(problem, cut);
    to.fold_distance = to.pools_sums ? 0 : to.results.row;
    to.finish = finish_of(problem, cut);
    to.lies_apart = lies_apart(problem, to.finish);
    const bool is_bounded = to.finish != Finish::everything;
    to.least = is_bounded ? bounds_of(problem.epilogue).least : -std::numeric_limits<float>::infinity();
    to.most = is_bounded ? bounds_of(problem.epilogue).most : std::numeric_limits<float>::infinity();
    to.result_bytes = to.lies_apart ? narrow(sizeof(float)) : narrow(element_bytes);
    to.writes_pairs = cut.outputs > 1 && problem.output[2] % 2 == 0 && tiling.results.row % 2 == 0 &&
                      tiling.results.plane % 2 == 0 && tiling.results.image % 2 == 0;
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return Family::kernel_name(problem, tiling);
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::toeplitz
