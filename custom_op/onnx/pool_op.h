#pragma once

#include <memory>
#include <optional>
#include <string>

#include "conv/pool_problem.h"
#include "onnx/custom_op.h"
#include "onnx/inputs.h"
#include "onnx/memory.h"
#include "onnx/shape_cache.h"

namespace convswap {

// LayoutPool for one kind of device and element type, in one ONNX Runtime.
struct PoolVariant {
  const OrtApiBase& base;
  const OrtApi& api;
  DeviceKind device;
  ElementType type;
  const KernelOrigin* origin;  // of a card's kernels; may be null
};

// The plan of a LayoutPool node for an input shape, reused by every run with the same shape.
struct CachedPool {
  ShapeKey key;
  int device_index;
  Shape result;                      // shape of y
  std::shared_ptr<const Plan> plan;  // null if y has no elements
};

// One LayoutPool node of one session. Serves concurrent runs.
class PoolKernel {
 public:
  // Checks the node's declared shape and, for a card, starts to compile its kernels in the background.
  // `title` names the node in messages. Throws.
  PoolKernel(const PoolVariant& variant, const OrtKernelInfo* info, std::string title);

  const std::string& title() const { return title_; }
  const OrtApi& api() const { return variant_.api; }

  void compute(OrtKernelContext* context);

 private:
  std::shared_ptr<const CachedPool> cached_pool(const OrtKernelContext* context, const OrtValue* x);
  void compile_ahead(const Shape& x) const;

  const PoolVariant variant_;
  const std::string title_;
  const PoolSpec spec_;
  ShapeCache<CachedPool> shape_cache_;
  std::optional<AlignedConstants> aligned_constants_;  // on the CPU
};

// LayoutPool as ONNX Runtime sees it: a table of functions.
struct PoolOp : public CustomOp {
  explicit PoolOp(const PoolVariant& pool_variant);

  const PoolVariant variant;
};

}  // namespace convswap
