#include "cuda/host/launch.h"
#include "cuda/tutorial/ladder/constant_bank.h"
#include "cuda/tutorial/ladder/course_layers.h"
#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

constexpr std::string_view kKernel = "ladder::constant_memory";

const KernelRegistration registration({.header = "cuda/tutorial/ladder/10_constant_memory.cuh",
                                       .instances = ladder::course_instances(kKernel),
                                       .variable = "ladder::filters_of_layer"});

// Copies the filters to constant memory before the kernel starts.
class ConstantMemoryPlan final : public ladder::LaunchPlan {
 public:
  ConstantMemoryPlan(const ConvProblem& problem, const Device& device,
                     const std::vector<ladder::RungLaunch>& launches)
      : LaunchPlan(problem, device, launches, 0),
        device_(device.index),
        filters_(find_variable(launches.front().kernel, device)),
        bytes_(sizeof(float) * problem.out_channels * problem.in_channels * problem.filter_size()) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const DeviceGuard guard(device_);
    with_constants(filters_, tensors.w, bytes_, execution.stream,
                   [&] { LaunchPlan::run(tensors, execution); });
  }

 private:
  int device_;
  void* filters_;
  std::size_t bytes_;
};

class ConstantMemory final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_10_constant_memory"; }

 protected:
  std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const override {
    return std::make_unique<ConstantMemoryPlan>(problem, device, launches(problem));
  }

  std::string why_unsupported(const ConvProblem& problem, const Device&) const override {
    return ladder::course_layer(problem) != nullptr ? "" : ladder::no_course_layer();
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    return {{"constant_memory", ladder::course_layer(problem)->instance(kKernel),
             static_cast<unsigned>(problem.batch), ladder::kConstantMemoryThreads,
             sizeof(float) * problem.in_channels * problem.input_size()}};
  }
};

}  // namespace

const Algorithm& cuda_ladder_10_constant_memory() {
  static const ConstantMemory rung;
  return rung;
}

}  // namespace convswap
