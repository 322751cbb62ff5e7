// Convolution as a matrix product without im2col, on Hopper's tensor cores: the image lies in shared memory
// once, and every filter tap reads it from another place.
//
// Filters are the rows of the product and pixels its columns:
//
//   sums[(k, fold), pixel] = sum over half steps (bundle of channels, r, s) of
//                            w[k, 8 channels, r - fold, s] * image[bundle, pixel + (r, s), 8 channels]
//
// The tensor core takes from shared memory *cores*: 8 rows of 8 numbers, 16 bytes each. A *place* of the
// image holds 8 channels of a pixel, so that 8 neighbouring pixels are a core, wherever one begins to read:
// a tap is an address. Of channels that do not fill eight, up to four share their place with those of a
// neighbour, so that such a half step covers two taps. It is the next pixel of the row, and each is then
// stored twice, once behind its neighbour; or that of the next row, of two rows that always go together, and
// each is stored once, where planes of rows (as follows) are even in number and that takes fewer products, or
// the smaller converted image leaves results the room that they had better have.
//
// A product has 64 rows. Where filters are fewer, neighbouring output rows are *folded*: each filter comes
// once for each fold, shifted by a row. Rows of the image then lie in planes by their remainder (`phases`),
// as they do for strides. Products take 128 neighbouring places at a time, or 120 where fewer then lie behind
// the last output; what lies between two rows is computed and not stored.
//
// The weights of the first 24 steps stay in registers, which halves what is asked of shared memory; the rest
// is read from there each time.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does;
// tensor_core_formats.cuh tells how. Images whose values float16 cannot hold together are converted and
// multiplied once for each window of binades, and what comes of it is added to y by copies that add. float16
// and bfloat16 data go in as they are; in precision ieee float32 data become two float16 each, of which three
// products are taken. Sums are float32. Images with an infinity or a NaN are computed as the definition says.
//
// Data flow: one block on each multiprocessor, persistent, takes image after image, and its warps are
// producers or consumers, which arrive and wait at each other's barriers and never meet all together. Bulk
// copies bring four channels at a time into a ring of stages. Three warps, the producers, convert them into
// one of two slots. The consumers, two warpgroups, multiply, a product each in turns, so that one writes its
// results while the other multiplies. Results wait in the order of y until the whole
// image has been multiplied, and one warp has bulk copies take them away. Where there is no room for the
// results of two images, as many of the last filters as there is room for have two places, which images take
// in turns: the next image then waits for the others' copy alone. No scratch memory.
//
// Limits: 1-D and 2-D; float16, bfloat16 and float32; compute capability 9.0; two converted images, the
// results of one and what is on its way must fit into shared memory, so images are small and channels few; a
// sum takes at most 128 products of the tensor core, in precision ieee fewer (limits.h). What follows the
// convolution is computed by a second kernel. A block takes whole images, so that it is for batches that
// fill the card.

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

