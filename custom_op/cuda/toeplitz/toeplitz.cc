// Convolution as a product with a Toeplitz matrix, on Hopper's tensor cores, both operands read straight from
// shared memory.
//
// im2col gives each output pixel a row of its own and fetches every input once per filter tap. Here a row of
// the product is a *group* of neighbouring outputs, and the matrix holds each filter once per output of the
// group, shifted by a pixel from one to the next (a Toeplitz matrix): a row of 8 numbers of the input serves
// all of them at once.
//
//   sums[group, (k, j)] = sum over cores (c, r, v) of
//                         input[row + r, core column + v, 8 numbers] * matrix[(c, r, v), 8 numbers, (k, j)]
//   matrix[(c, r, v), i, (k, j)] = w[k, c, r, 8 v + i - j], zero where the filter has no such tap
//
// What the tensor core takes from shared memory are *cores*: 8 rows of 8 numbers, 16 bytes each. The 8
// numbers of a row are 8 neighbouring pixels of one channel, 4 of two, 2 of four or one of eight (`bundle`
// channels). Neighbouring rows of a core are neighbouring groups, so that an image that is stored once, 16
// bytes for each group, is a core wherever one begins to read: no im2col, no address, no operand in
// registers. Nothing is left for the threads but to convert the input and to scale the sums.
//
// A stride or *folded* output rows (several rows computed for one row of the product) split the image by the
// remainder of its rows and core columns (`phases`), after which every window advances by one.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does;
// tensor_core_formats.cuh tells how, and what happens to values that float16 cannot hold together. float16
// and bfloat16 data go in as they are; in precision ieee float32 data become two float16 each, of which three
// products are taken. Sums are float32. Tiles with an infinity or a NaN are computed as the definition says.
//
// Data flow: one block on each multiprocessor, persistent, holds the matrix. Up to four warpgroups
// take tiles, each on its own: one converts its input while another multiplies and a third writes its
// results, which wait in shared memory in y's order and go out in bulk copies, where they lie as far from a
// line of the cache as in y. Without padding, and where shared memory has the room, bulk copies also bring a
// warpgroup's next input while it multiplies this one. No scratch memory.
//
// Memory takes long for lines that come in parts (benchmarks/memory_traffic.cu). So, without anything that
// follows, neighbouring tiles go to the warpgroups of one multiprocessor, and where it is cheaper a tile also
// computes as many rows of the next one as complete its last line. Which tile stores such a result depends on
// where y begins, and so may its last bits.
//
// What follows the convolution is computed before anything leaves the multiprocessor: bounds (Relu, Clip)
// where a sum is scaled; a pool of 2 x 2 of the sums in registers, when two output rows are folded; other
// activations of what waits in shared memory, and a residual or any other pool of results that wait there
// apart, in float32.
//
// Limits: 1-D and 2-D; float16, bfloat16 and float32; compute capability 9.0; the matrix and a tile must fit
// into shared memory, which makes it an algorithm for few channels and filters of moderate size; in precision
// ieee sums must be short (limits.h).

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/formats.h"
#include "cuda/host/limits.h"
#include "cuda/toeplitz/plan.h"
#include "plan/epilogue_stage.h"

namespace convswap {
namespace toeplitz {
namespace {

class Toeplitz final : public Algorithm {
 public:
  std::string_view name() const override { return "toeplitz"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  bool rounds_depthwise() const override { return true; }

  // In float32, where a kernel of its own rounds nothing more, an activation alone that does more than bound
  // is left to one: SiLU and HardSwish take as long there, the others less.
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return is_floored(epilogue) || epilogue.activation == Activation::clip || epilogue.has_residual ||
           epilogue.pool.kind != PoolKind::none ||
           !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty();
  }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::optional<Tiling> tiling = best_tiling(problem, device);
    if (!tiling) {
      return Offer::refusal("its matrix and its smallest tile do not fit into the " +
                            std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " +
                            device.name);
    }
    return {{},
            tiling->cost * 1e-6,
            [problem, device, own = *tiling] { return toeplitz::make_plan(problem, device, own); },
            [problem, own = *tiling] { return std::vector{toeplitz::kernel_name(problem, own)}; }};
  }

 private:
  // Before a tiling is sought.
  static std::string why_not_at_all(const ConvProblem& problem, const Device& device) {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    // The kernel's indices inside an image have 32 bits.
    std::string reason = why_not_indexed(
        {problem.batch, problem.in_channels * problem.input_size(),
         problem.out_channels * problem.output_size(), problem.out_channels * problem.result_size(),
         problem.input[1] + problem.pad_begin[1] + problem.pad_end[1] + problem.stride[1],
         problem.input[2] + problem.pad_begin[2] + problem.pad_end[2] + problem.stride[2],
         problem.dilation[1] * problem.filter[1], problem.dilation[2] * problem.filter[2],
         problem.channels_per_group() * problem.filter_size() * 16});
    if (!reason.empty()) return reason;
    if (cuts_of(problem, device).empty()) {
      return "its sums take more than " + std::to_string(most_steps(problem, device)) +
             " products of the tensor core" + (parts_of(problem) > 1 ? ", the most for precision ieee" : "");
    }
    return {};
  }
};

}  // namespace
}  // namespace toeplitz

const Algorithm& cuda_toeplitz() {
  static const toeplitz::Toeplitz algorithm;
  return algorithm;
}

}  // namespace convswap
