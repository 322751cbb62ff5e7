// Convolution as a product with a Toeplitz matrix on Hopper's tensor cores (wgmma), with both operands read
// from shared memory.
//
// im2col gives each output pixel its own row of the product and fetches every input once per filter tap. Here
// a row of the product is a *span* of neighbouring outputs in an output row. The matrix of weights holds each
// filter once per output of the span, shifted by a pixel from one to the next (a Toeplitz matrix). One
// *vector* of 8 input elements therefore serves all outputs of the span.
//
//   accumulators[span, (k, j)] = sum over the vectors (c, r, v) of the span's window and i < 8 of
//                                input[c, row + r, vector column + v, i] * matrix[(c, r, v), i, (k, j)]
//   matrix[(c, r, v), i, (k, j)] = w[k, c, r, 8 v + i - j], zero if the filter has no such tap
//
// for stride 1, without dilation and folds, and with one channel in a vector. A *matrix column* is (filter k,
// fold f, output j), j fastest: output j of the span in row f of the folded rows of output channel k, whose
// weights are filter k.
//
// wgmma reads *core matrices* from shared memory: 8 rows of 16 bytes (wgmma.cuh). A vector is such a row: 8
// neighbouring pixels of one channel, 4 of two, 2 of four or one of eight (`bundle` channels). With stride 1
// a span has as many outputs as a vector has pixels (8 / bundle), so the window of the next span begins one
// vector later. With stride s, a span has pixels / gcd(pixels, s) outputs. Neighbouring rows of a core matrix
// are neighbouring spans. Any 8 neighbouring vectors of a staged image are therefore a core matrix: no
// im2col, no address arithmetic per tap, no operand in registers. The threads build the matrix once, convert
// the input, and scale and write the accumulators.
//
// *Folds* are several output rows computed by one row of the product: a *folded row*. The next folded row
// begins folds x stride_h input rows below, and the next span s / gcd(pixels, s) vectors to the right. Input
// row i belongs to *stride phase* i mod the first distance, and vector i of a row to stride phase i mod the
// second. If the stride divides the pixels of a vector, the second distance is 1. Each pair of stride phases
// is staged as a plane of its own, in which the window moves by one vector from span to span and by one row
// from folded row to folded row.
//
// An *output tile* is some images, rows and spans of the output. A warpgroup computes one at a time, 64 spans
// (an M tile) per wgmma. An *accumulator tile* is 64 spans and 8 matrix columns. Spans are numbered through
// the rows of an output tile. The numbers between two rows are a gap: its accumulators are computed, but not
// stored.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does.
// tensor_core_formats.cuh describes the conversion, and the windows of binades for values that one scale
// cannot hold. float16 and bfloat16 data are operands as they are. In precision ieee float32 data become two
// float16 each, with three products. Accumulators are float32. The naive loop computes output tiles with an
// infinity or a NaN, and all output tiles of a conv group whose weights have one. With an epilogue it also
// computes all output tiles if the weights span several windows.
//
// Data flow: one persistent block on a multiprocessor holds the matrix of its conv group (grid.y). If
// the matrix columns of all filters exceed the accumulators, a warpgroup makes several passes over an output
// tile, each for some of the filters (a *filter pass*). Up to four warpgroups compute output tiles
// independently: one converts its input while another multiplies and a third writes its results. Results are
// staged in shared memory in y's order, at y's offset from a cache line, and stored by TMA. Without padding
// or an epilogue, TMA can also load the input of a warpgroup's next output tile while the warpgroup computes
// one. This needs output tiles of full width, an x aligned to 16 bytes, and room in shared memory. No scratch
// memory.
//
// Cache lines that are stored in parts cost memory time (benchmarks/memory_traffic.cu). Without an epilogue,
// neighbouring output tiles therefore go to the warpgroups of one multiprocessor. If it is cheaper, an output
// tile also computes as many rows of the next one as complete its last cache line. The address of y decides
// which output tile stores such a result, so the result's last bits may depend on that address.
//
// A fused epilogue is computed before any result leaves the multiprocessor. Clamps (Relu, Clip) are applied
// when an accumulator is scaled. A 2 x 2 pool is computed from the accumulators in registers if two output
// rows are folded. Other activations, a residual and any other pool take a second pass over the results in
// shared memory. These results are a separate float32 Conv output if the second pass pools, or if the element
// type is narrower.
//
// Limits: 1-D and 2-D; float16, bfloat16 and float32; compute capability 9.0. The matrix and an output tile
// must fit into shared memory, which suits few channels and filters of moderate size. In precision ieee the
// sums must be short (limits.h).

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

