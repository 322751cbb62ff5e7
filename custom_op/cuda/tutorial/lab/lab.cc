// The algorithm `lab`: a user's kernel, from the file that the session entry convswap.lab names. The file
// also has the launch configuration. Each run launches the kernel once.

#include "convswap/lab.h"

#include <memory>
#include <string>
#include <utility>

#include "conv/error.h"
#include "cuda/host/kernels.h"
#include "cuda/runtime/kernel_origin.h"
#include "cuda/runtime/loaded_kernels.h"
#include "cuda/tutorial/lab/plan.h"
#include "cuda/tutorial/lab/source.h"
#include "plan/algorithm.h"

namespace convswap {
namespace lab {
namespace {

// A launch with more dynamic shared memory than this needs allow_shared_memory.
constexpr int64_t kDefaultSharedLimit = 48 << 10;

constexpr char kFillKernel[] = "lab::fill_shared_memory";
const KernelRegistration registration({.header = "cuda/tutorial/lab/kernel.cuh", .instances = {kFillKernel}});

Conv sizes_of(const ConvProblem& problem) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  return {.batch = narrow(problem.batch),
          .channels = narrow(problem.in_channels),
          .height = narrow(problem.input[1]),
          .width = narrow(problem.input[2]),
          .filters = narrow(problem.out_channels),
          .filter_height = narrow(problem.filter[1]),
          .filter_width = narrow(problem.filter[2]),
          .out_height = narrow(problem.output[1]),
          .out_width = narrow(problem.output[2]),
          .stride_h = narrow(problem.stride[1]),
          .stride_w = narrow(problem.stride[2]),
          .pad_top = narrow(problem.pad_begin[1]),
          .pad_left = narrow(problem.pad_begin[2]),
          .dilation_h = narrow(problem.dilation[1]),
          .dilation_w = narrow(problem.dilation[2]),
          .groups = narrow(problem.group)};
}

class LabPlan final : public Plan {
 public:
  LabPlan(const ConvProblem& problem, const Device& device, std::shared_ptr<const Source> source)
      : sizes_(sizes_of(problem)),
        device_(device.index),
        source_(std::move(source)),
        launch_(launch_of(*source_, problem, device)) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const DeviceGuard guard(device_);
    void* y = tensors.y;
    const void *x = tensors.x, *w = tensors.w, *b = tensors.b;
    Conv conv = sizes_;
    if (source_->interface() == Interface::conv) {
      void* arguments[] = {&y, &x, &w, &b, &conv};
      enqueue(launch_, execution.stream, arguments);
    } else {
      void* arguments[] = {&y,
                           &x,
                           &w,
                           &conv.batch,
                           &conv.filters,
                           &conv.channels,
                           &conv.height,
                           &conv.width,
                           &conv.filter_width};
      enqueue(launch_, execution.stream, arguments);
    }
  }

  std::string describe() const override {
    return source_->name() + ": " + std::to_string(launch_.grid.total()) + " blocks of " +
           std::to_string(launch_.block.total()) + " threads";
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts(source_->name(), launch_)};
  }

 private:
  Conv sizes_;
  int device_;
  std::shared_ptr<const Source> source_;
  Launch launch_;
};

constexpr SessionFile kFile{
    "convswap.lab", [](const std::string& name, const std::string& text) -> std::shared_ptr<const void> {
      return std::make_shared<const Source>(Source::parse(name, text));
    }};

// The session's kernel, or null.
std::shared_ptr<const Source> source_of(const Device& device) {
  if (device.kernels == nullptr) return nullptr;
  const auto found = device.kernels->files.find(kFile.entry);
  return found == device.kernels->files.end() ? nullptr
                                              : std::static_pointer_cast<const Source>(found->second);
}

class Lab final : public Algorithm {
 public:
  std::string_view name() const override { return "lab"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  bool fuses(const ConvProblem&) const override { return false; }
  const SessionFile* session_file() const override { return &kFile; }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    const std::shared_ptr<const Source> source = source_of(device);
    if (source == nullptr) {
      return Offer::refusal("no kernel was given: set the session entry convswap.lab to its file");
    }
    try {
      if (std::string reason = source->why_not(problem); !reason.empty()) {
        return Offer::refusal(std::move(reason));
      }
      static_cast<void>(source->launch_for(problem, device.shared_memory_per_block));
    } catch (const InvalidArgument& error) {
      return Offer::refusal(error.what());
    }
    return {{}, std::nullopt, [problem, device, source] {
              return std::make_unique<LabPlan>(problem, device, source);
            }};
  }
};

}  // namespace

KernelRequest request_for(const Source& source, int compute_capability) {
  return {.header = source.name(),
          .kernel = "forward",
          .variable = {},
          .compute_capability = compute_capability,
          .program = source.program()};
}

Launch launch_of(const Source& source, const ConvProblem& problem, const Device& device) {
  const DeviceGuard guard(device.index);
  const LaunchShape shape = source.launch_for(problem, device.shared_memory_per_block);
  Launch launch;
  KernelRequest request = request_for(source, device.compute_capability);
  request.is_portable = device.is_restricted;
  launch.kernel = find_kernel(request, device, sizeof(void*));
  launch.grid = shape.grid, launch.block = shape.block;
  launch.shared_bytes = static_cast<std::size_t>(shape.shared_bytes);
  if (shape.shared_bytes > kDefaultSharedLimit) {
    // The kernel's static shared memory counts too.
    const int64_t declared = kernel_facts("", launch).shared_bytes - shape.shared_bytes;
    if (shape.shared_bytes + declared > device.shared_memory_per_block) {
      throw InvalidArgument(source.name() + " declares " + std::to_string(declared) +
                            " bytes of shared memory and asks for " + std::to_string(shape.shared_bytes) +
                            " more in its launch line: a block has at most " +
                            std::to_string(device.shared_memory_per_block));
    }
    allow_shared_memory(launch.kernel, static_cast<int>(device.shared_memory_per_block - declared));
  }
  return launch;
}

void fill_shared_memory(const Device& device, void* stream) {
  // A block takes all the shared memory it may have, so each multiprocessor holds one block at a time. With
  // several rounds of blocks, every multiprocessor gets at least one.
  constexpr unsigned kThreads = 256, kRounds = 4;
  const DeviceGuard guard(device.index);
  int words = device.shared_memory_per_block / static_cast<int>(sizeof(unsigned));
  Launch launch;
  launch.kernel = find_kernel(kFillKernel, device, sizeof words);
  launch.grid = {kRounds * static_cast<unsigned>(device.multiprocessors)};
  launch.block = {kThreads};
  launch.shared_bytes = static_cast<std::size_t>(device.shared_memory_per_block);
  allow_shared_memory(launch.kernel, device.shared_memory_per_block);
  void* arguments[] = {&words};
  enqueue(launch, stream, arguments);
}

}  // namespace lab

const Algorithm& cuda_lab() {
  static const lab::Lab algorithm;
  return algorithm;
}

}  // namespace convswap
