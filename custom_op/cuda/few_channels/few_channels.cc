// Implicit matrix multiplication on the tensor cores, for few input channels.
//
// With few channels a convolution reads little, writes much and multiplies little, so it should take as long
// as its output takes to write. What stands in the way is everything around the multiplication: im2col
// fetches each input from shared memory once per filter tap, computes an address for each fetch and moves
// the result to where the tensor core wants it. Here pixels are the rows of the product, filters its
// columns, and the depth runs over *bundles of two or four filter rows* (c, r), four bundles at a time,
// while the taps s of a row follow each other in time:
//
//   once per tile:            staged[line, column] = the pixels of a bundle, of one half of the tile
//                             and of the other, as float16 side by side: what the tensor core takes
//                             as one operand
//   for each four bundles:    each thread loads the taps + 3 columns that four neighbouring pixels need
//     for each tap s:         sums[pixel, k] += columns[pixel + s] * w[bundle, s, k]      (tensor core)
//
// A bundle is up to four channels, or rows of one channel further and further down, whichever fills the
// depth best. The inner loop is loads and tensor-core instructions and nothing else: the operands lie in the
// registers where the 16-byte loads have put them. Four neighbouring outputs end up in one thread, and go
// out 16 bytes at a time where rows are aligned, else through shared memory. Columns of a strided
// convolution are staged by their remainder, which makes each remainder a filter row of its own with unit
// stride.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does;
// tensor_core_formats.cuh tells how, and what happens to values that float16 cannot hold together. float16
// and bfloat16 data go in as they are; in precision ieee float32 data become two float16 each, of which three
// products are taken. Sums are float32. Tiles with an infinity or a NaN are computed as the definition says.
//
// Data flow: persistent blocks; the weights are converted and laid out once per block; the raw input of the
// next tile is copied asynchronously while the tensor cores work on this one. No scratch memory.
//
// What follows is computed of the sums if it is an activation that only limits, SiLU or HardSwish, and
// nothing else: behind the last pass and the last window, of what they have added up.
//
// Limits: 1-D and 2-D; float16, bfloat16 and float32; compute capability 8.0 or newer;
// filters whose rows have at most 11 taps for each remainder of the stride; a smallest tile that fits into
// shared memory. It stages all channels at once, which is what makes it an algorithm for few of them: where
// they do not fit, or in precision ieee their sums get too long (limits.h), it takes several passes, each of
// which reads and writes the output again, and which only float32 data allow.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/few_channels/plan.h"
#include "cuda/host/activation_cost.h"
#include "cuda/host/arguments.h"
#include "cuda/host/limits.h"

namespace convswap {
namespace few_channels {
namespace {

class FewChannels final : public Algorithm {
 public:
  std::string_view name() const override { return "few_channels"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  bool rounds_depthwise() const override { return true; }
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return !epilogue.has_residual && epilogue.pool.kind == PoolKind::none &&
           (only_limits(epilogue) || is_swish(epilogue));
  }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::vector<Pass> passes = passes_of(problem, device);
    if (passes.empty() || (passes.size() > 1 && problem.type != ElementType::float32)) {
      return Offer::refusal("its smallest tile, one channel of a filter's reach, does not fit into the " +
                            std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " +
                            device.name);
    }
    double nanoseconds = activation_nanoseconds(problem, device);
    for (const Pass& pass : passes) nanoseconds += pass.tiling.estimate;
    return {{},
            nanoseconds * 1e-6,
            [problem, device, passes] { return few_channels::make_plan(problem, device, passes); },
            [problem, passes] { return few_channels::kernel_names(problem, passes); }};
  }

 private:
  // For a cycle of a scheduler 0.003 of each result of a multiprocessor: chosen by what the suite `fused`
  // took (benchmarks/activations.md), not fitted. Of several passes the last calls it, which takes longer;
  // such have not been timed.
  static double activation_nanoseconds(const ConvProblem& problem, const Device& device) {
    const double results = static_cast<double>(problem.batch * problem.out_channels) *
                           static_cast<double>(problem.output_size());
    return 0.003 * activation_cycles(problem.epilogue) * results / std::max(1, device.multiprocessors);
  }

  // Before tilings are sought.
  static std::string why_not_at_all(const ConvProblem& problem, const Device& device) {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_from(80, device); !reason.empty()) return reason;
    // The kernel's indices inside an image have 32 bits; the six planes between the first and the last but
    // one of eight filters have them without a sign.
    std::string reason = why_not_indexed(
        {problem.batch, problem.in_channels, problem.out_channels, problem.output_size() * 3 / 2,
         problem.input[1] + problem.pad_begin[1] + problem.pad_end[1] + problem.stride[1],
         problem.input[2] + problem.pad_begin[2] + problem.pad_end[2] + problem.stride[2],
         problem.channels_per_group() * problem.filter_size() * 16});
    if (!reason.empty()) return reason;
    const FilterBundles bundles(problem);
    if (bundles.taps > kMostTaps) {
      return "filter rows of " + std::to_string(problem.filter[2]) + " taps at stride " +
             std::to_string(problem.stride[2]) + " are wider than its " + std::to_string(kMostTaps);
    }
    if (loses_accuracy(problem_with_channels(problem, 1), 1, device)) {
      return "sums over a filter of " + std::to_string(problem.filter[1]) + " x " +
             std::to_string(problem.filter[2]) + " taps are too long for its precision ieee";
    }
    return {};
  }
};

}  // namespace
}  // namespace few_channels

const Algorithm& cuda_few_channels() {
  static const few_channels::FewChannels algorithm;
  return algorithm;
}

}  // namespace convswap