const KernelRegistration registration({.header = "cuda/toeplitz/kernel.cuh",
                                       .instances = instance_names("toeplitz::kernel", kTensorCoreFormats,
                                                                   kInstances),
                                       .min_capability = 90,
                                       .is_arch_specific = true});

struct Family {
  using Tiling = toeplitz::Tiling;
  using Arguments = toeplitz::Arguments<void>;
  static std::string name(const Tiling&) { return "toeplitz"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("toeplitz::kernel", tensor_core_format(problem),
                         Instance{tiling.accumulator_tiles, !problem.epilogue.is_empty()}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.naive_conv = naive_conv_of(problem);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();
    to.is_unpadded = is_unpadded(problem, tiling.vector_layout);
    to.dilation_height_divisor = FastDivisor(to.dilation_height);
    to.dilation_width_divisor = FastDivisor(to.dilation_width);
    set_vector_layout(problem, tiling, to);
    set_input(problem, tiling, to);
    set_tile(problem, tiling, to);
    set_results(problem, tiling, to);
    to.shared = tiling.shared;
    to.staged_input_bytes = narrow(tiling.staged_input_bytes);
    to.raw_bytes = narrow(tiling.raw_bytes);
    set_step_offsets(tiling, to.step_vectors, to.step_offsets);
    // Evict y first if it exceeds the L2 cache, so that it does not evict prefetched input. With input by TMA
    // nothing is prefetched to L2, and partial cache lines should stay there until they are complete.
    const int64_t y_bytes = problem.result_elements() * bytes_per_element(problem.type);
    to.evicts_y_first = problem.epilogue.is_empty() && y_bytes > device.l2_cache_bytes &&
                        (!tiling.loads_input_by_tma || stores_whole_lines(problem, tiling));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    // TMA loads need an aligned x.
    to.loads_input_by_tma = tiling.loads_input_by_tma && reinterpret_cast<uintptr_t>(to.x) % kAlignment == 0;
    to.source_channel_stride = to.loads_input_by_tma ? narrow(tiling.source_channel_stride) : to.input_plane;
    to.y_misalignment = narrow(static_cast<int64_t>(reinterpret_cast<uintptr_t>(to.y) % kCacheLine) /
                               bytes_per_element(problem.type));
  }

  static int threads(const Tiling& tiling) { return kWarpgroupThreads * tiling.warpgroups; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Launch&) {
    return grid_of_resident_blocks(tiling.tile_count, problem.group, device);
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const VectorLayout& vector_layout = tiling.vector_layout;
    return joined("tiles of ", tiling.images, " images x ", tiling.rows * vector_layout.folds, " rows",
                  tiling.overlap > 0 ? joined(" (", tiling.overlap, " shared with the next tile)") : "",
                  " x ", tiling.spans * vector_layout.outputs, " columns, ", tiling.filters_per_pass,
                  " filters at a time; ", tiling.m_tiles, " M tiles x ", vector_layout.steps(),
                  " k-steps of wgmma m64n", tiling.accumulator_tiles * kAccumulatorTileColumns, "k", kWgmmaK,
                  " for ", vector_layout.outputs, " x ", vector_layout.folds, " outputs, ",
                  vector_layout.bundle, " channels interleaved; ",
                  tiling.loads_input_by_tma ? "input by TMA; " : "", text_of(launch));
  }

 private:
  // Sets the decomposition of the filter into vectors and k-steps.
  static void set_vector_layout(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const auto log2 = [](int value) { return std::countr_zero(static_cast<unsigned>(value)); };
    const VectorLayout& vector_layout = tiling.vector_layout;
    to.source_image_stride = narrow(tiling.source_image_stride);
    // Vectors start at multiples of the input width and of a vector's pixels.
    to.load_bytes = 1 << std::countr_zero(static_cast<unsigned>(
                        kAlignment | problem.input[2] * bytes_per_element(problem.type) |
                        vector_layout.pixels * bytes_per_element(problem.type)));
    to.log2_bundle = log2(vector_layout.bundle);
    to.log2_outputs = log2(vector_layout.outputs);
    to.folds = vector_layout.folds;
    to.log2_folds = log2(vector_layout.folds);
    to.bundles = FastDivisor(narrow(vector_layout.bundles));
    to.window_rows = narrow(vector_layout.window_rows);
    to.window_vectors = narrow(vector_layout.window_vectors);
    to.steps = narrow(vector_layout.steps());
    to.steps_divisor = FastDivisor(to.steps);
    to.row_stride_phases = FastDivisor(vector_layout.row_stride_phases);
    to.column_stride_phases = FastDivisor(vector_layout.column_stride_phases);
    to.window_rows_divisor = FastDivisor(to.window_rows);
    to.window_vectors_divisor = FastDivisor(to.window_vectors);
  }

  // Sets the layout of the input in shared memory.
  static void set_input(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const VectorLayout& vector_layout = tiling.vector_layout;
    to.pitch = FastDivisor(narrow(tiling.pitch));
    to.plane_rows = narrow(tiling.plane_rows);
    to.plane_vectors = narrow(tiling.plane_vectors);
    to.image_vectors = narrow(tiling.image_vectors);
    to.part_vectors = narrow(tiling.part_vectors);
    to.vectors_per_row = FastDivisor(narrow(tiling.vectors_per_row));
    to.input_rows = narrow(tiling.input_rows);
    to.items_per_row = narrow(vector_layout.bundles * tiling.vectors_per_row);
    to.image_items = narrow(tiling.image_items);
    to.lines_per_channel = FastDivisor(
        narrow(tiling.input_rows * problem.input[2] * bytes_per_element(problem.type) / kCacheLine + 2));
  }

  static void set_tile(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const VectorLayout& vector_layout = tiling.vector_layout;
    to.images = tiling.images;
    to.rows = tiling.rows;
    to.spans = tiling.spans;
    const int64_t spans_per_row = ceil_divide(problem.output[2], vector_layout.outputs);
    to.row_tiles = FastDivisor(narrow(tiling.row_tiles));
    to.row_advance = narrow(tiling.row_advance);
    to.y_rows = narrow(tiling.y_rows);
    to.stores_lines = tiling.overlap > 0;
    to.pools = problem.epilogue.pool.kind != PoolKind::none;
    to.pool_pad_height = to.pools ? narrow(problem.epilogue.pool.pad_begin[0]) : 0;
    to.column_tiles = FastDivisor(narrow(ceil_divide(spans_per_row, tiling.spans)));
    to.output_tiles = narrow(tiling.tile_count);
    to.product_rows = narrow(tiling.product_rows);
  }

  // Sets the epilogue and the layout of the results.
  static void set_results(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const VectorLayout& vector_layout = tiling.vector_layout;
    const int64_t element_bytes = bytes_per_element(problem.type);
    to.filters_per_pass = tiling.filters_per_pass;
    to.filter_passes = tiling.filter_passes;
    to.conv_strides = tiling.conv_strides;
    to.y_strides = tiling.y_strides;
    to.pools_accumulators = pools_accumulators(problem, vector_layout);
    to.fold_distance = to.pools_accumulators ? 0 : to.conv_strides.row;
    to.post_pass = post_pass_of(problem, vector_layout);
    to.has_separate_conv_output = has_separate_conv_output(problem, to.post_pass);
    const bool is_bounded = to.post_pass != PostPass::full;
    to.min_result = is_bounded ? bounds_of(problem.epilogue).min : -std::numeric_limits<float>::infinity();
    to.max_result = is_bounded ? bounds_of(problem.epilogue).max : std::numeric_limits<float>::infinity();
    to.result_bytes = to.has_separate_conv_output ? narrow(sizeof(float)) : narrow(element_bytes);
    to.writes_pairs = vector_layout.outputs > 1 && problem.output[2] % 2 == 0 &&
                      tiling.conv_strides.row % 2 == 0 && tiling.conv_strides.plane % 2 == 0 &&
                      tiling.conv_strides.image % 2 == 0;
  }
};

class Toeplitz final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "toeplitz"; }
  bool rounds_depthwise() const override { return true; }

  // In float32, an activation that does more than clamp, without a residual or a pool, is left to a separate
  // kernel, which does not round once more in that type. SiLU and HardSwish take as long there, other
  // activations less.
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return is_relu_or_none(epilogue) || epilogue.activation == Activation::clip || epilogue.has_residual ||
           epilogue.pool.kind != PoolKind::none ||
           !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty();
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its matrix and its smallest tile do", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_1d_or_2d(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    // The kernel's indices inside an image have 32 bits.
    std::string reason = why_not_32_bit_indices(
        {problem.batch, problem.in_channels * problem.input_size(),
         problem.out_channels * problem.output_size(), problem.out_channels * problem.result_size(),
         padded_input(problem, 1) + problem.stride[1], padded_input(problem, 2) + problem.stride[2],
         problem.dilation[1] * problem.filter[1], problem.dilation[2] * problem.filter[2],
         problem.channels_per_group() * problem.filter_size() * 16});
    if (!reason.empty()) return reason;
    if (vector_layouts_of(problem, device).empty()) {
      return joined("its sums take more than ", max_steps(problem, device), " products of the tensor core",
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
