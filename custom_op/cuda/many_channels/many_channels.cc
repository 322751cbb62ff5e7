// Convolution as a matrix product without im2col, for many channels, on Hopper's tensor cores.
//
// Filters are the rows of the product and pixels its columns:
//
//   sums[k, pixel] = sum over chunks of channels, taps (r, s) and bundles of eight channels of a chunk of
//                    w[k, 8 channels, r, s] * image[bundle, pixel + (r, s), 8 channels]
//
// The tensor core takes from shared memory *cores*: 8 rows of 8 numbers, 16 bytes each. A *place* of the
// image holds 8 channels of a pixel, so that 8 neighbouring pixels are a core, wherever one begins to read:
// a tap is an address, and what is loaded once serves all taps.
//
// Places are numbered through the whole batch: along a row, the rows of an image, the images. Zeros lie
// between rows, and rows of zeros between images, as many as padding asks for, and what pads the end of one
// pads the beginning of the next. A *tile* is so many neighbouring places, whatever rows or images they
// belong to, and what is computed of the places in between is not stored. For strides the padded input is
// split into *phases*, by the remainders of its rows and columns, each with places of its own. Where images
// are wide they are cut into *strips* of some columns, so that a tile is not a part of a row that needs the
// rows above and below it as well.
//
// A block takes a tile and 64 filters; its sums stay in the registers of two warpgroups, which have a half of
// the tile each.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does
// (tensor_core_formats.cuh). Weights have a scale for each filter. Of the input a scale serves chunk after
// chunk as long as it fits; where it does not, the sums so far are multiplied by a power of two, which is
// exact. What of a chunk lies 29 binades below the largest is converted once more behind the last chunk, by
// a scale of its own, and added. Weights that span two windows are multiplied in two passes. Tiles whose
// values span more than the sums can hold, or are infinite or no numbers, are computed as the definition
// says. float16 and bfloat16 data go in as they are.
//
// Data flow, in two kernels, or three:
// - `prepare` converts pixels into places and finds their scales, each pixel once for all blocks of filters:
// a
//   block takes some chunks of a tile, or of some neighbouring tiles, which share what they have at their
//   ends. What it writes lies as the other kernel copies it, a chunk after the other. It also finds where a
//   tile's results go, and prepares the weights, each chunk's in the order in which the tensor core takes
//   them, unless they are constant and have been prepared with the session (Plan::prepare).
// - In `kernel` two warps of a block are producers: they have bulk copies bring the chunks of pixels and of
//   weights into two rings of stages, and two warpgroups are consumers, which multiply. Two groups of
//   products are under way, so that the tensor core has one while a warp comes from the other. Results pass
//   through shared memory, part after part, to where neighbouring lanes store neighbouring columns, with what
//   follows the convolution. Blocks stay, and take works that are neighbours: those of a tile follow each
//   other.
// - Where there are too few works to fill the card, these are split over the channels, and `combine` adds the
//   sums of the splits in their order.
// Of inputs so large that what is prepared would take more than a gigabyte, both kernels take one band of
// tiles after the other. What each choice costs and what else was tried: benchmarks/many_channels.md.
//
// Of data with a depth each output plane is an image by itself, of which a *slice* is a strip, and the taps
// of the depth are as more chunks: of the same channels in another plane.
//
// Limits: float16, bfloat16, and float32 in precision tf32; compute capability 9.0; at most 256 taps of
// height and width. Of what follows a residual, ReLU and Clip are computed with it, SiLU and HardSwish of
// more than a few filters, and of 16-bit data every activation.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/arguments.h"
#include "cuda/host/limits.h"
#include "cuda/many_channels/plan.h"
#include "plan/epilogue_stage.h"

