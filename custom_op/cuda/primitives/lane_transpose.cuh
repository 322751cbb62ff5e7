#pragma once

namespace convswap {

// Of four neighbouring lanes with four words each: word j of lane i becomes word i of lane j. By all lanes of
// a warp; twice it changes nothing.
__device__ inline void transpose_among_four_lanes(unsigned (&words)[4]) {
  const bool is_odd = threadIdx.x % 2 == 1, is_upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const unsigned given = __shfl_xor_sync(0xffffffffu, is_odd ? words[j] : words[j + 1], 1);
    words[j] = is_odd ? given : words[j];
    words[j + 1] = is_odd ? words[j + 1] : given;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned given = __shfl_xor_sync(0xffffffffu, is_upper ? words[j] : words[j + 2], 2);
    words[j] = is_upper ? given : words[j];
    words[j + 2] = is_upper ? words[j + 2] : given;
  }
}

}  // namespace convswap
