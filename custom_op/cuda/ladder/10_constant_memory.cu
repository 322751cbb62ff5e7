#include "cuda/host/constant_bank.h"
#include "cuda/host/launch.h"
#include "cuda/ladder/10_constant_memory.cuh"
#include "cuda/ladder/course_layers.h"
#include "cuda/ladder/rung.h"

namespace convswap {
namespace {

// Fills the constant memory before the kernel starts.
class ConstantMemoryPlan final : public ladder::LaunchPlan {
 public:
  ConstantMemoryPlan(const ConvProblem& problem, const Device& device,
                     std::vector<ladder::RungLaunch> launches)
      : LaunchPlan(problem, device, std::move(launches), 0),
        device_(device.index),
        bytes_(sizeof(float) * problem.out_channels * problem.in_channels * problem.filter_size()) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const DeviceGuard guard(device_);
    with_constants(ladder::filters_of_layer, tensors.w, bytes_, execution.stream,
                   [&] { LaunchPlan::run(tensors, execution); });
  }

 private:
  int device_;
  std::size_t bytes_;
};

class ConstantMemory final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_10_constant_memory"; }

 protected:
  std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const override {
    return std::make_unique<ConstantMemoryPlan>(problem, device, launches(problem));
  }

  std::string why_not_here(const ConvProblem& problem, const Device&) const override {
    return kernel_for(problem) != nullptr ? "" : ladder::no_course_layer();
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"constant_memory", kernel_for(problem), static_cast<unsigned>(problem.batch),
             ladder::kConstantMemoryThreads, sizeof(float) * problem.in_channels * problem.input_size()}};
  }

 private:
  static const void* kernel_for(const ConvProblem& problem) {
    return ladder::for_course_layer<const void*>(problem, [](auto layer) {
      constexpr ladder::Layer kLayer = decltype(layer)::kLayer;
      return ladder::address(
          ladder::constant_memory<kLayer.channels, kLayer.size, kLayer.filters, kLayer.filter>);
    });
  }
};

}  // namespace

const Algorithm& cuda_ladder_10_constant_memory() {
  static const ConstantMemory rung;
  return rung;
}

}  // namespace convswap
