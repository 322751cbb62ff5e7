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

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/host/formats.h"
#include "cuda/host/limits.h"
#include "cuda/implicit_gemm/plan.h"

namespace convswap {
namespace implicit_gemm {
namespace {

class ImplicitGemm final : public Algorithm {
 public:
  std::string_view name() const override { return "implicit_gemm"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  bool rounds_depthwise() const override { return true; }
  bool fuses(const ConvProblem&) const override { return false; }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::optional<Tiling> tiling = best_tiling(problem, device);
    if (!tiling) return Offer::refusal(why_no_tiling(problem, device));
    return {{},
            tiling->cost * 1e-6,
            [problem, device, own = *tiling] { return implicit_gemm::make_plan(problem, device, own); },
            [problem, own = *tiling] { return std::vector{implicit_gemm::kernel_name(problem, own)}; }};
  }

 private:
  // Before a tiling is sought.
  static std::string why_not_at_all(const ConvProblem& problem, const Device& device) {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.input_size() == 0) return "the input has no pixels";
    // What fits into shared memory needs fewer bits than its indices have, but for the following.
    const int64_t blocks = problem.group * ceil_divide(problem.filters_per_group(), kRows);
    std::string reason = why_not_indexed(
        {problem.batch, problem.in_channels, problem.out_channels, blocks,
         problem.input_size() * kChunkChannels, problem.input[1] + problem.pad_begin[1] + problem.pad_end[1],
         problem.input[2] + problem.pad_begin[2] + problem.pad_end[2], problem.stride[1] * kRows,
         problem.stride[2], problem.dilation[1] * problem.filter[1], problem.dilation[2] * problem.filter[2],
         problem.channels_per_group() * problem.filter_size() * kRows});
    if (!reason.empty()) return reason;
    if (blocks > kMostGridRows) {
      return "it takes at most " + std::to_string(kMostGridRows) + " groups of at most " +
             std::to_string(kRows) + " filters";
    }
    return {};
  }

  static std::string why_no_tiling(const ConvProblem& problem, const Device& device) {
    if (const int64_t most = most_steps(problem, device); fewest_steps(problem, device) > most) {
      return "its sums take more than " + std::to_string(most) + " products of the tensor core" +
             (parts_of(problem) > 1 ? ", the most for precision ieee" : "");
    }
    return "its images and their results do not fit into the " +
           std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " + device.name;
  }
};

}  // namespace
}  // namespace implicit_gemm

const Algorithm& cuda_implicit_gemm() {
  static const implicit_gemm::ImplicitGemm algorithm;
  return algorithm;
}

}  // namespace convswap
