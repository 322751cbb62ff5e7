#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "onnx/api.h"
#include "onnx/attributes.h"
#include "onnx/inputs.h"
#include "onnx/memory.h"
#include "plan/planner.h"

namespace convswap {

// The two ops: ONNX's Conv, and Conv with what follows it.
enum class OpKind { conv, fused_conv };

// An op for one kind of device and element type, in one ONNX Runtime.
struct OpVariant {
  const OrtApiBase& base;
  const OrtApi& api;
  OpKind op;
  DeviceKind device;
  ElementType type;
  Precision precision;         // of nodes that say none
  const KernelOrigin* origin;  // of the kernels on a card; may be null
};

// The spec that a node of the op has by its attributes. Throws InvalidArgument.
ConvSpec read_spec(OpKind op, const Attributes& attributes, ElementType type, Precision precision);

// What a node has found out for the shapes of one run, for every run that has them too.
struct CachedRun {
  CachedRun(const NodeInputs::Keys& own_keys, const Device& own_device, Shape own_result)
      : keys(own_keys), device(own_device), result(std::move(own_result)) {}

  bool is_of(const NodeInputs::Keys& other, int device_index) const {
    return device.index == device_index && keys == other;
  }

  NodeInputs::Keys keys;
  const Device& device;
  Shape result;                      // of y
  std::shared_ptr<const Plan> plan;  // null where y has no elements
  std::size_t scratch_bytes = 0;
  bool takes_prepared_weights = false;
  mutable std::atomic<const void*> prepared_weights{nullptr};  // once they are
};

// The last few runs of a node that differed: a server has some batch sizes that come again and again, and
// then nothing is looked up or computed. Safe for concurrent runs.
class ShapeCache {
 public:
  // Null where none of them is.
  std::shared_ptr<const CachedRun> find(const NodeInputs::Keys& keys, int device_index) const;
  void add(std::shared_ptr<const CachedRun> run);

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const CachedRun>, 4> runs_;
  std::size_t next_ = 0;
};

// One node of one session. Serves concurrent runs.
class ConvKernel {
 public:
  // Checks what the model tells of the node, and has its plans made ahead where they are for a card. `title`
  // is how messages call the node. Throws.
  ConvKernel(const OpVariant& variant, const OrtKernelInfo* info, std::string title);

  const std::string& title() const { return title_; }
  const OrtApi& api() const { return own_.api; }

  void compute(OrtKernelContext* context);

 private:
  std::shared_ptr<const CachedRun> known_run(const OrtKernelContext* context, const InputTensors& tensors);
  void check_shapes(const PerInput<DeclaredInput>& inputs) const;
  std::optional<Shape> depthwise_result(const PerInput<DeclaredInput>& inputs) const;
  void plan_ahead(const OrtKernelInfo* info, const PerInput<DeclaredInput>& inputs) const;
  const void* prepared(const CachedRun& run, const OrtKernelContext* context, const OrtValue* weights,
                       const void* data, void* stream);
  void tell_of_compiling(const OrtKernelContext* context, const Device& device, const Offer& offer) const;
  void log_warning(const OrtKernelContext* context, const std::string& text) const;
  void* aligned_data(const OrtValue* tensor) const;
  int device_index(const OrtValue* tensor) const;
  Execution execution_of(OrtKernelContext* context, void* scratch) const;

  const OpVariant own_;
  const std::string title_;
  const bool lends_scratch_;
  const ConvSpec spec_;
  const std::shared_ptr<PlanCache> plans_;  // which work in the background looks for
  const bool is_tuned_;
  const NodeInputs inputs_;
  ShapeCache recent_runs_;
  std::optional<AlignedConstants> aligned_constants_;  // of the CPU
  PreparedWeights prepared_weights_;
};

}  // namespace convswap
