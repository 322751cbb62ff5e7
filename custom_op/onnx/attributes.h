#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx/api.h"

namespace convswap {

// The attributes of a node; absent ones are empty. ONNX Runtime shows a node's attributes through one
// interface while it infers shapes and through another when it creates the kernel.
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual std::optional<int64_t> integer(const char* name) const = 0;
  virtual std::vector<int64_t> integers(const char* name) const = 0;
  virtual std::optional<float> real(const char* name) const = 0;
  virtual std::optional<std::string> text(const char* name) const = 0;
};

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

// The conv spec that the attributes of an ONNX Conv, and our `precision`, describe; `precision` is that of a
// node without the attribute. Throws InvalidArgument.
ConvSpec read_spec(const Attributes& attributes, ElementType type, Precision precision);

// The epilogue that the further attributes of a FusedConv of that type describe. Throws InvalidArgument.
Epilogue read_epilogue(const Attributes& attributes, ElementType type);

// And what they say of a depthwise convolution in front. Throws InvalidArgument.
DepthwiseSpec read_depthwise(const Attributes& attributes, ElementType type);

}  // namespace convswap
