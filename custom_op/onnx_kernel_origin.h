#pragma once

#include "cuda/runtime/kernel_origin.h"
#include "onnx_api.h"

namespace convswap {

// What the session options say of where kernels come from: the entries convswap.pack, a pack's file, and
// convswap.compile, "auto" or "never". Null where they say nothing. Throws where an entry has another value,
// or the file is no pack of this version.
const KernelOrigin* kernel_origin_of(const OrtApi& api, const OrtSessionOptions* options);

}  // namespace convswap
