// Residual, activation and pool of a convolution's output that lies in memory: for the algorithms whose own
// kernel ends with the convolution. It reads that output once and writes y once (a pool's windows that
// overlap are read from the caches again), so it is bound by memory: one element of y to a thread, neighbours
// to neighbours.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv/epilogue_attributes.h"
#include "conv/small_floats.h"
#include "cuda/epilogue/epilogue_kernel.cuh"
#include "cuda/epilogue/epilogue_kernel.h"
#include "cuda/primitives/kernel_facts.h"
#include "cuda/primitives/launch.h"

namespace convswap {
namespace {

constexpr int kThreads = 256;
// More blocks than any card holds at once; the kernels' loops take the rest.
constexpr int64_t kMostBlocks = 1 << 20;
constexpr int64_t kMostOfPlane = 1 << 30;  // elements: the kernels' indices inside a plane have 32 bits
// What a multiprocessor of an H200 moves of the 4.3 TB/s that the card does.
constexpr double kBytesPerNanosecond = 32.6;
// Pools reach a third of that (2017 and 2019fa conv1, 2 x 2 and tanh).
constexpr double kPoolFactor = 3;
constexpr double kLaunchNanoseconds = 2000;

template <typename T, typename Sum>
class EpiloguePlan final : public Plan {
 public:
  EpiloguePlan(const ConvProblem& problem, const Device& device) : device_(device.index) {
    pools_ = problem.epilogue.pool.kind != PoolKind::none;
    arguments_.elements = problem.result_elements();
    arguments_.epilogue = problem.epilogue;
    int64_t elements_of_block = kThreads * (16 / size_of(problem.type));
    if (pools_) {
      const auto narrow = [](int64_t value) { return static_cast<int>(value); };
      arguments_.plane_input = narrow(problem.output_size());
      arguments_.height = narrow(problem.output[1]);
      arguments_.width = narrow(problem.output[2]);
      arguments_.y_plane = FastDivisor(narrow(problem.result_size()));
      arguments_.y_width = FastDivisor(narrow(problem.result[2]));
      arguments_.planes_at_once = narrow(std::max<int64_t>(1, elements_of_block / problem.result_size()));
      elements_of_block = arguments_.planes_at_once * problem.result_size();
    }
    const int64_t blocks = (arguments_.elements + elements_of_block - 1) / elements_of_block;
    blocks_ = static_cast<unsigned>(std::min(kMostBlocks, blocks));
    const DeviceGuard guard(device_);
    start_ = earliest_start(kernel());
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    EpilogueArguments<T> arguments = arguments_;
    arguments.x = static_cast<const T*>(tensors.x);
    arguments.z = static_cast<const T*>(tensors.z);
    arguments.y = static_cast<T*>(tensors.y);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(kernel(), blocks_, kThreads, 0, execution.stream, parameters, start_);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts(pools_ ? "pool" : "activation", kernel(), blocks_, kThreads, 0)};
  }

  std::string describe() const override {
    return text_of(arguments_.epilogue) + " in a kernel of its own, " + std::to_string(blocks_) +
           " blocks of " + std::to_string(kThreads) + " threads";
  }

 private:
  const void* kernel() const {
    return pools_ ? reinterpret_cast<const void*>(pool_kernel<T, Sum>)
                  : reinterpret_cast<const void*>(activation_kernel<T, Sum>);
  }

  int device_;
  bool pools_;
  EpilogueArguments<T> arguments_{};
  unsigned blocks_ = 0;
  Start start_ = Start::in_turn;
};

class TwoKernelPlan final : public Plan {
 public:
  TwoKernelPlan(std::unique_ptr<Plan> convolution, std::unique_ptr<Plan> epilogue, size_t scratch_bytes)
      : convolution_(std::move(convolution)), epilogue_(std::move(epilogue)), scratch_bytes_(scratch_bytes) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    void* const between = scratch_bytes_ > 0 ? execution.scratch : tensors.y;
    convolution_->run({tensors.x, tensors.w, tensors.b, between, nullptr}, execution);
    epilogue_->run({between, nullptr, nullptr, tensors.y, tensors.z}, execution);
  }

  size_t scratch_bytes() const override { return scratch_bytes_; }

  std::vector<KernelFacts> kernels() const override {
    std::vector<KernelFacts> both = convolution_->kernels();
    const std::vector<KernelFacts> after = epilogue_->kernels();
    both.insert(both.end(), after.begin(), after.end());
    return both;
  }

  std::string describe() const override {
    return convolution_->describe() + "; then " + epilogue_->describe();
  }

 private:
  std::unique_ptr<Plan> convolution_, epilogue_;
  size_t scratch_bytes_;
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

std::unique_ptr<Plan> plan_epilogue(const ConvProblem& problem, const Device& device) {
  switch (problem.type) {
    case ElementType::float32:
      return std::make_unique<EpiloguePlan<float, float>>(problem, device);
    case ElementType::float64:
      return std::make_unique<EpiloguePlan<double, double>>(problem, device);
    case ElementType::float16:
      return std::make_unique<EpiloguePlan<Float16, float>>(problem, device);
    case ElementType::bfloat16:
      return std::make_unique<EpiloguePlan<BFloat16, float>>(problem, device);
  }
  return nullptr;
}

}  // namespace

std::string why_not_apart(const ConvProblem& problem) {
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

std::unique_ptr<Plan> with_epilogue_kernel(std::unique_ptr<Plan> convolution, const ConvProblem& problem,
                                           const Device& device) {
  const bool pools = problem.epilogue.pool.kind != PoolKind::none;
  const int64_t between = pools ? problem.output_elements() * size_of(problem.type) : 0;
  return std::make_unique<TwoKernelPlan>(std::move(convolution), plan_epilogue(problem, device),
                                         static_cast<size_t>(between));
}

double estimate_epilogue(const ConvProblem& problem, const Device& device) {
  const int64_t elements =
      problem.output_elements() * (problem.epilogue.has_residual ? 2 : 1) + problem.result_elements();
  const bool pools = problem.epilogue.pool.kind != PoolKind::none;
  const double bytes = static_cast<double>(elements) * size_of(problem.type) * (pools ? kPoolFactor : 1);
  return (kLaunchNanoseconds - kEarlierNanoseconds +
          bytes / (kBytesPerNanosecond * std::max(1, device.multiprocessors))) *
         1e-6;
}

}  // namespace convswap
