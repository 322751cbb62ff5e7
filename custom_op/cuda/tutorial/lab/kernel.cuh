#pragma once

// The kernel that `convswap lab` runs before a user's kernel. It fills the shared memory of every
// multiprocessor with NaN, so that reads of uninitialised shared memory give NaN and not the data of an
// earlier block.

namespace convswap::lab {

extern __shared__ unsigned shared_words[];

__global__ void fill_shared_memory(int words) {
  for (int i = threadIdx.x; i < words; i += blockDim.x) shared_words[i] = 0xffffffffu;
  __syncthreads();
  // Reads a word, so that the compiler keeps the stores. No word is zero.
  if (shared_words[threadIdx.x % words] == 0) __trap();
}

}  // namespace convswap::lab
