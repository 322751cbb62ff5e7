// Implicit GEMM on Hopper's tensor cores (wgmma) without an im2col matrix, for small images: the whole image
// lies in shared memory once, and every filter tap reads it at another offset.
//
// Filters are the rows of the GEMM and pixels its columns:
//
//   accumulator[(k, fold), pixel] =
//       sum over half steps (channel block, r, s) of
//       w[k, 8 channels, r - fold, s] * image[channel block, pixel + (r, s), 8 channels]
//
// wgmma reads shared memory in core matrices of 8 rows of 8 numbers, 16 bytes a row. A *vector* of the image
// holds 8 channels of one pixel in 16 bytes, as in cuDNN's NCHW_VECT_C; a *channel block* is the vectors of
// the same 8 channels. Any 8 neighbouring vectors are a core matrix, so a tap is only an offset. A *half
// step* is 8 of the 16 numbers along K. If the last channel block has at most four channels, its vectors hold
// two pixels each, and a half step covers two taps. The second pixel is either the next pixel of the row or
// the same column of the next row. With paired columns, each pixel is stored twice, once behind its left
// neighbour. With paired rows, each pixel is stored once; the planes of rows (below) must be even in number.
// Rows are paired if that takes fewer wgmmas, or if the smaller converted image leaves room for a second
// result buffer that gains more.
//
// A wgmma has 64 rows. If there are fewer filters, neighbouring output rows are *folded*: each filter occurs
// once for each fold, shifted by a row. The rows of the image then lie in planes by their remainder
// (`phases`), as they do for strides. An output tile is 128 neighbouring positions, or 120 if fewer then lie
// after the last output. Results at positions between two rows are computed and not stored.
//
// The weights of the first 24 steps stay in registers, which halves the shared-memory traffic. wgmma reads
// the other weights from shared memory.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32
// (tensor_core_formats.cuh). Images whose values do not fit into one binade window of float16 are
// converted and multiplied once for each binade window, and the results are added to y by TMA reductions.
// float16 and bfloat16 data are used as they are. In precision ieee, float32 data become two float16 each,
// with three products. Accumulators are float32. Images with infinities or NaN are computed by
// naive_conv_sum.
//
// Data flow: one persistent, warp-specialised block on each multiprocessor computes image after image. Roles
// synchronise with each other by mbarriers only.
// - TMA loads bring four channels at a time into a pipeline of stages.
// - Three producer warps convert the stages into one of two slots.
// - Two consumer warpgroups issue the wgmmas of alternating output tiles, so that one writes its results
//   while the other multiplies.
// - Results collect in shared memory, in the order of y, until the whole image is done. One warp then stores
//   them with TMA.
// If the results of two images do not fit, the last filters are double-buffered, as many as fit. The next
// image then waits only for the stores of the other filters. No scratch memory is used.
//
// Limits: 1-D and 2-D; float16, bfloat16 and float32; compute capability 9.0. Two converted images, the
// results of one image and the stages must fit into shared memory, so images are small and channels few. A
// sum takes at most 128 wgmmas, in precision ieee fewer (limits.h). The epilogue is a second kernel. Blocks
// compute whole images, so batches should fill the card.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/implicit_gemm/arguments.h"
#include "cuda/implicit_gemm/family.h"

