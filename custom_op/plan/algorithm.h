#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

// Contiguous tensors in the memory of the plan's device: x (N, C, spatial...), w (K, C / group, filter...),
// b null or (K), y (N, K, result...), z null or a residual (N, K, output...).
struct ConvTensors {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  const void* z = nullptr;
};

// Calls body(0) ... body(tasks - 1), in any order and from any number of threads, and returns when all are
// done. What a body throws, the call throws.
using ParallelFor =
    std::function<void(std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body)>;

// Where a plan runs: what the caller owns and lends for one run.
struct Execution {
  ParallelFor parallel_for;  // CPU algorithms
  void* stream = nullptr;    // CUDA algorithms: a cudaStream_t
  void* scratch = nullptr;   // CUDA algorithms: as much memory as the plan asks for
};

// An algorithm bound to a problem. Immutable, so one plan serves concurrent runs.
class Plan {
 public:
  virtual ~Plan() = default;

  // Computes y; on CUDA, enqueues the computation on the stream. Throws std::runtime_error when a launch
  // fails. Never called with an empty output.
  virtual void run(const ConvTensors& tensors, const Execution& execution) const = 0;

  // How much memory of the device a run needs beside its tensors; the stream may use it when `run` has
  // returned.
  virtual std::size_t scratch_bytes() const { return 0; }

  // The launch shape in words, for people: "tile 33x29, 8 warps, ...".
  virtual std::string describe() const = 0;
};

// One way to compute convolutions on one kind of device.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // The name that users type; unique for its device.
  virtual std::string_view name() const = 0;
  virtual DeviceKind device_kind() const = 0;

  // Empty where the algorithm can compute the problem on the device; otherwise why it cannot, in words a
  // user can act on.
  virtual std::string why_not(const ConvProblem& problem, const Device& device) const = 0;

  // About how long the problem takes, in milliseconds, by an estimate that measures nothing; nothing where
  // the algorithm has none. Requires an empty why_not.
  virtual std::optional<double> estimate(const ConvProblem&, const Device&) const { return std::nullopt; }

  // Requires an empty why_not.
  virtual std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const = 0;
};

}  // namespace convswap
