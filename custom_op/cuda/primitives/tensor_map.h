#pragma once

namespace convswap {

// A TMA descriptor of a tensor in global memory (CUtensorMap). The host makes it (cuda/host/tensor_map.h),
// and a kernel takes it as a part of its __grid_constant__ parameter.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

}  // namespace convswap
