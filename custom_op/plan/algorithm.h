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

// Contiguous tensors in the memory of the plan's device: x (N, C, spatial...), w (K, C / group, filter...),
// b null or (K), y (N, K, result...), z null or a residual (N, K, output...); of a depthwise convolution in
// front d (C, 1, filter...) and db null or (C), and then x is its input.
struct ConvTensors {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  const void* z = nullptr;
  const void* d = nullptr;
  const void* db = nullptr;
};

// Calls body(0) ... body(tasks - 1), in any order and from any number of threads, and returns when all are
// done. What a body throws, the call throws.
using ParallelFor =
    std::function<void(std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body)>;

// Where a plan runs: what the caller owns and lends for one run.
struct Execution {
  ParallelFor parallel_for;  // CPU algorithms
  void* stream = nullptr;    // CUDA algorithms: a cudaStream_t
  void* scratch = nullptr;   // of the device: as much memory as the plan asks for
  // CUDA algorithms: the weights in the plan's prepared form; null: the run prepares them, where it has to.
  const void* prepared_weights = nullptr;
  // CUDA algorithms: no kernel before in the stream still writes weights or biases, of a depthwise
  // convolution in front neither, as with a model's constants.
  bool weights_are_constant = false;
};

// What a plan makes of weights before it multiplies them, once for all runs where they stay the same.
struct PreparedForm {
  std::size_t bytes = 0;  // of the device's memory; 0: the plan takes weights as they are
  std::string name;       // plans for the same weights share what has been prepared in forms of one name
};

// A kernel that a plan starts: what the compiler gave it, and its launch.
struct KernelFacts {
  std::string name;
  int registers = 0;          // of a thread
  int64_t spilled_bytes = 0;  // of a thread: what did not fit into its registers, or was indexed at run time
  int64_t shared_bytes = 0;   // of a block
  int64_t threads = 0;        // of a block
  int64_t blocks = 0;
};

// An algorithm bound to a problem. Immutable, so one plan serves concurrent runs.
class Plan {
 public:
  virtual ~Plan() = default;

  // Computes y; on CUDA, enqueues the computation on the stream. Throws std::runtime_error when a launch
  // fails. Never called with an empty output.
  virtual void run(const ConvTensors& tensors, const Execution& execution) const = 0;

  // How much memory of the device a run needs beside its tensors; a stream may use it when `run` has
  // returned.
  virtual std::size_t scratch_bytes() const { return 0; }

  virtual PreparedForm prepared_form() const { return {}; }

  // Enqueues the preparation of the weights on a CUDA stream; `prepared` has as many bytes as the form tells.
  virtual void prepare(const void* /*weights*/, void* /*prepared*/, void* /*stream*/) const {}

  // The launch shape in words, for people: "tile 33x29, 8 warps, ...".
  virtual std::string describe() const = 0;

  // What the card says of each kernel that a run starts; nothing on the CPU.
  virtual std::vector<KernelFacts> kernels() const { return {}; }
};

// What an algorithm says of a problem on a device: why it cannot compute it, or about how long it takes and
// how to make the plan. What was searched for to say so is kept for the plan.
struct Offer {
  // Empty where the algorithm can compute the problem; otherwise why not, in words a user can act on.
  std::string why_not;

  // By an estimate that measures nothing; nothing where the algorithm has none.
  std::optional<double> milliseconds;

  // There where `why_not` is empty. Needs nothing that the offer was made from.
  std::function<std::unique_ptr<Plan>()> make;

  // The names of the card's kernels that the plan will start (cuda/host/kernels.h), each once; null where
  // there are none.
  std::function<std::vector<std::string>()> kernels = nullptr;

  // Whether a run of the plan takes memory beside its tensors.
  bool needs_scratch = false;

  static Offer refusal(std::string why_not) { return {std::move(why_not), std::nullopt, nullptr}; }
  bool is_refusal() const { return !why_not.empty(); }
};

// What the planner and the ops ask about the kernels that an offer names; the card's side answers.
//
// Why the device cannot have them, where nothing can be compiled and others lie ready; empty where it can,
// and where none lie ready: then the plan says so when it is made.
std::string why_no_kernels(const Device& device, const Offer& offer);

// What making the plan has to wait for, in one line for a log: kernels that have to be compiled first. Empty
// where all are there.
std::string what_is_compiled(const Device& device, const Offer& offer);

// A file that an algorithm computes with, which the session brings along: a session config entry names it.
struct SessionFile {
  std::string_view entry;  // "convswap.NAME"
  // What is in it. `name` is the file's own, for messages. Throws InvalidArgument.
  std::shared_ptr<const void> (*read)(const std::string& name, const std::string& text);
};

// One way to compute convolutions on one kind of device.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // The name that users type; unique for its device.
  virtual std::string_view name() const = 0;
  virtual DeviceKind device_kind() const = 0;

  // Why nobody gets it who has not asked for it by name, as the end of a sentence: "is ..., taken by its own
  // name alone". Empty where the rule may choose it.
  virtual std::string_view why_by_name_alone() const { return {}; }
  bool by_name_alone() const { return !why_by_name_alone().empty(); }

  // Null where it needs none. One that does is in no list, and is found by its name.
  virtual const SessionFile* session_file() const { return nullptr; }

  // Whether it rounds float32 data of depthwise convolutions in precision tf32, to as few bits or about as
  // few.
  virtual bool rounds_depthwise() const { return false; }

  // Whether it computes what follows the problem's convolution with it. Where it does not, it is asked for
  // the convolution alone, and the planner adds a kernel for the rest.
  virtual bool fuses(const ConvProblem&) const { return true; }

  // Whether it computes a depthwise convolution in front with the rest. Where it does not, it is asked for
  // the rest alone, and the planner puts another plan in front.
  virtual bool takes_depthwise() const { return false; }

  virtual Offer offer(const ConvProblem& problem, const Device& device) const = 0;

  // What it chooses among, at most so many, the cheapest by its estimate first, which is what it offers: for
  // those who set the estimate against what each takes. Empty where it cannot compute the problem.
  virtual std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                          std::size_t /*most*/) const {
    Offer only = offer(problem, device);
    if (only.is_refusal()) return {};
    return {std::move(only)};
  }
};

}  // namespace convswap
