#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/arguments.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/host/text.h"

namespace convswap {

// Grid, block and shared memory, for `describe`.
inline std::string text_of(const Launch& launch) {
  return joined(launch.grid.x, " x ", launch.grid.y, " blocks of ", launch.block.total(), " threads, ",
                launch.shared_bytes, " bytes of shared memory");
}

// The grid of a persistent kernel, at most one block per multiprocessor. It has `rows` rows, whose blocks
// share the row's work tiles.
inline Dim3 grid_of_resident_blocks(int64_t work_tiles, int64_t rows, const Device& device) {
  const int64_t blocks_per_row = std::max<int64_t>(1, device.multiprocessors / rows);
  return {static_cast<unsigned>(std::min(work_tiles, blocks_per_row)), static_cast<unsigned>(rows)};
}

// A plan that launches one kernel. A family provides these static members of `Family`:
//
//   Tiling, Arguments                           the result of the tiling search; the kernel's arguments
//                                               (begin with Tensors<void>)
//   name(tiling)                                the kernel's name for KernelFacts
//   kernel_name(problem, tiling)                the instance's name (kernels.h)
//   arguments_of(problem, device, tiling)       the arguments without the tensors
//   threads(tiling), shared_bytes(tiling)       of a block; dynamic shared memory only
//   grid_of(problem, device, tiling, launch)    the grid; the other members of `launch` are set
//   describe(problem, tiling, launch)           the plan's description
//   bind(problem, tiling, arguments)            optional: adapts the arguments to the tensors' addresses.
//                                               It may take the tensors after the tiling, for those of
//                                               a depthwise convolution in front
//
// One class serves all element types, since the host passes Tensors<void>.
template <typename Family>
class KernelPlan final : public Plan {
 public:
  using Tiling = typename Family::Tiling;
  using Arguments = typename Family::Arguments;

  KernelPlan(const ConvProblem& problem, const Device& device, Tiling tiling)
      : problem_(problem),
        device_(device.index),
        tiling_(std::move(tiling)),
        arguments_(Family::arguments_of(problem, device, tiling_)) {
    const DeviceGuard guard(device_);
    launch_.kernel = find_kernel(Family::kernel_name(problem, tiling_), device, sizeof(Arguments));
    launch_.block.x = static_cast<unsigned>(Family::threads(tiling_));
    launch_.shared_bytes = static_cast<std::size_t>(Family::shared_bytes(tiling_));
    if (launch_.shared_bytes > 0) allow_shared_memory(launch_.kernel, device.shared_memory_per_block);
    launch_.start = earliest_start(launch_.kernel);
    launch_.grid = Family::grid_of(problem, device, tiling_, launch_);
  }

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    return {Family::kernel_name(problem, tiling)};
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    if constexpr (requires { Family::bind(problem_, tiling_, tensors, arguments); }) {
      Family::bind(problem_, tiling_, tensors, arguments);
    } else if constexpr (requires { Family::bind(problem_, tiling_, arguments); }) {
      Family::bind(problem_, tiling_, arguments);
    }
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    enqueue(launch_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts(Family::name(tiling_), launch_)};
  }

  std::string describe() const override { return Family::describe(problem_, tiling_, launch_); }

 private:
  ConvProblem problem_;
  int device_;
  Tiling tiling_;
  Arguments arguments_;
  Launch launch_;
};

}  // namespace convswap
