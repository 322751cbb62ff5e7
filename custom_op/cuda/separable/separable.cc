// A 3x3 depthwise convolution fused with the 1x1 (pointwise) convolution after it. The intermediate tensor
// stays in shared memory.
//
// For large images, two kernels spend their time on writing and reading the intermediate tensor. Here a block
// has a tile of pixels and all filters of the 1x1 convolution. The block goes through the channels, sixteen
// at a time. Each thread computes a few rows of four columns of one channel in float32 and stores them to
// shared memory. Then all warps multiply the sixteen channels of their pixels by the weights with mma. The
// pixels of the next sixteen channels are loaded meanwhile. Shared memory is double-buffered, so one barrier
// per step is enough.
//
// Mma fragments are those of sliced_k: four adjacent channels per lane.
//
// Data flow: one kernel, no scratch memory; two buffers of sixteen channels of a tile in shared memory.
//
// Limits: float32 in precision tf32, float16 and bfloat16; images whose width is a multiple of four; at most
// 32 filters in the 1x1 convolution; depthwise filters of 3x3 taps, undilated, one for each channel, the same
// stride of 1 or 2 on both axes, and one row and one column of padding before the first; compute
// capability 8.0 or newer. The planner runs two kernels if they are estimated to be faster. A pool is a
// second kernel. Padding is multiplied as zeros, so an infinite weight over padding gives NaN.

#include <string>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/separable/arguments.h"
#include "cuda/separable/family.h"

namespace convswap {
namespace separable {
namespace {

const KernelRegistration registration({.header = "cuda/separable/kernel.cuh",
                                       .instances = instance_names("separable::kernel",
                                                                   kElementsWithoutFloat64, kInstances),
                                       .min_capability = 80});

struct Family {
  using Tiling = separable::Tiling;
  using Arguments = separable::Arguments<void>;
  static std::string name(const Tiling&) { return "separable"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("separable::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    const ConvProblem& before = problem.depthwise.front();
    Arguments to{};
    to.depthwise_epilogue = epilogue_params_of(before.epilogue);
    to.pointwise_epilogue = epilogue_params_of(problem.epilogue);
    to.k_size = narrow(problem.in_channels);
    to.filters = narrow(problem.out_channels);
    to.input_height = narrow(before.input[1]), to.input_width = narrow(before.input[2]);
    to.output_height = narrow(problem.output[1]), to.output_width = narrow(problem.output[2]);
    to.tiles = FastDivisor(narrow(tiling.tiles_down * tiling.tiles_across));
    to.tiles_across = FastDivisor(narrow(tiling.tiles_across));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling&, const ConvTensors& tensors, Arguments& to) {
    to.d = tensors.d, to.db = tensors.db;
    to.vectorizes_pixel_loads = is_aligned(to.x, problem, 4);
    to.vectorizes_weight_loads = problem.in_channels % 4 == 0 && is_aligned(to.w, problem, 4);
    to.vectorizes_stores = problem.output[2] % 2 == 0 && is_aligned(to.y, problem, 2);
  }

  static int threads(const Tiling& tiling) { return tiling.instance.threads(); }
  static int64_t shared_bytes(const Tiling& tiling) { return shared_bytes_of(tiling.instance); }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& instance = tiling.instance;
    return joined("tiles of ", instance.tile_rows(), "x", instance.tile_columns(),
                  " pixels, all filters of each; ", instance.rows, "x", kColumns,
                  " depthwise results a thread, ", launch.shared_bytes, " bytes of shared memory, ",
                  launch.grid.total(), " blocks");
  }
};

constexpr int kMaxFilters = 32;
constexpr int64_t kMaxTileRows = 8, kMaxTileColumns = 32;

class Separable final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "separable"; }
  bool rounds_depthwise() const override { return true; }  // in the 1x1 convolution
  bool takes_depthwise() const override { return true; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (problem.depthwise.empty()) {
      return "it computes a depthwise convolution together with a 1x1 convolution behind it";
    }
    const ConvProblem& before = problem.depthwise.front();
    if (std::string reason = why_not_float(problem); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision != Precision::tf32) {
      return "it does not compute float32 in precision ieee";
    }
    if (std::string reason = why_not_capability(80, device); !reason.empty()) return reason;
    const bool is_one_tap = problem.filter_size() == 1 && problem.group == 1 &&
                            problem.stride == Axes{1, 1, 1} && problem.output == problem.input;
    if (problem.spatial_rank != 2 || !is_one_tap || problem.out_channels > kMaxFilters) {
      return joined("behind the depthwise convolution it computes up to ", kMaxFilters,
                    " filters of one tap, of images, without stride, padding or groups");
    }
    const int64_t stride = before.stride[1];
    const bool is_usual = before.filter == Axes{1, kTaps, kTaps} && before.dilation == Axes{1, 1, 1} &&
                          before.stride == Axes{1, stride, stride} && stride <= 2 &&
                          before.pad_begin == Axes{0, 1, 1} && before.input[2] % 4 == 0;
    if (!is_usual) {
      return "it computes depthwise filters of 3x3 taps, undilated, with the same stride of 1 or 2 on both "
             "axes and padding of 1 before the first row and column, of images whose width is a multiple of "
             "4";
    }
    return why_not_32_bit_indices({problem.batch * ceil_divide(problem.output[1], int64_t{2}) *
                                       ceil_divide(problem.output[2], int64_t{28}),
                                   problem.in_channels * kTaps * kTaps * 4, before.input[1], before.input[2],
                                   stride * (problem.output[1] + kMaxTileRows),
                                   stride * (problem.output[2] + kMaxTileColumns),
                                   problem.output[1] * problem.output[2]});
  }
};

}  // namespace
}  // namespace separable

const Algorithm& cuda_separable() {
  static const separable::Separable algorithm;
  return algorithm;
}

}  // namespace convswap
