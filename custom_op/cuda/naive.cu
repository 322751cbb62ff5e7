// The kernel anyone writes first: one thread per output element, which walks the filter and reads every
// operand from global memory (the caches make that bearable). Complete: it computes every problem, of any
// type, rank, size, stride, padding, dilation and grouping, with sums in float32 (of float64 data in float64)
// whatever the precision, and what follows a convolution too: of a pool a thread computes all values of its
// window; where windows overlap, a kernel of its own pools. It wins where nothing else applies.

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "conv/small_floats.h"
#include "cuda/epilogue/epilogue_kernel.h"
#include "cuda/naive.cuh"
#include "cuda/naive_arguments.h"
#include "cuda/primitives/kernel_facts.h"
#include "cuda/primitives/launch.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

constexpr int kThreads = 256;
// More blocks than any card holds at once; the kernel's loop takes the rest.
constexpr int64_t kMostBlocks = 1 << 20;

template <typename T, typename Sum>
class NaivePlan final : public Plan {
 public:
  NaivePlan(const ConvProblem& problem, const Device& device)
      : device_(device.index), arguments_(naive_arguments<T>(problem)) {
    blocks_ =
        static_cast<unsigned>(std::min<int64_t>(kMostBlocks, (arguments_.outputs + kThreads - 1) / kThreads));
    const DeviceGuard guard(device_);
    start_ = earliest_start(reinterpret_cast<const void*>(naive_kernel<T, Sum>));
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    NaiveArguments<T> arguments = arguments_;
    arguments.x = static_cast<const T*>(tensors.x);
    arguments.w = static_cast<const T*>(tensors.w);
    arguments.b = static_cast<const T*>(tensors.b);
    arguments.z = static_cast<const T*>(tensors.z);
    arguments.y = static_cast<T*>(tensors.y);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(reinterpret_cast<const void*>(naive_kernel<T, Sum>), blocks_, kThreads, 0, execution.stream,
           parameters, start_);
  }

  std::string describe() const override {
    return std::to_string(blocks_) + " blocks of " + std::to_string(kThreads) + " threads, one output each";
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("naive", reinterpret_cast<const void*>(naive_kernel<T, Sum>), blocks_, kThreads, 0)};
  }

 private:
  int device_;
  NaiveArguments<T> arguments_;
  unsigned blocks_ = 0;
  Start start_ = Start::in_turn;
};

class Naive final : public Algorithm {
 public:
  std::string_view name() const override { return "naive"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  std::string why_not(const ConvProblem&, const Device&) const override { return {}; }

  // Fitted by hand to layers of ResNet-50, VGG-16 and AlexNet on an H200: at most 10 % off for filters of
  // 3 x 3 and 1 x 1, and up to 40 % too slow for larger ones. For depthwise filters of 3 x 3 it is too fast
  // by almost half. A channel costs as much as two taps, since the loops begin anew.
  std::optional<double> estimate(const ConvProblem& problem, const Device& device) const override {
    constexpr double kLaunchNanoseconds = 6000, kTapNanoseconds = 0.222, kChannelNanoseconds = 0.5;
    const double channels = static_cast<double>(problem.output_elements()) *
                            static_cast<double>(problem.channels_per_group()) /
                            std::max(1, device.multiprocessors);
    const double each = kTapNanoseconds * static_cast<double>(problem.filter_size()) + kChannelNanoseconds;
    return 1e-6 * (kLaunchNanoseconds - kEarlierNanoseconds + channels * each);
  }

  std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const override {
    if (windows_overlap(problem.epilogue.pool) && why_not_apart(problem).empty()) {
      return with_epilogue_kernel(make_plan(problem.without_epilogue(), device), problem, device);
    }
    switch (problem.type) {
      case ElementType::float32:
        return std::make_unique<NaivePlan<float, float>>(problem, device);
      case ElementType::float64:
        return std::make_unique<NaivePlan<double, double>>(problem, device);
      case ElementType::float16:
        return std::make_unique<NaivePlan<Float16, float>>(problem, device);
      case ElementType::bfloat16:
        return std::make_unique<NaivePlan<BFloat16, float>>(problem, device);
    }
    return nullptr;
  }

 private:
  // Each window's thread would compute again what its neighbours compute.
  static bool windows_overlap(const Pool& pool) {
    return pool.kernel[0] > pool.stride[0] || pool.kernel[1] > pool.stride[1];
  }
};

}  // namespace

const Algorithm& cuda_naive() {
  static const Naive algorithm;
  return algorithm;
}

}  // namespace convswap
