// Implicit GEMM for few channels and large images: the wgmma depth holds eight adjacent taps of a filter row
// (four of float32), where other algorithms have eight channels.
//
//   accumulators[k, pixel] = sum over windows (channel, row) of w[k, window] * image[window of the pixel]
//
// A *window* is 16 bytes of an image row (a row of a core matrix). It begins at an output's first tap, or a
// few columns earlier, at a word boundary. Windows of adjacent outputs overlap; shared memory stores each
// window separately, in the order of the outputs (im2col along the row). Rows are arranged so that a tap has
// the same distance from the windows of all outputs. Therefore the N columns of a wgmma are 128 consecutive
// windows, and each tap of the depth only changes the descriptor's start address. No window is stored twice,
// however many filter rows read it.
//
// Filters are the 64 rows (M) of wgmma. With fewer filters, the rows are *folds*: several output rows that
// read the same windows with shifted weights. The output rows of all folds are a *group*.
//
// Blocks are persistent and take *bands* of an image, which are some groups of output rows. Two producer
// warpgroups store a band's windows into one pipeline stage (stage), row segment by row segment. Three
// consumer warpgroups multiply the other stage and store outputs straight from registers. A *segment* is the
// windows that a warp stores at a time; if rows are whole words, the warp loads each word of a segment once.
//
// Float32 is rounded to nearest TF32. Windows are longer than filter rows, and excess elements meet zero
// weights. Outputs whose accumulators are not finite are recomputed naively.
//
// Limits: float32 in precision tf32, float16 and bfloat16; one or two spatial axes; no dilation along
// columns; at most 128 windows per filter along the GEMM depth. If a filter row takes several windows, the
// column stride must divide the elements of a window. A band of one group must fit into shared memory;
// compute capability 9.0. ReLU, Clip, SiLU and HardSwish are fused if there is no residual. Any other
// epilogue is a second kernel; the problem is declined if that would round twice.

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

const KernelRegistration registration({.header = "cuda/row_windows/kernel.cuh",
                                       .instances = instance_names("row_windows::kernel",
                                                                   kElementsWithoutFloat64),
                                       .min_capability = 90,
                                       .is_arch_specific = true});

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
    to.epilogue = epilogue_params_of(problem.epilogue);
    to.shared = tiling.shared;
    to.block_filters = narrow(tiling.block_filters);
    to.folds = narrow(tiling.folds);
    to.row_phases = narrow(tiling.row_phases);
    to.lead = narrow(tiling.lead);
    to.groups = narrow(tiling.groups);
    to.bands = narrow(tiling.bands);
    to.band_rows = narrow(tiling.band_rows);
    to.pitch = narrow(tiling.pitch);
    to.phase_windows = narrow(tiling.phase_windows);
    to.channel_windows = narrow(tiling.channel_windows);
    to.stage_windows = narrow(tiling.stage_windows);
    to.column_chunks = narrow(tiling.column_chunks);
    to.steps = narrow(tiling.steps);
    to.tiles = narrow(problem.batch * tiling.bands);
    to.bands_divisor = FastDivisor(narrow(tiling.bands));
    to.filter_blocks = FastDivisor(narrow(tiling.filter_blocks));
    const StepWindows windows = step_windows_of(problem, tiling);
    std::ranges::copy(windows.offsets, to.step_offsets);
    std::ranges::copy(windows.depth, to.depth);
    to.naive_conv = naive_conv_of(problem);
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const int word_elements = elements_per_word(problem);
    const int words = is_aligned(to.x, problem, kWordsOfPair * word_elements) ? kWordsOfPair
                      : is_aligned(to.x, problem, word_elements)              ? 1
                                                                              : 0;
    to.loading = loading_of(problem, tiling.lead, words);
    to.windows_per_segment = windows_per_segment_of(to.loading);
    to.segments = narrow(segments_of(problem, tiling, to.windows_per_segment));
    to.outputs_per_store = max_outputs_per_store(problem);
    while (!is_aligned(to.y, problem, to.outputs_per_store)) to.outputs_per_store /= 2;
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Launch&) {
    return grid_of_resident_blocks(problem.batch * tiling.bands, problem.group * tiling.filter_blocks,
                                   device);
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined("bands of ", tiling.groups, " x ", tiling.folds, " output rows, ", tiling.column_chunks,
                  " x ", tiling.steps, " products of ", kColumns, " columns, ", text_of(launch));
  }
};

class RowWindows final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
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
    return why_not_shared_memory("its windows of a row of outputs do", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_1d_or_2d(problem); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision != Precision::tf32) {
      return "it computes float32 in precision tf32 alone";
    }
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.dilation[2] != 1 && problem.filter[2] > 1) return "the columns of its filters are dilated";
    std::string reason = why_not_32_bit_indices(
        {padded_input(problem, 1), padded_input(problem, 2), problem.in_channels, problem.out_channels,
         problem.filter[1], problem.filter[2], problem.dilation[1], problem.stride[1], problem.stride[2]});
    if (!reason.empty()) return reason;
    // Checks each factor first, so that the product fits into 64 bits.
    constexpr int64_t kMaxWindows = kMaxSteps * kWindowsPerStep;
    if (problem.channels_per_group() > kMaxWindows || problem.filter[1] > kMaxWindows ||
        windows_per_filter(problem) > kMaxWindows) {
      return joined("its filters have more than ", kMaxWindows, " windows");
    }
    if (problem.filter[1] * problem.dilation[1] > 1 << 12) return "the rows of its filters are too far apart";
    if (!can_lay_out_windows(problem)) {
      return joined("a stride of ", problem.stride[2], " does not divide a window");
    }
    if (problem.group * ((problem.filters_per_group() + kRows - 1) / kRows) > kMaxGridRows) {
      return joined("it takes at most ", kMaxGridRows, " times 64 filters of one group");
    }
    return why_not_32_bit_indices({problem.in_channels * problem.input_size(),
                                   padded_input(problem, 1) * padded_input(problem, 2),
                                   problem.out_channels * problem.output_size(),
                                   problem.batch * problem.output[1], 64 * problem.output[2]});
  }
};

}  // namespace
}  // namespace row_windows

const Algorithm& cuda_row_windows() {
  static const row_windows::RowWindows algorithm;
  return algorithm;
}

}  // namespace convswap
