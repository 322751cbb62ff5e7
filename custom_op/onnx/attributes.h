#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conv/attributes.h"
#include "onnx/api.h"

namespace convswap {

// A node's attributes. ONNX Runtime has one interface for them at kernel creation and another for shape
// inference.
class KernelAttributes final : public Attributes {
 public:
  KernelAttributes(const OrtApi& api, const OrtKernelInfo* info) : api_(api), info_(info) {}
  std::optional<int64_t> integer(const char* name) const override;
  std::vector<int64_t> integers(const char* name) const override;
  std::optional<float> real(const char* name) const override;
  std::optional<std::string> text(const char* name) const override;

 private:
  const OrtApi& api_;
  const OrtKernelInfo* info_;
};

class InferenceAttributes final : public Attributes {
 public:
  InferenceAttributes(const OrtApi& api, const OrtShapeInferContext* context)
      : api_(api), context_(context) {}
  std::optional<int64_t> integer(const char* name) const override;
  std::vector<int64_t> integers(const char* name) const override;
  std::optional<float> real(const char* name) const override;
  std::optional<std::string> text(const char* name) const override;

 private:
  std::string read(const char* name, OrtOpAttrType type) const;

  const OrtApi& api_;
  const OrtShapeInferContext* context_;
};

}  // namespace convswap
