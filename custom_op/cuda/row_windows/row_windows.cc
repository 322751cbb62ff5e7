// Convolution of few channels and large images: a product of the tensor core has eight taps of a filter's row
// in its depth (four of float32), where other algorithms have eight channels.
//
//   sums[k, pixel] = sum over windows (channel, row) of w[k, window] * image[window of the pixel]
//
// A window is 16 bytes of a row of the image, from where an output's filter begins, or a few columns
// before, where words begin: so much as the tensor core takes of a column at once. Windows of neighbouring
// outputs overlap; in shared memory each has a place of its own, in the order of the outputs, and rows lie
// such that what is a tap's distance away from one output's window is so from all. So a product's columns are
// 128 places in a row, wherever they begin, and each tap of the depth is another beginning: no window is put
// twice, however many rows of filters read it.
//
// Filters are the product's rows, 64. Of fewer filters the rows are of several output rows, whose windows are
// the same and whose weights are shifted: *folds*. They read a *group* of output rows together.
//
// A block stays, and takes *bands* of an image, some groups of output rows: two warpgroups put a band's
// windows into a slot, segment by segment of a row, while three multiply those of the other and write results
// straight from registers. A segment is what a warp has windows for at a time; where rows are whole words it
// loads each word of a segment once.
//
// Float32 goes in as TF32, rounded to nearest. Windows are longer than filters' rows, and what is too much
// meets weights of zero: where a sum is not finite it is computed again as the definition says.
//
// Limits: float32 in precision tf32, float16 and bfloat16; one or two spatial axes; filters whose columns are
// not dilated, and 128 windows of them; where a row takes several windows, a stride that divides one; a band
// of one group of rows that fits into shared memory; compute capability 9.0. Relu, clip, SiLU and HardSwish
// without a residual, which first layers have none of, are computed with it, all else by a second kernel,
// unless that would round twice.

#include <algorithm>
#include <string>

#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/row_windows/arguments.h"
#include "cuda/row_windows/family.h"

namespace convswap {
namespace row_windows {
namespace {

const KnownKernels known({.header = "cuda/row_windows/kernel.cuh",
                          .instances = instance_names("row_windows::kernel", kElementsButFloat64),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = row_windows::Tiling;
  using Arguments = row_windows::Arguments<void>;
  static std::string name(const Tiling&) { return "row_windows"; }
  static std::string kernel_name(const ConvProblem& problem, const Tiling&) {
    return instance_name("row_windows::kernel", element_name(problem.type));
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.following = epilogue_params_of(problem.epilogue);
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
    to.definition = naive_conv_of(problem);
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

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Launch&) {
    return grid_of_resident_blocks(problem.batch * tiling.bands, problem.group * tiling.filter_blocks,
                                   device);
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined("bands of ", tiling.groups, " x ", tiling.folds, " output rows, ", tiling.column_chunks,
                  " x ", tiling.steps(), " products of ", kColumns, " columns, ", text_of(launch));
  }
};

class RowWindows final : public AlgorithmByTiling<KernelPlan<Family>, cheapest_tilings> {
 public:
  std::string_view name() const override { return "row_windows"; }
  bool rounds_depthwise() const override { return true; }
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return !epilogue.has_residual && epilogue.pool.kind == PoolKind::none &&
           (only_clamps(epilogue) || is_swish(epilogue));
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_fitting("its windows of a row of outputs do", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision != Precision::tf32) {
      return "it computes float32 in precision tf32 alone";
    }
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.dilation[2] != 1 && problem.filter[2] > 1) return "the columns of its filters are dilated";
    std::string reason = why_not_indexed(
        {padded_input(problem, 1), padded_input(problem, 2), problem.in_channels, problem.out_channels,
         problem.filter[1], problem.filter[2], problem.dilation[1], problem.stride[1], problem.stride[2]});
    if (!reason.empty()) return reason;
    // Each by itself first, so that their product is none that 64 bits do not hold.
    constexpr int64_t kMostPlaces = kMostSteps * kPlacesOfStep;
    if (problem.channels_per_group() > kMostPlaces || problem.filter[1] > kMostPlaces ||
        fewest_places(problem) > kMostPlaces) {
      return joined("its filters have more than ", kMostPlaces, " windows");
    }
    if (problem.filter[1] * problem.dilation[1] > 1 << 12) return "the rows of its filters are too far apart";
    if (!can_place_windows(problem)) {
      return joined("a stride of ", problem.stride[2], " does not divide a window");
    }
    if (problem.group * ((problem.filters_per_group() + kRows - 1) / kRows) > kMostGridRows) {
      return joined("it takes at most ", kMostGridRows, " times 64 filters of one group");
    }
    return why_not_indexed({problem.in_channels * problem.input_size(),
                            padded_input(problem, 1) * padded_input(problem, 2),
                            problem.out_channels * problem.output_size(), problem.batch * problem.output[1],
                            64 * problem.output[2]});
  }
};

}  // namespace
}  // namespace row_windows

const Algorithm& cuda_row_windows() {
  static const row_windows::RowWindows algorithm;
  return algorithm;
}

}  // namespace convswap
