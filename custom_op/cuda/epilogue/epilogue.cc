// Residual, activation and pool of a convolution's output in global memory, for algorithms that do not fuse
// them. The kernel reads that output once and writes y once; overlapping pool windows are read again from the
// caches. It is bound by memory: each thread computes one element of y, or 16 bytes of channels in NHWC, and
// neighbouring threads compute neighbouring elements. All tensors have the layout of y.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/attributes.h"
#include "conv/small_floats.h"
#include "cuda/costs/cost_table.h"
#include "cuda/epilogue/arguments.h"
#include "cuda/epilogue/family.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "plan/epilogue_stage.h"

namespace convswap {
namespace epilogue {
namespace {

constexpr int kThreads = 256;
// More blocks than any card holds at once; the kernels' grid-stride loops cover the remaining units.
constexpr int64_t kMaxBlocks = 1 << 20;
constexpr int64_t kMaxPlaneElements = 1 << 30;  // elements; the kernels index a plane with 32 bits

const KernelRegistration registration({.header = "cuda/epilogue/kernel.cuh",
                                       .instances = instance_names("epilogue::kernel", kElements,
                                                                   kInstances)});

struct Family {
  struct Tiling {
    Instance instance;
    int64_t planes_per_group, parts;  // a unit is a part of planes_per_group planes
    int64_t vectors_per_part;         // of y
    int64_t units;                    // one per block at a time
  };
  using Arguments = epilogue::Arguments<void>;

  static bool is_channels_last(const ConvProblem& problem) { return problem.layouts.output == Layout::nhwc; }
  // Elements of a vector of 16 bytes.
  static int64_t vector_elements_of(const ConvProblem& problem) {
    return 16 / bytes_per_element(problem.type);
  }
  // Planes of y, and vectors of a plane (arguments.h).
  static int64_t planes_of(const ConvProblem& problem) {
    return problem.batch * (is_channels_last(problem) ? 1 : problem.out_channels);
  }
  static int64_t y_plane_vectors_of(const ConvProblem& problem, bool has_vectors) {
    const int64_t channels = is_channels_last(problem) ? problem.out_channels : 1;
    return problem.result_size() * channels / (has_vectors ? vector_elements_of(problem) : 1);
  }

  static std::string name(const Tiling& tiling) { return tiling.instance.pools ? "pool" : "activation"; }

  static Tiling tiling_of(const ConvProblem& problem) {
    const int64_t unit_elements = kThreads * vector_elements_of(problem);
    if (problem.epilogue.pool.kind == PoolKind::none) {
      return {{false, false}, 0, 0, 0, ceil_divide(problem.result_elements(), unit_elements)};
    }
    const bool has_vectors =
        is_channels_last(problem) && problem.out_channels % vector_elements_of(problem) == 0;
    const int64_t unit_vectors = has_vectors ? kThreads : unit_elements;
    const int64_t plane_vectors = y_plane_vectors_of(problem, has_vectors);
    const int64_t planes = std::max<int64_t>(1, unit_vectors / plane_vectors);
    // Equal parts of a plane, multiples of a warp.
    const int64_t parts = planes > 1 ? 1 : ceil_divide(plane_vectors, unit_vectors);
    const int64_t part_vectors =
        parts == 1 ? planes * plane_vectors : round_up(ceil_divide(plane_vectors, parts), int64_t{32});
    return {
        {true, has_vectors}, planes, parts, part_vectors, ceil_divide(planes_of(problem), planes) * parts};
  }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("epilogue::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments arguments{};
    arguments.elements = problem.result_elements();
    arguments.epilogue = problem.epilogue;
    if (!tiling.instance.pools) return arguments;
    const int64_t y_plane_vectors = y_plane_vectors_of(problem, tiling.instance.has_vectors);
    const int64_t channels = is_channels_last(problem) ? problem.out_channels : 1;
    arguments.vectors = planes_of(problem) * y_plane_vectors;
    arguments.x_plane_elements = narrow(problem.output_size() * channels);
    arguments.height = narrow(problem.output[1]);
    arguments.width = narrow(problem.output[2]);
    arguments.position_elements = narrow(channels);
    arguments.y_plane_vectors = FastDivisor(narrow(y_plane_vectors));
    arguments.position_vectors = FastDivisor(narrow(y_plane_vectors / problem.result_size()));
    arguments.y_width = FastDivisor(narrow(problem.result[2]));
    arguments.units = static_cast<unsigned>(tiling.units);
    arguments.planes_per_group = narrow(tiling.planes_per_group);
    arguments.vectors_per_part = narrow(tiling.vectors_per_part);
    arguments.parts = FastDivisor(narrow(tiling.parts));
    return arguments;
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(std::min(kMaxBlocks, tiling.units))};
  }

