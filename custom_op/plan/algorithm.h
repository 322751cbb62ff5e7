#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

// Contiguous tensors in the memory of the plan's device. x, y and z have the problem's layouts; the shapes
// below are those of NCHW.
struct ConvTensors {
  const void* x = nullptr;           // (N, C, spatial...); the depthwise convolution's input if there is one
  const void* w = nullptr;           // (K, C / group, filter...)
  const void* b = nullptr;           // bias (K), or null
  void* y = nullptr;                 // (N, K, result...)
  const void* z = nullptr;           // residual (N, K, output...), or null
  const void* d = nullptr;           // weights of a depthwise convolution in front (C, 1, filter...), or null
  const void* db = nullptr;          // its bias (C), or null
  const void* scale = nullptr;       // of a quantised convolution: float32 (K)
  const void* offset = nullptr;      // float32 (K), or null
  const void* sum_values = nullptr;  // float32 (kCodeCount), or null
};

// Calls body(0) ... body(tasks - 1), in any order and from any number of threads, and returns when all are
// done. Rethrows an exception of a body.
using ParallelFor =
    std::function<void(std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body)>;

// The caller's resources for one run of a plan.
struct Execution {
  ParallelFor parallel_for;  // CPU algorithms
  void* stream = nullptr;    // CUDA algorithms: a cudaStream_t
  void* scratch = nullptr;   // device memory, Plan::scratch_bytes() of it
  // CUDA algorithms: the weights in Plan::prepared_form(); null if the plan has none.
  const void* prepared_weights = nullptr;
  // CUDA algorithms: no earlier kernel in the stream writes weights, prepared or not, or biases, those of a
  // depthwise convolution in front included. True for a model's constants.
  bool weights_are_constant = false;
};

// The layout into which a plan packs weights, once for all runs if the weights are constant. Otherwise the
// caller prepares them for each run (plan/prepared.h).
struct PreparedForm {
  std::size_t bytes = 0;  // device memory; 0: the plan uses the weights unpacked
  std::string name;       // plans for the same weights share packed weights of the same name
};

// A kernel that a plan launches: its resources and its launch shape.
struct KernelFacts {
  std::string name;
  int registers = 0;          // per thread
  int64_t spilled_bytes = 0;  // local memory per thread: register spills and arrays indexed at run time
  int64_t shared_bytes = 0;   // per block
  int64_t threads = 0;        // per block
  int64_t blocks = 0;
};

// An algorithm bound to a problem. Immutable, so one plan serves concurrent runs.
class Plan {
 public:
  virtual ~Plan() = default;

  // Computes y; on CUDA, enqueues the computation on the stream. Throws std::runtime_error if a launch fails.
  // Never called with an empty output.
  virtual void run(const ConvTensors& tensors, const Execution& execution) const = 0;

  // Device memory that a run needs besides its tensors and prepared weights. The stream may still use it
  // after `run` has returned.
  virtual std::size_t scratch_bytes() const { return 0; }

  virtual PreparedForm prepared_form() const { return {}; }

  // Enqueues the packing of weights on a CUDA stream; `prepared` has prepared_form().bytes.
  virtual void prepare(const void* /*weights*/, void* /*prepared*/, void* /*stream*/) const {}

  // The launch shape as text for users: "tile 33x29, 8 warps, ...".
  virtual std::string describe() const = 0;

  // Resources of each kernel that a run launches; empty on the CPU.
  virtual std::vector<KernelFacts> kernels() const { return {}; }
};

// An algorithm's answer for a problem on a device: why it cannot compute the problem, or its estimated time
// and a function that makes the plan. The function holds the result of the search for a tiling.
struct Offer {
  // Why the algorithm cannot compute the problem, in words that a user can act on; empty if it can.
  std::string why_not;

  // The estimated time; empty for an algorithm without an estimate.
  std::optional<double> milliseconds;

  // Set if `why_not` is empty. Owns everything that it needs.
  std::function<std::unique_ptr<Plan>()> make;

  // Returns the names of the kernel instances that the plan launches (cuda/host/kernels.h), each once; null
  // on the CPU.
  std::function<std::vector<std::string>()> kernels = nullptr;

  // True if a run needs scratch memory, if only for weights that are not constant.
  bool needs_scratch = false;

  // Returns the name of the tiling among the algorithm's alternatives; null if there is one only.
  std::function<std::string()> tiling = nullptr;

  // Returns the estimated time for other coefficients; null for an algorithm without an estimate.
  std::function<double(const std::shared_ptr<const CostTable>&)> milliseconds_for = nullptr;

  static Offer refusal(std::string why_not) { return {std::move(why_not), std::nullopt, nullptr}; }
  bool is_refusal() const { return !why_not.empty(); }
};

// Returns why the device cannot have an offer's kernels: nothing can be compiled, and only other kernels come
// with the library. Returns "" if it can. Also returns "" if no kernels come with the library: making the
// plan then reports the error.
std::string why_no_kernels(const Device& device, const Offer& offer);

// Returns one line for a log about kernels that have to be compiled before the plan is made; "" if there are
// none.
std::string compilation_notice(const Device& device, const Offer& offer);

// A file that an algorithm needs; a session config entry names it.
struct SessionFile {
  std::string_view entry;  // "convswap.NAME"
  // Parses the file's text. `name` is the file's name, for messages. Throws InvalidArgument.
  std::shared_ptr<const void> (*read)(const std::string& name, const std::string& text);
};

// One way to compute convolutions on one kind of device.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // The name that users type; unique for its device.
  virtual std::string_view name() const = 0;
  virtual DeviceKind device_kind() const = 0;

  // Why the planner never selects it by itself, as the end of a sentence: "is ..., taken by its own name
  // alone". Empty for an algorithm that the planner may select.
  virtual std::string_view why_by_name_alone() const { return {}; }
  bool by_name_alone() const { return !why_by_name_alone().empty(); }

  // The session file that it needs, or null. An algorithm with a session file is in no list; find_algorithm
  // finds it.
  virtual const SessionFile* session_file() const { return nullptr; }

  // True if in precision tf32 it rounds the float32 data of depthwise convolutions to about TF32's bits.
  virtual bool rounds_depthwise() const { return false; }

  // True if it computes the problem's epilogue. Otherwise it gets the problem without epilogue, and the
  // planner adds an epilogue kernel.
  virtual bool fuses(const ConvProblem&) const { return true; }

  // True if it computes a depthwise convolution in front. Otherwise the planner runs another plan for that
  // one first.
  virtual bool takes_depthwise() const { return false; }

  // True if it computes the problem in its layouts, of which at least one is not NCHW. Otherwise it gets the
  // problem with tensors in NCHW, unless it changes to NHWC, and the planner adds transposing kernels
  // (plan/layout_stage.h).
  virtual bool takes_layouts(const ConvProblem&) const { return false; }

  // True if the planner transposes x and the residual in other layouts to NHWC for it, and y back.
  virtual bool changes_to_nhwc(const ConvProblem&, const Device&) const { return false; }

  // True if it computes int8 and uint8 codes. All other algorithms get numbers alone.
  virtual bool takes_codes() const { return false; }

  virtual Offer offer(const ConvProblem& problem, const Device& device) const = 0;

  // Returns up to `max_count` offers, one per tiling, the cheapest estimate first; offer() returns the first.
  // They serve measurements of the estimate. Empty if the algorithm cannot compute the problem.
  virtual std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                          std::size_t /*max_count*/) const {
    Offer only = offer(problem, device);
    if (only.is_refusal()) return {};
    return {std::move(only)};
  }
};

}  // namespace convswap
