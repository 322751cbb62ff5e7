// Pools of NHWC tensors, without a convolution. A thread pools 16 bytes of channels, so that a warp reads and
// writes whole lines, or one element if the channels are no multiple of 16 bytes. Maxima are computed in the
// element type, two or four packed elements at a time; averages in float32 (float64 for float64).
//
// Windows that overlap are read again from the caches. A window of 5 x 5 with stride 1 would need 25 loads of
// 16 bytes per 16 bytes of y, more than the first-level cache delivers while the memory brings x and takes y.
// There a thread computes a run of four neighbouring outputs: it reduces each of the eight columns once and
// loads 10 times 16 bytes per output. A thread that computes one output loads a whole window of 2 x 2, 3 x 3
// or 5 x 5 before it reduces it, and eight rows of a larger one, which hides the latency of memory.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/error.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "cuda/pool/arguments.h"
#include "cuda/pool/family.h"
#include "plan/op_stage.h"

namespace convswap {
namespace pool {
namespace {

// Per block. The kernels take up to 96 registers, so that a multiprocessor holds 640 threads in blocks of
// 128, and 512 in blocks of 256.
constexpr int64_t kMaxThreads = 128;
constexpr int64_t kMaxGridRows = 65535;
constexpr int64_t kMaxIndex = 1 << 30;  // the kernel indexes an image with 32 bits
// Threads per multiprocessor from which on threads compute runs, so that loads are in flight while others are
// reduced.
constexpr int64_t kMinThreadsWithRuns = 512;
// Neighbouring vectors that a block pools over the whole image: 32 to 256 bytes of a position. A block has
// about one thread for each kMinThreadPositions of a vector, within the limits. Smaller images are pooled by
// a thread for each vector.
constexpr int kMinPlaneLanes = 2, kMaxPlaneLanes = 16;
constexpr int64_t kMinPlanePositions = 16, kMinThreadPositions = 6;
constexpr int64_t kMinPlaneThreads = 64, kMaxPlaneThreads = 512;

const KernelRegistration registration({.header = "cuda/pool/kernel.cuh",
                                       .instances = instance_names("pool::kernel", kPoolElements,
                                                                   kInstances)});

struct Family {
  struct Tiling {
    PoolProblem problem;
    Instance instance;
    int64_t image_items, threads, blocks_per_image;
    int plane_lanes = 0;
  };
  using Arguments = pool::Arguments<void>;

  static int64_t vector_elements_of(const Tiling& tiling) {
    return tiling.instance.has_vectors ? 16 / bytes_per_element(tiling.problem.type) : 1;
  }
  static int64_t row_runs_of(const Tiling& tiling) {
    return ceil_divide(tiling.problem.output[1], std::max<int64_t>(1, tiling.instance.run));
  }
  static int64_t position_vectors_of(const Tiling& tiling) {
    return tiling.problem.channels / vector_elements_of(tiling);
  }

  static bool pools_whole_image(const PoolProblem& problem) {
    const Pool& pool = problem.pool;
    bool is_whole = problem.input[0] * problem.input[1] >= kMinPlanePositions;
    for (int axis = 0; axis < 2; ++axis) {
      is_whole = is_whole && problem.output[axis] == 1 && pool.kernel[axis] == problem.input[axis] &&
                 pool.pad_begin[axis] == 0 && pool.pad_end[axis] == 0;
    }
    return is_whole;
  }

  // Returns the most lanes with blocks for every multiprocessor and with few idle lanes.
  static int plane_lanes_of(const PoolProblem& problem, const Device& device, int64_t vectors) {
    int lanes = kMaxPlaneLanes;
    const auto blocks = [&] { return ceil_divide(vectors, int64_t{lanes}); };
    while (lanes > kMinPlaneLanes &&
           (problem.batch * blocks() < device.multiprocessors || 8 * blocks() * lanes > 9 * vectors)) {
      lanes /= 2;
    }
    return lanes;
  }

  static Tiling tiling_of(const PoolProblem& problem, const Device& device) {
    const bool has_vectors = problem.channels * bytes_per_element(problem.type) % 16 == 0;
    const auto tiling_with = [&](int run) {
      Tiling tiling{problem, {has_vectors, run}, 0, 0, 0};
      tiling.image_items = problem.output[0] * row_runs_of(tiling) * position_vectors_of(tiling);
      const int64_t blocks = ceil_divide(tiling.image_items, kMaxThreads);
      // Equal blocks of whole warps.
      tiling.threads = round_up(ceil_divide(tiling.image_items, blocks), int64_t{32});
      tiling.blocks_per_image = ceil_divide(tiling.image_items, tiling.threads);
      return tiling;
    };
    if (has_vectors && pools_whole_image(problem)) {
      Tiling tiling{problem, {true, kWholeImage}, 0, 0, 0};
      const int64_t vectors = position_vectors_of(tiling);
      tiling.plane_lanes = plane_lanes_of(problem, device, vectors);
      const int64_t positions = problem.input[0] * problem.input[1];
      const auto rows = std::bit_floor(static_cast<uint64_t>(positions / kMinThreadPositions));
      tiling.threads =
          std::clamp(static_cast<int64_t>(rows) * tiling.plane_lanes, kMinPlaneThreads, kMaxPlaneThreads);
      tiling.blocks_per_image = ceil_divide(vectors, int64_t{tiling.plane_lanes});
      return tiling;
    }
    const bool overlaps = problem.pool.kernel[1] > 2 * problem.pool.stride[1];
    if (has_vectors && overlaps && problem.output[1] >= kLongRun) {
      const Tiling tiling = tiling_with(kLongRun);
      const int64_t threads = problem.batch * tiling.image_items;
      if (threads >= kMinThreadsWithRuns * std::max(1, device.multiprocessors)) return tiling;
    }
    return tiling_with(1);
  }

