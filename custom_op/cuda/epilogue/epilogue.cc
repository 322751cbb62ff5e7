// Residual, activation and pool of a convolution's output that lies in memory: for the algorithms whose own
// kernel ends with the convolution. It reads that output once and writes y once (a pool's windows that
// overlap are read from the caches again), so it is bound by memory: one element of y to a thread, neighbours
// to neighbours.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/attributes.h"
#include "conv/small_floats.h"
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
// More blocks than any card holds at once; the kernels' loops take the rest.
constexpr int64_t kMostBlocks = 1 << 20;
constexpr int64_t kMostOfPlane = 1 << 30;  // elements: the kernels' indices inside a plane have 32 bits
// What a multiprocessor of an H200 moves of the 4.3 TB/s that the card does.
constexpr double kBytesPerNanosecond = 32.6;
// And what it takes for an element of y of a pool, and for each number of its window: fitted on an H200 to
// max pools of 2 x 2, 3 x 3 and 5 x 5 (benchmarks/many_channels.md).
constexpr double kWindowNanoseconds = 0.33, kNumberNanoseconds = 0.1;
constexpr double kLaunchNanoseconds = 2000;

const KnownKernels known({.header = "cuda/epilogue/kernel.cuh",
                          .instances = instance_names("epilogue::kernel", kElements, kInstances)});

struct Family {
  struct Tiling {
    bool pools;
    int64_t planes_at_once, parts;  // a block pools a part of so many planes
    int64_t elements_of_part;       // of y
    int64_t units;                  // for a block each
  };
  using Arguments = epilogue::Arguments<void>;
  static std::string name(const Tiling& tiling) { return tiling.pools ? "pool" : "activation"; }

  static Tiling tiling_of(const ConvProblem& problem) {
    const int64_t chunk = kThreads * (16 / size_of(problem.type));
    if (problem.epilogue.pool.kind == PoolKind::none) {
      return {false, 0, 0, 0, ceil_divide(problem.result_elements(), chunk)};
    }
    const int64_t plane = problem.result_size(), planes = std::max<int64_t>(1, chunk / plane);
    // Parts of a plane alike, of whole warps.
    const int64_t parts = planes > 1 ? 1 : ceil_divide(plane, chunk);
    const int64_t part = parts == 1 ? planes * plane : round_up(ceil_divide(plane, parts), int64_t{32});
    return {true, planes, parts, part, ceil_divide(problem.batch * problem.out_channels, planes) * parts};
  }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("epilogue::kernel", element_name(problem.type), Instance{tiling.pools}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.elements = problem.result_elements();
    to.epilogue = problem.epilogue;
    if (!tiling.pools) return to;
    to.plane_input = narrow(problem.output_size());
    to.height = narrow(problem.output[1]);
    to.width = narrow(problem.output[2]);
    to.y_plane = FastDivisor(narrow(problem.result_size()));
    to.y_width = FastDivisor(narrow(problem.result[2]));
    to.units = static_cast<unsigned>(tiling.units);
    to.planes_at_once = narrow(tiling.planes_at_once);
    to.elements_of_part = narrow(tiling.elements_of_part);
    to.parts = FastDivisor(narrow(tiling.parts));
    return to;
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(std::min(kMostBlocks, tiling.units))};
  }

  static std::string describe(const ConvProblem& problem, const Tiling&, const Launch& launch) {
    return joined(text_of(problem.epilogue), " in a kernel of its own, ", launch.grid.x, " blocks of ",
                  kThreads, " threads");
  }
};

template <typename Small>
bool is_exact(float value) {
  return static_cast<float>(Small(value)) == value;
}

// Whether rounding the convolution's results to the element type, too, changes nothing of what the epilogue
// gives: float32 and float64 sums are of that type already, and rounding never changes which of two is the
// larger.
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
    if (!rounding_commutes(problem)) {
      return "it computes what follows a convolution of its results as they are rounded to " +
             std::string(name_of(problem.type)) + ", which would round twice";
    }
    const bool pools = problem.epilogue.pool.kind != PoolKind::none;
    if (pools && problem.output_size() > kMostOfPlane) {
      return "the kernel that pools has indices of 32 bits inside an image and the problem needs more";
    }
    return {};
  }

  double estimate(const ConvProblem& problem, const Device& device) const override {
    const int64_t elements =
        problem.output_elements() * (problem.epilogue.has_residual ? 2 : 1) + problem.result_elements();
    double nanoseconds = number(elements) * size_of(problem.type) / kBytesPerNanosecond;
    if (const Pool& pool = problem.epilogue.pool; pool.kind != PoolKind::none) {
      const double window = kWindowNanoseconds + kNumberNanoseconds * number(pool.kernel[0] * pool.kernel[1]);
      nanoseconds = std::max(nanoseconds, number(problem.result_elements()) * window);
    }
    return (kLaunchNanoseconds - kEarlierNanoseconds + nanoseconds / std::max(1, device.multiprocessors)) *
           1e-6;
  }

  std::unique_ptr<Plan> make(const ConvProblem& problem, const Device& device) const override {
    return std::make_unique<KernelPlan<Family>>(problem, device, Family::tiling_of(problem));
  }

  std::vector<std::string> kernels(const ConvProblem& problem) const override {
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
