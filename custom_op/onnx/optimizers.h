#pragma once

#include <initializer_list>

#include "onnx/api.h"

// ONNX Runtime's optimisers that do not know that a Conv may be ours.

namespace convswap {

// From this version on ONNX Runtime has sessions without certain optimisers.
inline constexpr uint32_t kDisablesOptimizersSince = 18;

// Adds optimisers to those that sessions of `options` do without, beside what the user disabled. ONNX Runtime
// does not look at names that it has no optimiser of. Throws.
void disable_optimizers(const OrtApi& api, OrtSessionOptions* options,
                        std::initializer_list<const char*> names);

// Beside a node called Conv, of any domain, it puts others into that same domain, where those have no
// kernels: a quantised model whose bias is float32 would not load.
inline constexpr char kTakesOurDomain[] = "WeightBiasQuantization";

}  // namespace convswap
