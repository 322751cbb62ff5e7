// 1x1 (pointwise) convolution as a GEMM with wgmma: each output is a sum over the channels of one pixel.
//
//   accumulators[pixel, k] = sum over channels c of image[c, pixel] * w[k, c]
//
// Pixels are the M dimension of wgmma and filters the N dimension. Wgmma takes A from registers: a thread
// holds channels of two pixels and loads them from the NCHW tensor, so no second kernel prepares pixels. If
// two adjacent pixels of a channel are aligned, a thread has such a pair, with one load and one store for
// both; lanes then access entire sectors of eight pairs. Weights stay in shared memory for the block's
// lifetime (persistent blocks).
//
// Float32 is rounded to nearest TF32 for every exponent; infinities and NaN pass unchanged. Values that round
// beyond TF32's largest number (within 2^-11 of float32's largest) become infinite. Numbers below 2^-126 lose
// their bits below 2^-136. For float16 and bfloat16, a fragment register holds two channels of a pixel; it is
// assembled crosswise from two loads of pixel pairs.
//
// A *tile* is 64 pixels, possibly of several images. A *chunk* is the channels of a few wgmmas. Loads of the
// next chunk are in flight while one chunk is multiplied, also across tiles. The next chunk waits in
// registers, or the next three chunks in pipeline stages in shared memory, where each thread has its own
// part. Stages in shared memory take more instructions, and hide more memory latency if there are many
// outputs per channel. A block has 64 to 256 filters and all their channels; further blocks of filters read
// the pixels again, from L2. For few pixels there are blocks of one warpgroup, 32 or 64 filters and one tile;
// a multiprocessor holds a few of them. Constant weights are copied before griddepcontrol.wait, while the
// preceding kernels end (PDL).
//
// Limits: float32 in precision tf32, float16 and bfloat16; 1x1 filters without padding, any stride,
// groups, one to three spatial axes; so many channels that the weights of 64 filters fit into shared memory;
// compute capability 9.0. Residual, ReLU, Clip, SiLU and HardSwish are fused; any other epilogue is a
// second kernel.

#include <cstdint>
#include <string>

#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/family.h"

namespace convswap {
namespace pointwise {
namespace {

const KernelRegistration registration({.header = "cuda/pointwise/kernel.cuh",
                                       .instances = instance_names("pointwise::kernel",
                                                                   kElementsWithoutFloat64, kInstances),
                                       .min_capability = 90,
                                       .is_arch_specific = true});

struct Family {
  using Tiling = pointwise::Tiling;
  using Arguments = pointwise::Arguments<void>;
  static std::string name(const Tiling&) { return "pointwise"; }
  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("pointwise::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.channels = narrow(problem.channels_per_group());
    to.filters = narrow(problem.filters_per_group());
    to.in_channels = narrow(problem.in_channels);
    to.out_channels = narrow(problem.out_channels);
    to.input_plane = narrow(problem.input_size());
    to.output_plane = FastDivisor(narrow(problem.output_size()));
    to.output_area = FastDivisor(narrow(problem.output[1] * problem.output[2]));
    to.output_width = FastDivisor(narrow(problem.output[2]));
    to.pixels = static_cast<unsigned>(problem.batch * problem.output_size());
    to.depth_step = narrow(problem.stride[0] * problem.input[1] * problem.input[2]);
    to.row_step = narrow(problem.stride[1] * problem.input[2]);
    to.column_step = narrow(problem.stride[2]);
    to.is_dense = problem.output == problem.input;
    to.tiles = narrow(tiling.tiles);
    to.chunks = narrow(tiling.chunks);
    to.filter_blocks_per_group = FastDivisor(narrow(tiling.filter_blocks));
    to.epilogue = epilogue_params_of(problem.epilogue);
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling&, Arguments& to) {
    const auto is_pair = [&](const void* tensor) { return is_aligned(tensor, problem, 2); };
    to.stores_pairs = problem.output_size() % 2 == 0 && is_pair(to.y) && is_pair(to.z);
    to.loads_pairs = to.stores_pairs && to.is_dense && is_pair(to.x);
  }

  static int threads(const Tiling& tiling) { return 128 * tiling.instance.warpgroups; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.grid_columns),
            static_cast<unsigned>(problem.group * tiling.filter_blocks)};
  }

  static std::string describe(const ConvProblem& problem, const Tiling& tiling, const Launch& launch) {
    return joined("tiles of ", kTilePixels, " pixels x ", tiling.instance.filters(), " filters, ",
                  tiling.chunks, " x ", tiling.instance.channels(bytes_per_element(problem.type)),
                  " channels", tiling.instance.stages > 0 ? " by way of shared memory, " : ", ",
                  text_of(launch));
  }
};

class Pointwise final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "pointwise"; }
  bool rounds_depthwise() const override { return true; }
  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none &&
           (only_clamps(problem.epilogue) || is_swish(problem.epilogue));
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its weights of 64 filters do", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_float(problem); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision != Precision::tf32) {
      return "it computes float32 in precision tf32 alone";
    }
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.filter_size() != 1) return "its filters have more than one tap";
    for (int axis = 0; axis < 3; ++axis) {
      if (problem.pad_begin[axis] != 0 || problem.pad_end[axis] != 0) return "it does not pad";
    }
    if (std::string reason = why_not_sizes(problem); !reason.empty()) return reason;
    return why_not_32_bit_indices(
        {problem.in_channels, problem.out_channels,
         problem.input_size() * problem.stride[0] * problem.stride[1] * problem.stride[2],
         problem.batch * problem.output_size() + 2 * kTilePixels});
  }
};

}  // namespace
}  // namespace pointwise

const Algorithm& cuda_pointwise() {
  static const pointwise::Pointwise algorithm;
  return algorithm;
}

}  // namespace convswap