namespace convswap {
namespace implicit_gemm {
namespace {

const KernelRegistration registration({.header = "cuda/implicit_gemm/kernel.cuh",
                                       .instances = instance_names("implicit_gemm::kernel",
                                                                   kTensorCoreFormats, kInstances),
                                       .min_capability = 90,
                                       .is_arch_specific = true});

struct Family {
  using Tiling = implicit_gemm::Tiling;
  using Arguments = implicit_gemm::Arguments<void>;
  static std::string name(const Tiling&) { return "implicit_gemm"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("implicit_gemm::kernel", tensor_core_format(problem),
                         Instance{tiling.tiles}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Arguments arguments{};
    static_cast<Geometry&>(arguments) = geometry_of(problem);
    arguments.naive_conv = naive_conv_of(problem);
    arguments.input_elements = problem.batch * problem.in_channels * problem.input_size();
    arguments.block_filters = tiling.filters;
    arguments.filter_blocks = tiling.filter_blocks;
    arguments.dilation_height_divisor = FastDivisor(arguments.dilation_height);
    arguments.dilation_width_divisor = FastDivisor(arguments.dilation_width);
    arguments.input_width_divisor = FastDivisor(arguments.input_width);

    arguments.folds = tiling.folds;
    arguments.chunks = narrow(tiling.chunks);
    arguments.half_chunk = narrow(tiling.half_chunk);
    arguments.pairs_rows = tiling.pairs_rows;
    arguments.row_phases = FastDivisor(narrow(tiling.row_phases));
    arguments.column_phases = FastDivisor(narrow(tiling.column_phases));
    arguments.pitch = FastDivisor(narrow(tiling.pitch));
    arguments.plane_vectors = narrow(tiling.plane_vectors);
    arguments.plane_rows = narrow(tiling.plane_rows);
    arguments.channel_block_vectors = narrow(tiling.channel_block_vectors);
    arguments.part_vectors = narrow(tiling.part_vectors);
    arguments.slot_vectors = narrow(tiling.slot_vectors);
    arguments.k_steps = narrow(tiling.k_steps());
    arguments.register_steps = narrow(tiling.register_steps());
    arguments.handover_step = std::max(
        0, arguments.k_steps - (arguments.k_steps < kLongSumSteps ? kOverlapSteps : kLongOverlapSteps));
    arguments.output_tiles = narrow(tiling.output_tiles);
    arguments.first_ragged_tile = problem.output[1] % tiling.folds == 0
                                      ? arguments.output_tiles
                                      : narrow((tiling.folded_rows - 1) * tiling.pitch / tiling.columns());
    arguments.stages = tiling.stages;
    arguments.stage_bytes = narrow(tiling.stage_bytes);
    arguments.buffers = tiling.buffers;
    arguments.buffer_bytes = narrow(tiling.buffer_bytes);
    arguments.double_buffered_filters = tiling.double_buffered_filters;
    arguments.second_buffer_offset = narrow(tiling.second_buffer_offset);
    arguments.writes_pairs = writes_pairs(problem, tiling);
    arguments.results_bytes = narrow(tiling.results_bytes);
    arguments.shared = tiling.shared;
    std::copy(tiling.row_mapping.begin(), tiling.row_mapping.end(), arguments.row_mapping);
    for (int step = 0; step < arguments.k_steps; ++step) {
      // The distance of the two half steps is unsigned. A missing half step has zero weights, so any distance
      // serves.
      HalfStep first = tiling.half_steps[2 * step], second = tiling.half_steps[2 * step + 1];
      if (second.channel_block >= 0 && tiling.offset_of(second) < tiling.offset_of(first))
        std::swap(first, second);
      const int64_t offset = tiling.offset_of(first);
      const int64_t distance = second.channel_block < 0 ? 1 : tiling.offset_of(second) - offset;
      arguments.half_steps[2 * step] = first, arguments.half_steps[2 * step + 1] = second;
      arguments.step_offsets[step] = static_cast<unsigned>(offset) | static_cast<unsigned>(distance) << 16;
    }
    // If y exceeds the L2 cache, its stores must not evict the data that is read next.
    arguments.evict_first =
        problem.output_elements() * bytes_per_element(problem.type) > device.l2_cache_bytes;
    return arguments;
  }

  static void bind(const ConvProblem& problem, const Tiling&, Arguments& arguments) {
    arguments.y_misalignment =
        narrow(static_cast<int64_t>(reinterpret_cast<uintptr_t>(arguments.y) % kAlignment) /
               bytes_per_element(problem.type));
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Launch&) {
    return grid_of_resident_blocks(problem.batch, problem.group * tiling.filter_blocks, device);
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined("whole images, ", tiling.filters, " filters x ", tiling.folds,
                  " rows at a time; GEMM of 64 x ", tiling.k_steps() * kWgmmaK, " x ",
                  tiling.output_tiles * tiling.columns(), ", the weights of ", tiling.register_steps(),
                  " of ", tiling.k_steps(), " steps in registers; ",
                  tiling.pairs_rows ? "two rows in a vector; " : "",
                  tiling.stages == 1 ? "1 chunk of channels in flight, "
                                     : joined(tiling.stages, " chunks of channels in flight, "),
                  tiling.buffers == 1 ? "1 buffer" : joined(tiling.buffers, " buffers"), " for results",
                  tiling.double_buffered_filters == 0
                      ? "; "
                      : joined(" and one for ", tiling.double_buffered_filters, " filters; "),
                  text_of(launch));
  }
};

class ImplicitGemm final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "implicit_gemm"; }
  bool rounds_depthwise() const override { return true; }
  bool fuses(const ConvProblem&) const override { return false; }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_1d_or_2d(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.input_size() == 0) return "the input has no pixels";
    // Offsets in shared memory need fewer bits than their types have. The following quantities are not
    // bounded by it.
    const int64_t blocks = problem.group * ceil_divide(problem.filters_per_group(), kWgmmaM);
    std::string reason = why_not_32_bit_indices(
        {problem.batch, problem.in_channels, problem.out_channels, blocks,
         problem.input_size() * kChunkChannels, padded_input(problem, 1), padded_input(problem, 2),
         problem.stride[1] * kWgmmaM, problem.stride[2], problem.dilation[1] * problem.filter[1],
         problem.dilation[2] * problem.filter[2],
         problem.channels_per_group() * problem.filter_size() * kWgmmaM});
    if (!reason.empty()) return reason;
    if (blocks > kMaxGridRows) {
      return joined("it takes at most ", kMaxGridRows, " groups of at most ", kWgmmaM, " filters");
    }
    return {};
  }

  std::string why_no_tiling(const ConvProblem& problem, const Device& device) const override {
    if (const int64_t limit = max_steps(problem, device); min_steps(problem, device) > limit) {
      return joined("its sums take more than ", limit, " products of the tensor core",
                    parts_of(problem) > 1 ? ", the most for precision ieee" : "");
    }
    return why_not_shared_memory("its images and their results do", device);
  }
};

}  // namespace
}  // namespace implicit_gemm

const Algorithm& cuda_implicit_gemm() {
  static const implicit_gemm::ImplicitGemm algorithm;
  return algorithm;
}

}  // namespace convswap
