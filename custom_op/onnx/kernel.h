#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "onnx/api.h"
#include "onnx/attributes.h"
#include "onnx/inputs.h"
#include "onnx/memory.h"
#include "onnx/shape_cache.h"
#include "plan/planner.h"

namespace convswap {

// An op for one kind of device and element type, in one ONNX Runtime.
struct OpVariant {
  const OrtApiBase& base;
  const OrtApi& api;
  OpKind op;
  DeviceKind device;
  ElementType type;
  ElementType y_type;          // differs from `type` for OpKind::quant alone
  Precision precision;         // default of nodes without the attribute
  const KernelOrigin* origin;  // of a card's kernels; may be null
};

// Reads a node's spec from its attributes; `precision` is the default. Throws InvalidArgument.
ConvSpec read_node(const OpVariant& variant, const Attributes& attributes);

// The plan of a node for the input shapes of a run, reused by every run with the same shapes.
struct CachedRun {
  CachedRun(const NodeInputs::Keys& input_keys, const Device& run_device, Shape result_shape)
      : keys(input_keys), device(run_device), result(std::move(result_shape)) {}

  bool matches(const NodeInputs::Keys& other, int device_index) const {
    return device.index == device_index && keys == other;
  }

  NodeInputs::Keys keys;
  const Device& device;
  Shape result;                                                // shape of y
  std::shared_ptr<const Plan> plan;                            // null if y has no elements
  std::size_t scratch_bytes = 0;                               // of a run with prepared weights
  std::size_t scratch_bytes_with_weights = 0;                  // of prepare_and_run
  bool takes_prepared_weights = false;                         // once for all runs, because they are constant
  mutable std::atomic<const void*> prepared_weights{nullptr};  // null until they are packed
};

// One node of one session. Serves concurrent runs.
class ConvKernel {
 public:
  // Checks the node's declared shapes and, for a card, starts to make its plans in the background. `title`
  // names the node in messages. Throws.
  ConvKernel(const OpVariant& variant, const OrtKernelInfo* info, std::string title);

  const std::string& title() const { return title_; }
  const OrtApi& api() const { return variant_.api; }

  void compute(OrtKernelContext* context);

 private:
  std::shared_ptr<const CachedRun> cached_run(const OrtKernelContext* context, const InputTensors& tensors);
  void check_shapes(const PerInput<DeclaredInput>& inputs) const;
  std::optional<Shape> depthwise_result(const PerInput<DeclaredInput>& inputs) const;
  void plan_ahead(const OrtKernelInfo* info, const PerInput<DeclaredInput>& inputs) const;
  const void* prepared(const CachedRun& run, const OrtKernelContext* context, const OrtValue* weights,
                       void* stream);

  const OpVariant variant_;
  const std::string title_;
  const bool lends_scratch_;
  const ConvSpec spec_;
  const std::shared_ptr<PlanCache> plans_;  // shared with background work
  const bool is_tuned_;
  const NodeInputs inputs_;
  ShapeCache<CachedRun> shape_cache_;
  std::optional<AlignedConstants> aligned_constants_;  // on the CPU
  PreparedWeights prepared_weights_;
};

}  // namespace convswap
