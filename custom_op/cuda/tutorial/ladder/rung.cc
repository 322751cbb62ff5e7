#include "cuda/tutorial/ladder/rung.h"

#include <algorithm>

#include "cuda/host/launch.h"
#include "cuda/tutorial/ladder/no_bias.h"

namespace convswap::ladder {
namespace {

std::size_t max_shared_bytes(const std::vector<RungLaunch>& launches) {
  std::size_t bytes = 0;
  for (const RungLaunch& launch : launches) bytes = std::max(bytes, launch.shared_bytes);
  return bytes;
}

}  // namespace

KernelFamily kernels_of(const std::string& file, std::vector<std::string> instances) {
  return {.header = "cuda/tutorial/ladder/" + file + ".cuh", .instances = std::move(instances)};
}

LaunchPlan::LaunchPlan(const ConvProblem& problem, const Device& device, std::vector<RungLaunch> launches,
                       std::size_t scratch_bytes)
    : problem_(problem),
      device_(device.index),
      launches_(std::move(launches)),
      scratch_bytes_(scratch_bytes) {
  const DeviceGuard guard(device_);
  no_bias_ = no_bias(device_);
  const bool use_shared_memory = max_shared_bytes(launches_) > 0;
  for (const RungLaunch& launch : launches_) {
    if (kernels_.contains(launch.kernel)) continue;
    const void* const kernel = kernels_[launch.kernel] =
        find_kernel(launch.kernel, device, sizeof(Convolution));
    if (use_shared_memory) allow_shared_memory(kernel, device.shared_memory_per_block);
  }
}

Launch LaunchPlan::launch_of(const RungLaunch& launch) const {
  return {kernels_.at(launch.kernel), launch.grid, launch.block, launch.shared_bytes, Start::in_turn};
}

void LaunchPlan::run(const ConvTensors& tensors, const Execution& execution) const {
  const DeviceGuard guard(device_);
  Convolution conv = shapes_of(problem_);
  conv.w = static_cast<const float*>(tensors.w);
  conv.b = tensors.b == nullptr ? no_bias_ : static_cast<const float*>(tensors.b);
  conv.scratch = static_cast<float*>(execution.scratch);
  for (const RungLaunch& launch : launches_) {
    conv.batch = static_cast<int>(launch.images == 0 ? problem_.batch : launch.images);
    conv.x = static_cast<const float*>(tensors.x) +
             launch.first_image * problem_.in_channels * problem_.input_size();
    conv.y =
        static_cast<float*>(tensors.y) + launch.first_image * problem_.out_channels * problem_.output_size();
    void* arguments[] = {&conv};
    enqueue(launch_of(launch), execution.stream, arguments);
  }
}

std::string LaunchPlan::describe() const {
  std::string text;
  for (const KernelFacts& facts : kernels()) {
    text += (text.empty() ? "" : "; ") + facts.name + ": " + std::to_string(facts.blocks) + " blocks of " +
            std::to_string(facts.threads) + " threads, " + std::to_string(facts.registers) + " registers, " +
            std::to_string(facts.shared_bytes) + " bytes of shared memory";
  }
  const std::size_t launches = launches_.size();
  if (launches > kernels().size()) text += "; " + std::to_string(launches) + " launches";
  if (scratch_bytes_ > 0) text += "; " + std::to_string(scratch_bytes_) + " bytes of scratch memory";
  return text;
}

std::vector<KernelFacts> LaunchPlan::kernels() const {
  const DeviceGuard guard(device_);
  std::vector<KernelFacts> facts;
  for (const RungLaunch& launch : launches_) {
    // Slices of a batch launch the same kernels repeatedly.
    const bool is_known = std::any_of(facts.begin(), facts.end(),
                                      [&](const KernelFacts& known) { return known.name == launch.name; });
    if (is_known) continue;
    facts.push_back(kernel_facts(launch.name, launch_of(launch)));
  }
  return facts;
}

Offer Rung::offer(const ConvProblem& problem, const Device& device) const {
  std::string reason = ladder::why_not(problem);
  if (reason.empty() && problem.out_channels > kMaxFilters) {
    reason = "the rungs of the ladder compute at most " + std::to_string(kMaxFilters) + " filters";
  }
  if (reason.empty()) reason = why_unsupported(problem, device);
  if (!reason.empty()) return Offer::refusal(std::move(reason));
  const std::size_t needed = max_shared_bytes(launches(problem));
  if (needed > static_cast<std::size_t>(device.shared_memory_per_block)) {
    return Offer::refusal("it keeps " + std::to_string(needed) + " bytes in shared memory, and a block of " +
                          device.name + " has " + std::to_string(device.shared_memory_per_block));
  }
  return {{},
          std::nullopt,
          [this, problem, device] { return make_plan(problem, device); },
          [this, problem] {
            std::vector<std::string> names;
            for (const RungLaunch& launch : launches(problem)) {
              if (std::ranges::find(names, launch.kernel) == names.end()) names.push_back(launch.kernel);
            }
            return names;
          }};
}

std::unique_ptr<Plan> Rung::make_plan(const ConvProblem& problem, const Device& device) const {
  return std::make_unique<LaunchPlan>(problem, device, launches(problem), scratch_bytes(problem));
}

}  // namespace convswap::ladder
