// Kernels with a fault each, and one without: `faults NAME` runs one, for what the emulation says of it.

#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda_emulation.h"

namespace {

constexpr int kThreads = 64;
constexpr int kWords = 64;
alignas(16) unsigned char shared[emulation::kSharedBytes];
alignas(16) unsigned input[kWords + 4];
alignas(16) unsigned output[kThreads];

// Every thread gives what its neighbour read.
void pass_on() {
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  words[threadIdx.x] = input[threadIdx.x];
  __syncthreads();
  output[threadIdx.x] = words[(threadIdx.x + 1) % kThreads];
}

void pass_on_without_barrier() {
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  words[threadIdx.x] = input[threadIdx.x];
  output[threadIdx.x] = words[(threadIdx.x + 1) % kThreads];
}

void write_beyond() { reinterpret_cast<unsigned*>(shared)[threadIdx.x + 1] = 0; }

void meet_in_part() {
  if (threadIdx.x % 2 == 0) __syncthreads();
  if (threadIdx.x == 1) __syncwarp();
}

void copy_misaligned() {
  if (threadIdx.x == 0) convswap::cp_async_16(shared, input + 1);
}

void store_misaligned() {
  if (threadIdx.x == 0) convswap::store_shared(shared + 4, uint2{1, 2});
}

void store_in_bulk_misaligned() {
  if (threadIdx.x == 0) convswap::tma_store_1d(output + 4, shared + 4, 16, false);
}

void end_without_waiting() {
  if (threadIdx.x == 0) convswap::tma_store_1d(output, shared, 16, false);
}

// The first 16 bytes of shared memory are what counts the bytes that come to the next.
void load_in_bulk(const unsigned* from) {
  convswap::TmaMbarrier* const barrier = reinterpret_cast<convswap::TmaMbarrier*>(shared);
  if (threadIdx.x != 0) return;
  convswap::tma_mbarrier_init(barrier);
  convswap::tma_load_1d_expect_tx(shared + 16, from, 16, barrier);
  convswap::mbarrier_arrive(barrier);
}

void load_in_bulk_misaligned() { load_in_bulk(input + 1); }

void end_without_waiting_for_loads() { load_in_bulk(input); }

// Thread 1 writes where the copy of thread 0 may still be reading.
void change_source() {
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  words[threadIdx.x] = input[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) convswap::tma_store_1d(output, shared, 16, false);
  if (threadIdx.x == 1) words[1] = 0;
  __syncthreads();
  convswap::tma_store_wait_group_read();
}

}  // namespace

int main(int count, char** arguments) {
  const std::pair<const char*, void (*)()> kernels[] = {
      {"none", pass_on},
      {"missing barrier", pass_on_without_barrier},
      {"beyond shared memory", write_beyond},
      {"barrier of a part", meet_in_part},
      {"misaligned copy", copy_misaligned},
      {"misaligned store", store_misaligned},
      {"misaligned bulk store", store_in_bulk_misaligned},
      {"changing source", change_source},
      {"missing wait", end_without_waiting},
      {"misaligned bulk load", load_in_bulk_misaligned},
      {"missing wait for loads", end_without_waiting_for_loads},
  };
  for (unsigned i = 0; i < kWords; ++i) input[i] = 100 + i;
  for (const auto& [name, kernel] : kernels) {
    if (count != 2 || std::strcmp(arguments[1], name) != 0) continue;
    emulation::run_grid(dim3(2), dim3(kThreads), shared, kWords * sizeof(unsigned), kernel);
    for (int i = 0; i < kThreads; ++i) std::printf("%u ", output[i]);
    return 0;
  }
  return 2;
}