  static std::string name(const Tiling&) { return "pool"; }

  static std::string kernel_name(const ConvProblem&, const Tiling& tiling) {
    return instance_name("pool::kernel", element_name(tiling.problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem&, const Device&, const Tiling& tiling) {
    const PoolProblem& problem = tiling.problem;
    Arguments to{};
    to.batch = narrow(problem.batch);
    to.height = narrow(problem.input[0]);
    to.width = narrow(problem.input[1]);
    to.channels = narrow(problem.channels);
    to.y_height = narrow(problem.output[0]);
    to.y_width = narrow(problem.output[1]);
    to.kernel_height = narrow(problem.pool.kernel[0]);
    to.kernel_width = narrow(problem.pool.kernel[1]);
    to.stride_height = narrow(problem.pool.stride[0]);
    to.stride_width = narrow(problem.pool.stride[1]);
    to.pad_height = narrow(problem.pool.pad_begin[0]);
    to.pad_width = narrow(problem.pool.pad_begin[1]);
    to.has_vectors = tiling.instance.has_vectors;
    to.image_items = narrow(tiling.image_items);
    to.position_vectors = FastDivisor(narrow(position_vectors_of(tiling)));
    to.row_runs = FastDivisor(narrow(row_runs_of(tiling)));
    to.plane_lanes = tiling.plane_lanes;
    to.pool = problem.pool;
    return to;
  }

  // Tensors that are not aligned for vectors are pooled element by element.
  static void bind(const ConvProblem&, const Tiling& tiling, const ConvTensors& tensors,
                   Arguments& arguments) {
    if (!tiling.instance.has_vectors || are_aligned(tensors, 16)) return;
    arguments.has_vectors = false;
    arguments.image_items = narrow(tiling.image_items * vector_elements_of(tiling));
    arguments.position_vectors = FastDivisor(narrow(tiling.problem.channels));
  }

  static int threads(const Tiling& tiling) { return narrow(tiling.threads); }
  static int64_t shared_bytes(const Tiling& tiling) {
    return tiling.instance.run == kWholeImage ? tiling.threads * kPartialBytes : 0;
  }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks_per_image),
            static_cast<unsigned>(std::min(kMaxGridRows, tiling.problem.batch))};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const std::string outputs = tiling.instance.run == kWholeImage ? std::string("whole images")
                                                                   : joined("runs of ", tiling.instance.run);
    return joined(tiling.problem.text(), ", ", outputs, ", ", text_of(launch));
  }
};

// Throws if the kernel's 32-bit indices do not suffice.
void check_size(const PoolProblem& problem) {
  const Pool& pool = problem.pool;
  int64_t extents[2];
  for (int axis = 0; axis < 2; ++axis) {
    extents[axis] = std::max(problem.input[axis], problem.output[axis]);
    // At most four strides beyond the last window.
    const int64_t reach = problem.input[axis] + pool.pad_begin[axis] + pool.pad_end[axis] +
                          2 * pool.kernel[axis] + kLongRun * pool.stride[axis];
    if (reach > kMaxIndex) extents[axis] = kMaxIndex + 1;
  }
  int64_t elements = 0;
  const bool is_too_large = __builtin_mul_overflow(extents[0], extents[1], &elements) ||
                            __builtin_mul_overflow(elements, problem.channels, &elements) ||
                            elements > kMaxIndex || problem.batch > kMaxIndex;
  if (!is_too_large) return;
  throw InvalidArgument(problem.text() + ": expected images of at most 2^30 elements, with windows and " +
                        "padding of at most 2^30 positions, since the pool has 32-bit indices");
}

class Stage final : public PoolStage {
 public:
  std::unique_ptr<Plan> make(const PoolProblem& problem, const Device& device) const override {
    check_size(problem);
    return std::make_unique<KernelPlan<Family>>(ConvProblem{}, device, Family::tiling_of(problem, device));
  }

  std::vector<std::string> kernels(const PoolProblem& problem, const Device& device) const override {
    return {Family::kernel_name({}, Family::tiling_of(problem, device))};
  }
};

}  // namespace
}  // namespace pool

const PoolStage& cuda_pool_stage() {
  static const pool::Stage stage;
  return stage;
}

}  // namespace convswap