const KnownKernels known({.header = "cuda/implicit_gemm/kernel.cuh",
                          .instances = instance_names("implicit_gemm::kernel", kTensorCoreFormats,
                                                      kInstances),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = implicit_gemm::Tiling;
  using Arguments = implicit_gemm::Arguments<void>;
  static std::string name(const Tiling&) { return "implicit_gemm"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("implicit_gemm::kernel", tensor_core_format(problem),
                         Instance{tiling.tiles}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.definition = naive_conv_of(problem);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();
    to.block_filters = tiling.filters;
    to.filter_blocks = tiling.filter_blocks;
    to.dilation_height_divisor = FastDivisor(to.dilation_height);
    to.dilation_width_divisor = FastDivisor(to.dilation_width);
    to.input_width_divisor = FastDivisor(to.input_width);

    to.folds = tiling.folds;
    to.chunks = narrow(tiling.chunks);
    to.half_chunk = narrow(tiling.half_chunk);
    to.pairs_rows = tiling.pairs_rows;
    to.row_phases = FastDivisor(narrow(tiling.row_phases));
    to.column_phases = FastDivisor(narrow(tiling.column_phases));
    to.pitch = FastDivisor(narrow(tiling.pitch));
    to.plane_places = narrow(tiling.plane_places);
    to.plane_rows = narrow(tiling.plane_rows);
    to.bundle_places = narrow(tiling.bundle_places);
    to.part_places = narrow(tiling.part_places);
    to.slot_places = narrow(tiling.slot_places);
    to.steps = narrow(tiling.steps());
    to.steps_held = narrow(tiling.steps_held());
    to.turn_ends = std::max(0, to.steps - (to.steps < kLongSum ? kStepsOfBoth : kStepsOfBothInLongSums));
    to.output_chunks = narrow(tiling.output_chunks);
    to.first_ragged = problem.output[1] % tiling.folds == 0
                          ? to.output_chunks
                          : narrow((tiling.groups - 1) * tiling.pitch / tiling.columns());
    to.stages = tiling.stages;
    to.stage_bytes = narrow(tiling.stage_bytes);
    to.buffers = tiling.buffers;
    to.buffer_bytes = narrow(tiling.buffer_bytes);
    to.late_filters = tiling.late_filters;
    to.late_bytes = narrow(tiling.late_bytes);
    to.writes_pairs = writes_pairs(problem, tiling);
    to.results_bytes = narrow(tiling.results_bytes);
    to.shared = tiling.shared;
    std::copy(tiling.owners.begin(), tiling.owners.end(), to.rows);
    for (int step = 0; step < to.steps; ++step) {
      // The distance of the halves has no sign; what is no half meets weights of zero, wherever it is read.
      HalfStep first = tiling.half_steps[2 * step], second = tiling.half_steps[2 * step + 1];
      if (second.bundle >= 0 && tiling.place_of(second) < tiling.place_of(first)) std::swap(first, second);
      const int64_t place = tiling.place_of(first);
      const int64_t distance = second.bundle < 0 ? 1 : tiling.place_of(second) - place;
      to.half_steps[2 * step] = first, to.half_steps[2 * step + 1] = second;
      to.step_places[step] = static_cast<unsigned>(place) | static_cast<unsigned>(distance) << 16;
    }
    // A y that the cache cannot hold shall not drive out of it what is asked for next.
    to.leaves_first = problem.output_elements() * size_of(problem.type) > device.second_level_cache;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling&, Arguments& to) {
    to.y_misalignment =
        narrow(static_cast<int64_t>(reinterpret_cast<uintptr_t>(to.y) % kAlignment) / size_of(problem.type));
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Launch&) {
    return grid_of_resident_blocks(problem.batch, problem.group * tiling.filter_blocks, device);
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined(
        "whole images, ", tiling.filters, " filters x ", tiling.folds, " rows at a time; products of 64 x ",
        tiling.steps() * kDepth, " x ", tiling.output_chunks * tiling.columns(), ", the weights of ",
        tiling.steps_held(), " of ", tiling.steps(), " steps in registers; ",
        tiling.pairs_rows ? "two rows in a place; " : "",
        tiling.stages == 1 ? "1 chunk of channels on its way, "
                           : joined(tiling.stages, " chunks of channels on their way, "),
        tiling.buffers == 1 ? "1 buffer" : joined(tiling.buffers, " buffers"), " for results",
        tiling.late_filters == 0 ? "; " : joined(" and one for ", tiling.late_filters, " filters; "),
        text_of(launch));
  }
};

class ImplicitGemm final : public AlgorithmByTiling<KernelPlan<Family>, best_tiling> {
 public:
  std::string_view name() const override { return "implicit_gemm"; }
  bool rounds_depthwise() const override { return true; }
  bool fuses(const ConvProblem&) const override { return false; }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.input_size() == 0) return "the input has no pixels";
    // What fits into shared memory needs fewer bits than its indices have, but for the following.
    const int64_t blocks = problem.group * ceil_divide(problem.filters_per_group(), kRows);
    std::string reason =
        why_not_indexed({problem.batch, problem.in_channels, problem.out_channels, blocks,
                         problem.input_size() * kChunkChannels, padded_input(problem, 1),
                         padded_input(problem, 2), problem.stride[1] * kRows, problem.stride[2],
                         problem.dilation[1] * problem.filter[1], problem.dilation[2] * problem.filter[2],
                         problem.channels_per_group() * problem.filter_size() * kRows});
    if (!reason.empty()) return reason;
    if (blocks > kMostGridRows) {
      return joined("it takes at most ", kMostGridRows, " groups of at most ", kRows, " filters");
    }
    return {};
  }

  std::string why_no_tiling(const ConvProblem& problem, const Device& device) const override {
    if (const int64_t most = most_steps(problem, device); fewest_steps(problem, device) > most) {
      return joined("its sums take more than ", most, " products of the tensor core",
                    parts_of(problem) > 1 ? ", the most for precision ieee" : "");
    }
    return why_not_fitting("its images and their results do", device);
  }
};

}  // namespace
}  // namespace implicit_gemm

const Algorithm& cuda_implicit_gemm() {
  static const implicit_gemm::ImplicitGemm algorithm;
  return algorithm;
}

}  // namespace convswap
