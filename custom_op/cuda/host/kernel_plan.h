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

// The grid's columns and rows, the threads of a block and its shared memory, for people.
inline std::string text_of(const Launch& launch) {
  return joined(launch.grid.x, " x ", launch.grid.y, " blocks of ", launch.block.count(), " threads, ",
                launch.shared_bytes, " bytes of shared memory");
}

// The grid of blocks that stay, at most one on each multiprocessor: so many rows, whose blocks share the
// works.
inline Dim3 grid_of_resident_blocks(int64_t works, int64_t rows, const Device& device) {
  const int64_t share = std::max<int64_t>(1, device.multiprocessors / rows);
  return {static_cast<unsigned>(std::min(works, share)), static_cast<unsigned>(rows)};
}

// The plan whose runs start one kernel. What a family of kernels adds are static members of `Family`:
//
//   Tiling, Arguments                           what a search has found; what the kernel takes, which begins
//                                               with Tensors<void>
//   name(tiling)                                of the kernel, for people
//   kernel_name(problem, tiling)                of the instance (kernels.h)
//   arguments_of(problem, device, tiling)       all but the tensors
//   threads(tiling), shared_bytes(tiling)       of a block; the latter beside what the kernel declares
//   grid_of(problem, device, tiling, launch)    all else of the launch is known
//   describe(problem, tiling, launch)           in words, for people
//   bind(problem, tiling, arguments)            if there: fits the arguments to where the tensors lie; behind
//                                               the tiling it may take the tensors, for those of a depthwise
//                                               convolution in front
//
// The formats of the data have one plan: to the host all elements are alike.
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