namespace convswap {
namespace many_channels {
namespace {

// Of prepared weights, where most of them are padding: where they are so many times as large as w, and beyond
// so many bytes.
constexpr int64_t kMostPadding = 8;
constexpr int64_t kMostPaddedBytes = int64_t{64} << 20;
// About where the rows of a tile cost as much as a kernel of its own takes for the filters.
constexpr int64_t kLeastFiltersOfSwish = 40;

class ManyChannels final : public Algorithm {
 public:
  std::string_view name() const override { return "many_channels"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  bool rounds_depthwise() const override { return true; }
  // A pool not, and other activations only where a kernel of their own would round twice: that takes less
  // time than to call them for one result after the other, and for few filters than to compute them here,
  // where warps without filters wait.
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return epilogue.pool.kind == PoolKind::none &&
           (only_limits(epilogue) ||
            (is_swish(epilogue) && problem.filters_per_group() >= kLeastFiltersOfSwish) ||
            !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty());
  }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::optional<Tiling> tiling = best_tiling(problem, device);
    if (!tiling) return Offer::refusal(why_no_tiling(problem, device));
    if (std::string reason = why_not_reached(problem, *tiling); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    return offer_of(problem, device, *tiling);
  }

  std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                  std::size_t most) const override {
    std::vector<Offer> all;
    if (!fuses(problem) || !why_not_at_all(problem, device).empty()) return all;
    for (const Tiling& tiling : cheapest_tilings(problem, device)) {
      if (all.size() == most) break;
      if (why_not_reached(problem, tiling).empty()) all.push_back(offer_of(problem, device, tiling));
    }
    return all;
  }

 private:
  static Offer offer_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    return {{},
            tiling.cost / 1e6,
            [problem, device, tiling] { return many_channels::make_plan(problem, device, tiling); },
            [problem, tiling] { return many_channels::kernel_names(problem, tiling); },
            /*needs_scratch=*/true};
  }

  // Before a tiling is sought.
  static std::string why_not_at_all(const ConvProblem& problem, const Device& device) {
    if (std::string reason = why_not_float(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision == Precision::ieee) {
      return "it does not compute float32 in precision ieee";
    }
    return why_not_indexed(
        {problem.batch, problem.in_channels, problem.out_channels, problem.in_channels * problem.input_size(),
         problem.out_channels * problem.output_size(), problem.channels_per_group() * problem.filter_size(),
         problem.input[0] + problem.pad_begin[0] + problem.pad_end[0],
         problem.input[1] + problem.pad_begin[1] + problem.pad_end[1],
         problem.input[2] + problem.pad_begin[2] + problem.pad_end[2],
         problem.dilation[0] * problem.filter[0], problem.dilation[1] * problem.filter[1],
         problem.dilation[2] * problem.filter[2]});
  }

  // What the offsets within a tile must reach, of the input and of the output.
  static std::string why_not_reached(const ConvProblem& problem, const Tiling& tiling) {
    const int64_t images =
        2 + tiling.prepared_span / (tiling.strips * problem.output[0] * tiling.rows * tiling.pitch);
    // Padding before the first plane lies before the input.
    const int64_t padding = (problem.pad_begin[0] + problem.dilation[0] * problem.filter[0]) *
                            problem.input[1] * problem.input[2];
    const int64_t weights = tiling.prepared_weight_bytes(problem);
    if (weights >
        std::max(kMostPaddedBytes, kMostPadding * problem.out_channels * problem.channels_per_group() *
                                       problem.filter_size() * size_of(problem.type))) {
      return "its weights, padded to 64 filters and 16 channels of each group, take " +
             std::to_string(weights) + " bytes";
    }
    return why_not_indexed({images * problem.in_channels * problem.input_size() + padding,
                            images * problem.out_channels * problem.output_size(),
                            tiling.filter_rows(problem), tiling.works(problem)});
  }

  static std::string why_no_tiling(const ConvProblem& problem, const Device& device) {
    if (problem.filter[1] * problem.filter[2] > kMostSteps) {
      return "its filters have more than " + std::to_string(kMostSteps) + " taps of height and width";
    }
    return "its tiles do not fit into the " + std::to_string(device.shared_memory_per_block) +
           " bytes of shared memory of " + device.name;
  }
};

}  // namespace
}  // namespace many_channels

const Algorithm& cuda_many_channels() {
  static const many_channels::ManyChannels algorithm;
  return algorithm;
}

}  // namespace convswap
