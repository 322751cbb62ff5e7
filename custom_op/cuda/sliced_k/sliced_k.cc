// Implicit GEMM for few pixels, with sliced K: the warps of a block split K of the GEMM.
//
// One image, or a few small images, is a GEMM of few columns and large K (channels times taps). Tiles as
// large as those of other algorithms fill a fraction of the card, and most tiles walk the entire K, one
// memory latency after the other. Here a block has a small tile: 16 filters by 8 pixels, up to 64 by 32. Its
// 4 to 32 warps take the steps of K in turns. Warps load operands from global memory into registers, each tap
// from its place in the image (no im2col), without shared memory and without synchronisation. A warp keeps 2
// to 4 steps in registers: it multiplies one while the others load. At the end the block reduces the
// accumulators of its warps through shared memory, always in the same order.
//
// The order of K within an mma is free, so a lane takes four adjacent weights of a filter with one vector
// load. For 1x1 filters, a lane's pixels of one channel are one vector load too. This needs an output of the
// input's size, a plane that is a multiple of the block's number of pixel tiles (1, 2 or 4), and an aligned
// x. Constant weights of a warp's first steps are loaded before griddepcontrol.wait, while the preceding
// kernels end (PDL).
//
// Data flow: one kernel, no scratch memory; accumulators of all warps of a block in shared memory.
//
// In precision ieee, and for depthwise convolutions, each float32 operand is split into two TF32, and three
// of their four products are taken. Sums that are not finite are then recomputed naively.
//
// Limits: float32, float16 and bfloat16; one or two spatial axes; compute capability 8.0 or newer; at most
// 65,535 blocks of 16 filters over all groups (grid.y). A pool is a second kernel. Padding is multiplied as
// zeros, so an infinite weight over padding gives NaN unless operands are split.

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
const KernelRegistration registration({.header = "cuda/sliced_k/kernel.cuh",
                                       .instances = instance_names("sliced_k::kernel", kFormats, kInstances),
                                       .min_capability = 80});

struct Family {
  using Tiling = sliced_k::Tiling;
  using Arguments = sliced_k::Arguments<void>;
  static std::string name(const Tiling&) { return "sliced_k"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("sliced_k::kernel",
                         splits_operands(problem) ? "Tf32Pairs" : element_name(problem.type),
                         tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.epilogue = epilogue_params_of(problem.epilogue);
    to.naive_conv = naive_conv_of(problem);
    to.k_size = narrow(k_size_of(problem));
    to.steps = narrow(ceil_divide(k_size_of(problem), int64_t{kStepK}));
    to.pixels = static_cast<unsigned>(problem.batch * problem.output_size());
    to.output_plane_divisor = FastDivisor(narrow(problem.output_size()));
    to.output_width_divisor = FastDivisor(narrow(problem.output[2]));
    to.taps_divisor = FastDivisor(narrow(problem.filter_size()));
    to.filter_width_divisor = FastDivisor(narrow(problem.filter[2]));
    to.filter_blocks = FastDivisor(narrow(tiling.filter_blocks));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.vectorizes_weight_loads = vectorizes_weight_loads(problem) && is_aligned(to.w, problem, 4);
    to.vectorizes_pixel_loads = vectorizes_pixel_loads(problem, tiling.instance) &&
                                is_aligned(to.x, problem, tiling.instance.pixel_tiles);
  }

  static int threads(const Tiling& tiling) { return tiling.instance.warps * kWarpSize; }
  static int64_t shared_bytes(const Tiling& tiling) { return shared_bytes_of(tiling.instance); }

  static Dim3 grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.pixel_blocks),
            static_cast<unsigned>(problem.group * tiling.filter_blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& instance = tiling.instance;
    return joined("blocks of ", instance.filters(), " filters x ", instance.pixels(),
                  " pixels, K split among ", instance.warps, " warps, ", launch.shared_bytes,
                  " bytes of shared memory, ", launch.grid.total(), " blocks");
  }
};

class SlicedK final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "sliced_k"; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_1d_or_2d(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_capability(80, device); !reason.empty()) return reason;
    const int64_t filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{kTileFilters});
    if (problem.group * filter_blocks > kMaxGridRows) {
      return joined("it takes at most ", kMaxGridRows, " blocks of 16 filters, over all groups");
    }
    // Checks each factor first, so that the products below fit into 64 bits.
    const int64_t k_size = k_size_of(problem), taps = problem.filter_size();
    std::string reason =
        why_not_32_bit_indices({padded_input(problem, 1), padded_input(problem, 2), problem.in_channels,
                                problem.out_channels, problem.filter[1], problem.filter[2], 4 * k_size});
    if (!reason.empty()) return reason;
    // FastDivisor::quotient needs dividend x divisor < 2^32, and why_not_32_bit_indices allows 2^30. The last
    // two entries are therefore a quarter of such products.
    return why_not_32_bit_indices(
        {problem.in_channels * problem.input_size(), 4 * padded_input(problem, 1) * padded_input(problem, 2),
         problem.out_channels * problem.output_size(), problem.batch * problem.output_size() + kMaxPixels,
         (k_size + kStepK) * taps / 4, taps * problem.filter[2] / 4});
  }
};

}  // namespace
}  // namespace sliced_k

const Algorithm& cuda_sliced_k() {
  static const sliced_k::SlicedK algorithm;
  return algorithm;
}

}  // namespace convswap
