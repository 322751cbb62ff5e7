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

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/primitives/warpgroup.h"
#include "cuda/toeplitz/arguments.h"
#include "cuda/toeplitz/family.h"
#include "plan/epilogue_stage.h"

namespace convswap {
namespace toeplitz {
namespace {

const KnownKernels known({.header = "cuda/toeplitz/kernel.cuh",
                          .instances = instance_names("toeplitz::kernel", kTensorCoreFormats, kInstances),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = toeplitz::Tiling;
  using Arguments = toeplitz::Arguments<void>;
  static std::string name(const Tiling&) { return "toeplitz"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("toeplitz::kernel", tensor_core_format(problem),
                         Instance{tiling.tiles, !problem.epilogue.is_empty()}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.definition = naive_conv_of(problem);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();
    to.is_unpadded = is_unpadded(problem, tiling.cut);
    to.dilation_height_divisor = FastDivisor(to.dilation_height);
    to.dilation_width_divisor = FastDivisor(to.dilation_width);
    set_cut(problem, tiling, to);
    set_input(problem, tiling, to);
    set_tile(problem, tiling, to);
    set_results(problem, tiling, to);
    to.shared = tiling.shared;
    to.cores_bytes = narrow(tiling.cores_bytes);
    to.raw_bytes = narrow(tiling.raw_bytes);
    place_steps(tiling, to.step_cores, to.step_places);
    // A y that the cache cannot hold shall not drive out of it input that is asked for ahead of time. Where
    // copies bring the input nothing is to be kept, and parts of lines had better wait for the rest.
    const int64_t y_bytes = problem.result_elements() * size_of(problem.type);
    to.leaves_first = problem.epilogue.is_empty() && y_bytes > device.second_level_cache &&
                      (!tiling.copies_input || stores_whole_lines(problem, tiling));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    // Copies take what is aligned.
    to.copies_input = tiling.copies_input && reinterpret_cast<uintptr_t>(to.x) % kAlignment == 0;
    to.source_plane = to.copies_input ? narrow(tiling.source_plane) : to.input_plane;
    to.y_misalignment =
        narrow(static_cast<int64_t>(reinterpret_cast<uintptr_t>(to.y) % kCacheLine) / size_of(problem.type));
  }

  static int threads(const Tiling& tiling) { return kWarpgroupThreads * tiling.warpgroups; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Launch&) {
    return grid_of_resident_blocks(tiling.tile_count, problem.group, device);
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Cut& cut = tiling.cut;
    return joined("tiles of ", tiling.images, " images x ", tiling.rows * cut.folds, " rows",
                  tiling.overlap > 0 ? joined(" (", tiling.overlap, " of them the next tile's too)") : "",
                  " x ", tiling.cores * cut.outputs, " columns, ", tiling.filters_per_block,
                  " filters at a time; products of ", tiling.chunks * kRows, " x ", cut.steps() * kDepth,
                  " x ", tiling.tiles * kTileColumns, " for ", cut.outputs, " x ", cut.folds, " outputs, ",
                  cut.bundle, " channels side by side; ", tiling.copies_input ? "input by bulk copies; " : "",
                  text_of(launch));
  }

 private:
  // How the filter's bundles lie in the product's depth.
  static void set_cut(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const auto log2 = [](int value) { return std::countr_zero(static_cast<unsigned>(value)); };
    const Cut& cut = tiling.cut;
    to.source_image = narrow(tiling.source_image);
    // Rows of cores begin whole widths of the input and whole rows of cores apart.
    to.load_bytes =
        1 << std::countr_zero(static_cast<unsigned>(kAlignment | problem.input[2] * size_of(problem.type) |
                                                    cut.pixels * size_of(problem.type)));
    to.log2_bundle = log2(cut.bundle);
    to.log2_outputs = log2(cut.outputs);
    to.folds = cut.folds;
    to.log2_folds = log2(cut.folds);
    to.bundles = FastDivisor(narrow(cut.bundles));
    to.window_rows = narrow(cut.window_rows);
    to.window_cores = narrow(cut.window_cores);
    to.steps = narrow(cut.steps());
    to.steps_divisor = FastDivisor(to.steps);
    to.row_phases = FastDivisor(cut.row_phases);
    to.column_phases = FastDivisor(cut.column_phases);
    to.window_rows_divisor = FastDivisor(to.window_rows);
    to.window_cores_divisor = FastDivisor(to.window_cores);
  }

  // How the input lies in shared memory.
  static void set_input(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const Cut& cut = tiling.cut;
    to.pitch = FastDivisor(narrow(tiling.pitch));
    to.core_rows = narrow(tiling.core_rows);
    to.plane_cores = narrow(tiling.plane_cores);
    to.image_cores = narrow(tiling.image_cores);
    to.part_cores = narrow(tiling.part_cores);
    to.cores_per_row = FastDivisor(narrow(tiling.cores_per_row));
    to.input_rows = narrow(tiling.input_rows);
    to.items_per_row = narrow(cut.bundles * tiling.cores_per_row);
    to.image_items = narrow(tiling.image_items);
    to.lines_per_channel =
        FastDivisor(narrow(tiling.input_rows * problem.input[2] * size_of(problem.type) / kCacheLine + 2));
  }

  static void set_tile(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const Cut& cut = tiling.cut;
    to.images = tiling.images;
    to.rows = tiling.rows;
    to.cores = tiling.cores;
    const int64_t core_columns = ceil_divide(problem.output[2], cut.outputs);
    to.bands = FastDivisor(narrow(tiling.bands));
    to.row_advance = narrow(tiling.row_advance);
    to.y_rows = narrow(tiling.y_rows);
    to.stores_lines = tiling.overlap > 0;
    to.pools = problem.epilogue.pool.kind != PoolKind::none;
    to.pool_pad_height = to.pools ? narrow(problem.epilogue.pool.pad_begin[0]) : 0;
    to.column_tiles = FastDivisor(narrow(ceil_divide(core_columns, tiling.cores)));
    to.tiles = narrow(tiling.tile_count);
    to.product_rows = narrow(tiling.product_rows);
  }

  // What becomes of the sums, and how results are stored.
  static void set_results(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const Cut& cut = tiling.cut;
    const int64_t element_bytes = size_of(problem.type);
    to.filters_per_block = tiling.filters_per_block;
    to.filter_blocks = tiling.filter_blocks;
    to.results = tiling.results;
    to.stored = tiling.stored;
    to.pools_sums = pools_sums(problem, cut);
    to.fold_distance = to.pools_sums ? 0 : to.results.row;
    to.finish = finish_of(problem, cut);
    to.lies_apart = lies_apart(problem, to.finish);
    const bool is_bounded = to.finish != Finish::everything;
    to.least = is_bounded ? bounds_of(problem.epilogue).least : -std::numeric_limits<float>::infinity();
    to.most = is_bounded ? bounds_of(problem.epilogue).most : std::numeric_limits<float>::infinity();
    to.result_bytes = to.lies_apart ? narrow(sizeof(float)) : narrow(element_bytes);
    to.writes_pairs = cut.outputs > 1 && problem.output[2] % 2 == 0 && tiling.results.row % 2 == 0 &&
                      tiling.results.plane % 2 == 0 && tiling.results.image % 2 == 0;
  }
};

class Toeplitz final : public AlgorithmByTiling<KernelPlan<Family>, best_tiling> {
 public:
  std::string_view name() const override { return "toeplitz"; }
  bool rounds_depthwise() const override { return true; }

  // In float32, where a kernel of its own rounds nothing more, an activation alone that does more than bound
  // is left to one: SiLU and HardSwish take as long there, the others less.
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return is_floored(epilogue) || epilogue.activation == Activation::clip || epilogue.has_residual ||
           epilogue.pool.kind != PoolKind::none ||
           !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty();
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_fitting("its matrix and its smallest tile do", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_flat(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    // The kernel's indices inside an image have 32 bits.
    std::string reason = why_not_indexed(
        {problem.batch, problem.in_channels * problem.input_size(),
         problem.out_channels * problem.output_size(), problem.out_channels * problem.result_size(),
         padded_input(problem, 1) + problem.stride[1], padded_input(problem, 2) + problem.stride[2],
         problem.dilation[1] * problem.filter[1], problem.dilation[2] * problem.filter[2],
         problem.channels_per_group() * problem.filter_size() * 16});
    if (!reason.empty()) return reason;
    if (cuts_of(problem, device).empty()) {
      return joined("its sums take more than ", most_steps(problem, device), " products of the tensor core",
                    parts_of(problem) > 1 ? ", the most for precision ieee" : "");
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
