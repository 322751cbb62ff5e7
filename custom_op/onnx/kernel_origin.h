#pragma once

#include "cuda/runtime/kernel_origin.h"
#include "onnx/api.h"

namespace convswap {

// What the session options say of where kernels come from: the entries convswap.pack, a pack's file,
// convswap.compile, "auto" or "never", and convswap.lab, the file of a user's own kernel. Null where they say
// nothing. Throws where an entry has another value, or a file is not what it should be.
const KernelOrigin* kernel_origin_of(const OrtApi& api, const OrtSessionOptions* options);

}  // namespace convswap