  static std::string describe(const ConvProblem& problem, const Tiling&, const Launch& launch) {
    return joined(text_of(problem.epilogue), " in a separate kernel, ", launch.grid.x, " blocks of ",
                  kThreads, " threads");
  }
};

template <typename Small>
bool is_exact(float value) {
  return static_cast<float>(Small(value)) == value;
}

// True if rounding the convolution's output to the element type first leaves the epilogue's result unchanged.
// float32 and float64 accumulators already have the element type. Rounding is monotonic, so it commutes with
// maxima and clamps.
bool rounding_commutes(const ConvProblem& problem) {
  if (problem.type == ElementType::float32 || problem.type == ElementType::float64) return true;
  const Epilogue& epilogue = problem.epilogue;
  if (epilogue.has_residual || epilogue.pool.kind == PoolKind::average) return false;
  if (epilogue.activation == Activation::none || epilogue.activation == Activation::relu) return true;
  if (epilogue.activation != Activation::clip) return false;
  return problem.type == ElementType::float16
             ? is_exact<Float16>(epilogue.alpha) && is_exact<Float16>(epilogue.beta)
             : is_exact<BFloat16>(epilogue.alpha) && is_exact<BFloat16>(epilogue.beta);
}

class Stage final : public EpilogueStage {
 public:
  std::string why_not(const ConvProblem& problem) const override {
    if (problem.result_elements() == 0) return "the output is empty";
    if (!rounding_commutes(problem)) {
      return "its epilogue would be a separate kernel, which would round twice to " +
             std::string(name_of(problem.type));
    }
    const bool pools = problem.epilogue.pool.kind != PoolKind::none;
    const int64_t channels = Family::is_channels_last(problem) ? problem.out_channels : 1;
    const int64_t positions = std::max(problem.output_size(), problem.result_size());
    if (pools && positions * channels > kMaxPlaneElements) {
      return "its pooling kernel has 32-bit indices inside an image and the problem needs more";
    }
    return {};
  }

  double estimate(const ConvProblem& problem, const Device& device) const override {
    const auto& costs = costs_of(device).epilogue;
    const int64_t elements =
        problem.output_elements() * (problem.epilogue.has_residual ? 2 : 1) + problem.result_elements();
    double nanoseconds = costs.launch + to_double(elements * bytes_per_element(problem.type)) / costs.memory;
    if (const Pool& pool = problem.epilogue.pool; pool.kind != PoolKind::none) {
      const bool has_vectors = Family::tiling_of(problem).instance.has_vectors;
      const double vector = has_vectors ? 16 / to_double(bytes_per_element(problem.type)) : 1;
      const double window =
          (costs.window + costs.input * to_double(pool.kernel[0] * pool.kernel[1])) / vector;
      nanoseconds +=
          costs.pool + to_double(problem.result_elements()) * window / std::max(1, device.multiprocessors);
    }
    return nanoseconds * 1e-6;
  }

  std::unique_ptr<Plan> make(const ConvProblem& problem, const Device& device) const override {
    return std::make_unique<KernelPlan<Family>>(problem, device, Family::tiling_of(problem));
  }

  std::vector<std::string> kernels(const ConvProblem& problem, const Device&) const override {
    return {Family::kernel_name(problem, Family::tiling_of(problem))};
  }
};

}  // namespace
}  // namespace epilogue

const EpilogueStage& cuda_epilogue_stage() {
  static const epilogue::Stage stage;
  return stage;
}

}  // namespace convswap
