#pragma once

// What `convswap lab` starts before a user's kernel: it leaves NaN in the shared memory of every
// multiprocessor, so that a kernel which reads there what it never wrote does not find what another block of
// its own has left.

namespace convswap::lab {

extern __shared__ unsigned left_behind[];

__global__ void fill_shared_memory(int words) {
  for (int i = threadIdx.x; i < words; i += blockDim.x) left_behind[i] = 0xffffffffu;
  __syncthreads();
  // The compiler may not leave out what nobody reads: no word is zero.
  if (left_behind[threadIdx.x % words] == 0) __trap();
}

}  // namespace convswap::lab
