// Changes of a tensor's layout between NCHW and NHWC, for algorithms that do not take the layout: a matrix
// transposition of each image. A block reads a tile into shared memory row by row and writes it column by
// column, so that global loads and stores are both coalesced. The kernel is bound by memory.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/estimate.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "cuda/layout/arguments.h"
#include "plan/layout_stage.h"

namespace convswap {
namespace layout {
namespace {

// More blocks than any card holds at once; the kernel's grid-stride loop covers the remaining tiles.
constexpr int64_t kMaxBlocks = 1 << 20;
// A type of each size.
constexpr std::string_view kElementOfSize[] = {"Float16", "float", "double"};

const KernelRegistration registration({.header = "cuda/layout/kernel.cuh",
                                       .instances = instance_names("layout::kernel", kElementOfSize)});

struct Family {
  using Tiling = Transposition;
  using Arguments = layout::Arguments<void>;
  static std::string name(const Tiling&) { return "layout"; }

  static std::string kernel_name(const ConvProblem&, const Tiling& transposition) {
    const int64_t bytes = bytes_per_element(transposition.type);
    return instance_name("layout::kernel", kElementOfSize[bytes == 8 ? 2 : bytes == 4 ? 1 : 0]);
  }

  static Arguments arguments_of(const ConvProblem&, const Device&, const Tiling& transposition) {
    const int64_t extent =
        bytes_per_element(transposition.type) == 8 ? TileShape<8>::kExtent : TileShape<4>::kExtent;
    Arguments to{};
    to.rows = transposition.rows;
    to.columns = transposition.columns;
    to.row_tiles = ceil_divide(transposition.rows, extent);
    to.column_tiles = ceil_divide(transposition.columns, extent);
    to.tiles = transposition.images * to.row_tiles * to.column_tiles;
    return to;
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling& transposition) {
    const int64_t bytes = bytes_per_element(transposition.type);
    return bytes == 8 ? TileShape<8>::kBytes : bytes == 4 ? TileShape<4>::kBytes : TileShape<2>::kBytes;
  }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& transposition,
                      const Launch&) {
    const int64_t tiles = arguments_of(problem, device, transposition).tiles;
    return {static_cast<unsigned>(std::min(kMaxBlocks, tiles))};
  }

  static std::string describe(const ConvProblem&, const Tiling&, const Launch& launch) {
    return joined("transposed by ", launch.grid.x, " blocks of ", kThreads, " threads");
  }
};

class Stage final : public LayoutStage {
 public:
  // Every byte is read once and written once.
  double estimate(const Transposition& transposition, const Device& device) const override {
    const Costs& costs = costs_of(device);
    const double nanoseconds =
        costs.layout.launch + 2 * to_double(transposition.bytes()) / costs.layout.memory;
    return nanoseconds * 1e-6;
  }

  std::unique_ptr<Plan> make(const Transposition& transposition, const Device& device) const override {
    return std::make_unique<KernelPlan<Family>>(ConvProblem{}, device, transposition);
  }

  std::vector<std::string> kernels(const Transposition& transposition) const override {
    return {Family::kernel_name({}, transposition)};
  }
};

}  // namespace
}  // namespace layout

const LayoutStage& cuda_layout_stage() {
  static const layout::Stage stage;
  return stage;
}

}  // namespace convswap
