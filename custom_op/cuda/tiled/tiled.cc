// Tiles in shared memory, sums in registers, ordinary arithmetic: the kernel for what tensor cores do not pay
// for.
//
// A block computes a tile of one image's outputs for some filters of one group. It stages what the tile needs
// of a few channels, zeros where the image ends, and these channels' weights, filters side by side; then each
// thread multiplies, with up to 2 x 4 pixels of 8 filters in registers: for each tap eight pixels and two
// loads of four weights, and 64 multiplications. Neighbouring threads have neighbouring pixels, so that none
// of these loads meets a conflict of banks, and weights reach all of them at once.
//
// Small problems are cut finer: small tiles, few filters of a thread, and up to eight threads that share the
// same outputs, each with filter rows of its own. Their sums meet in shared memory, from which all threads
// then write: residual, activation and the pool, whose windows a tile holds whole.
//
// Sums are float32 whatever the precision, of float16 and bfloat16 data too, and float64 of float64 data.
//
// Data flow: one kernel, no scratch memory; several blocks on a multiprocessor, of which one stages while
// others multiply.
//
// Of data with a depth an output plane is an image by itself, and what a tap of the depth reads of a channel
// is a channel.
//
// Limits: a pool whose windows lie side by side without padding,
// of 1, 2 or 4 outputs each way; any other pool is a second kernel. Padding is zeros that are multiplied like
// data, so that an infinite weight over padding gives NaN.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/limits.h"
#include "cuda/tiled/plan.h"

namespace convswap {
namespace tiled {
namespace {

bool pools_inside_tiles(const Pool& pool) {
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t extent = pool.kernel[axis];
    if (extent != 1 && extent != 2 && extent != 4) return false;
    if (pool.stride[axis] != extent || pool.pad_begin[axis] != 0 || pool.pad_end[axis] != 0) return false;
  }
  return true;
}

class Tiled final : public Algorithm {
 public:
  std::string_view name() const override { return "tiled"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  // Any other pool is a kernel of its own.
  bool fuses(const ConvProblem& problem) const override { return pools_inside_tiles(problem.epilogue.pool); }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::optional<Tiling> tiling = best_tiling(problem, device);
    if (!tiling) {
      return Offer::refusal("its smallest tile, one channel of a filter's reach, does not fit into the " +
                            std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " +
                            device.name);
    }
    return {{},
            tiling->cost * 1e-6,
            [problem, device, own = *tiling] { return tiled::make_plan(problem, device, own); },
            [problem, own = *tiling] { return std::vector{tiled::kernel_name(problem, own)}; }};
  }

 private:
  // Before a tiling is sought.
  static std::string why_not_at_all(const ConvProblem& problem) {
    if (std::string reason = why_not_counted(problem); !reason.empty()) return reason;
    std::string too_far = why_not_indexed(
        {problem.in_channels * problem.input_size(), problem.out_channels * problem.output_size(),
         problem.batch * problem.output_size(), problem.channels_per_group() * problem.filter_size() * 64,
         problem.input[0] + problem.pad_begin[0] + problem.pad_end[0] +
             problem.dilation[0] * problem.filter[0],
         problem.input[1] + problem.pad_begin[1] + problem.pad_end[1],
         problem.input[2] + problem.pad_begin[2] + problem.pad_end[2]});
    if (!too_far.empty()) return too_far;
    // Blocks of different filters are rows of the grid.
    if (problem.out_channels > kMostGridRows) {
      return "it takes at most " + std::to_string(kMostGridRows) + " filters";
    }
    return {};
  }
};

}  // namespace
}  // namespace tiled

const Algorithm& cuda_tiled() {
  static const tiled::Tiled algorithm;
  return algorithm;
}

}  // namespace convswap
