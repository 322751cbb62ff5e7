#include "cuda/row_windows/plan.h"

#include <algorithm>

#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/row_windows/arguments.h"
#include "cuda/row_windows/instances.h"

namespace convswap::row_windows {
namespace {

const KnownKernels known({.header = "cuda/row_windows/kernel.cuh",
                          .instances = instance_names("row_windows::kernel", kFormats),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = row_windows::Tiling;
  using Arguments = row_windows::Arguments<void>;
  static std::string name(const Tiling&) { return "row_windows"; }
  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return row_windows::kernel_name(problem, tiling);
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.following = following_of(problem.epilogue);
    to.shared = tiling.shared;
    to.block_filters = narrow(tiling.block_filters);
    to.folds = narrow(tiling.folds);
    to.row_phases = narrow(tiling.row_phases);
    to.lead = narrow(tiling.lead);
    to.groups = narrow(tiling.groups);
    to.bands = narrow(tiling.bands);
    to.band_rows = narrow(tiling.band_rows);
    to.pitch = narrow(tiling.pitch);
    to.phase_places = narrow(tiling.phase_places);
    to.channel_places = narrow(tiling.channel_places);
    to.slot_places = narrow(tiling.slot_places);
    to.column_chunks = narrow(tiling.column_chunks);
    to.steps = narrow(tiling.steps());
    to.tiles = narrow(problem.batch * tiling.bands);
    to.bands_divisor = FastDivisor(narrow(tiling.bands));
    to.filter_blocks = FastDivisor(narrow(tiling.filter_blocks));
    std::ranges::copy(tiling.step_places, to.step_places);
    std::ranges::copy(tiling.depth, to.depth);
    to.definition = definition_of(problem);
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const int of_word = numbers_of_word(problem);
    const int words = is_aligned(to.x, problem, kWordsOfPair * of_word) ? kWordsOfPair
                      : is_aligned(to.x, problem, of_word)              ? 1
                                                                        : 0;
    to.loading = loading_of(problem, tiling.lead, words);
    to.segment_places = segment_places_of(to.loading);
    to.segments = narrow(segments_of(problem, tiling, to.segment_places));
    to.stored_together = most_together(problem);
    while (!is_aligned(to.y, problem, to.stored_together)) to.stored_together /= 2;
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling,
                         const Launch&) {
    const int64_t rows = problem.group * tiling.filter_blocks;
    const int64_t share = std::max<int64_t>(1, device.multiprocessors / rows);
    return {static_cast<unsigned>(std::min(problem.batch * tiling.bands, share)),
            static_cast<unsigned>(rows)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const auto text = [](int64_t number) { return std::to_string(number); };
    return "bands of " + text(tiling.groups) + " x " + text(tiling.folds) + " output rows, " +
           text(tiling.column_chunks) + " x " + text(tiling.steps()) + " products of " + text(kColumns) +
           " columns, " + text(launch.grid.x) + " x " + text(launch.grid.y) + " blocks of " +
           text(launch.block.x) + " threads, " + text(tiling.shared_bytes) + " bytes of shared memory";
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling&) {
  return instance_name("row_windows::kernel", element_name(problem.type));
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::row_windows
