// Convolution of few pixels, with the depth of every sum shared among the warps of a block (sliced-K).
//
// One image, or a few small ones, is a matrix product of few columns and much depth: channels times taps. In
// tiles as large as those of other algorithms it fills a fraction of the card, and each tile goes down the
// whole depth, one wait for memory after the other. Here a block has a small tile, 16 filters of 8 pixels or
// a few times that, and its 4 to 32 warps take the steps of the depth in turns. Warps load what they multiply
// straight into the registers of the tensor core, pixels where their taps lie, without shared memory and
// without waiting for each other; at the end their sums meet in shared memory and are added, in the same
// order each time.
//
// Which number along the depth a product takes first is free, so a lane takes four neighbours of a filter,
// which are one load. Of filters with one tap its pixels of a channel are one load too. Weights that stay are
// loaded, those of a warp's first steps, while the kernels before this one end.
//
// Data flow: one kernel, no scratch memory; the sums of all warps of a block in shared memory.
//
// In precision ieee, and in depthwise convolutions, float32 numbers become two TF32 each, of which three
// products are taken; sums that are not finite are computed again as the definition says.
//
// Limits: float32, float16 and bfloat16; one or two spatial axes; compute capability 8.0 or newer; a row of
// the grid for each 16 filters of a group. A pool is a second kernel. Padding is zeros that are multiplied
// like data, so that an infinite weight over padding gives NaN where numbers are not split.

#include <string>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/family.h"

namespace convswap {
namespace sliced_k {
namespace {

constexpr std::string_view kFormats[] = {"float", "Tf32Pairs", "Float16", "BFloat16"};
const KnownKernels known({.header = "cuda/sliced_k/kernel.cuh",
                          .instances = instance_names("sliced_k::kernel", kFormats, kInstances),
                          .least_capability = 80});

struct Family {
  using Tiling = sliced_k::Tiling;
  using Arguments = sliced_k::Arguments<void>;
  static std::string name(const Tiling&) { return "sliced_k"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("sliced_k::kernel", splits(problem) ? "Tf32Pairs" : element_name(problem.type),
                         tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.following = epilogue_params_of(problem.epilogue);
    to.definition = naive_conv_of(problem);
    to.depth = narrow(depth_of(problem));
    to.steps = narrow(ceil_divide(depth_of(problem), int64_t{kStepDepth}));
    to.pixels = static_cast<unsigned>(problem.batch * problem.output_size());
    to.plane = FastDivisor(narrow(problem.output_size()));
    to.width = FastDivisor(narrow(problem.output[2]));
    to.taps = FastDivisor(narrow(problem.filter_size()));
    to.columns = FastDivisor(narrow(problem.filter[2]));
    to.filter_blocks = FastDivisor(narrow(tiling.filter_blocks));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.loads_weights_together = loads_weights_together(problem) && is_aligned(to.w, problem, 4);
    to.loads_pixels_together = loads_pixels_together(problem, tiling.instance) &&
                               is_aligned(to.x, problem, tiling.instance.pixel_tiles);
  }

  static int threads(const Tiling& tiling) { return tiling.instance.warps * kWarp; }
  static int64_t shared_bytes(const Tiling& tiling) { return shared_bytes_of(tiling.instance); }

  static Dim3 grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.pixel_blocks),
            static_cast<unsigned>(problem.group * tiling.filter_blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& own = tiling.instance;
    return joined("blocks of ", own.filters(), " filters x ", own.pixels(),
                  " pixels, whose depth is shared by ", own.warps, " warps, ", launch.shared_bytes,
                  " bytes of shared memory, ", launch.grid.count(), " blocks");
  }
};

class SlicedK final : public AlgorithmByTiling<KernelPlan<Family>, cheapest_tilings> {
 public:
  std::string_view name() const override { return "sliced_k"; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_from(80, device); !reason.empty()) return reason;
    const int64_t filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{kTileFilters});
    if (problem.group * filter_blocks > kMostGridRows) {
      return joined("it takes at most ", kMostGridRows, " times 16 filters of one group");
    }
    // Each by itself first, so that products of them are none that 64 bits do not hold.
    const int64_t depth = depth_of(problem), taps = problem.filter_size();
    std::string reason =
        why_not_indexed({padded_input(problem, 1), padded_input(problem, 2), problem.in_channels,
                         problem.out_channels, problem.filter[1], problem.filter[2], 4 * depth});
    if (!reason.empty()) return reason;
    // What FastDivisor::quotient divides, times the divisor, is below 2^32, four times the largest index.
    return why_not_indexed(
        {problem.in_channels * problem.input_size(), 4 * padded_input(problem, 1) * padded_input(problem, 2),
         problem.out_channels * problem.output_size(), problem.batch * problem.output_size() + kMostPixels,
         (depth + kStepDepth) * taps / 4, taps * problem.filter[2] / 4});
  }
};

}  // namespace
}  // namespace sliced_k

const Algorithm& cuda_sliced_k() {
  static const sliced_k::SlicedK algorithm;
  return algorithm;
}

}  // namespace convswap
