#pragma once

#include "conv/spec.h"
#include "onnx/api.h"

namespace convswap {

// Adds the domain `convswap` with its ops Conv and FusedConv to the session options; in the override mode
// also our op as Conv of the ONNX domain, which then replaces ONNX Runtime's own. Throws.
void register_ops(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options);

// The shape function of a node with that spec: sets the type and, as far as it is known, the shape of the
// output. Throws.
void infer_conv_shape(const OrtApi& api, OrtShapeInferContext* context, const ConvSpec& spec);

}  // namespace convswap
