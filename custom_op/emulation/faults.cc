// Kernels with one fault each, and a correct one: `faults NAME` runs one, to test what the emulation reports.

#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda_emulation.h"

namespace {

constexpr int kThreads = 64;
constexpr int kWords = 64;
alignas(16) unsigned char shared[2 * emulation::kSharedBytes];
alignas(16) unsigned input[kWords + 4];
alignas(16) unsigned output[kThreads];

// Each thread outputs the word that its neighbour stored in shared memory.
void read_neighbour() {
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  words[threadIdx.x] = input[threadIdx.x];
  __syncthreads();
  output[threadIdx.x] = words[(threadIdx.x + 1) % kThreads];
}

void read_neighbour_without_barrier() {
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  words[threadIdx.x] = input[threadIdx.x];
  output[threadIdx.x] = words[(threadIdx.x + 1) % kThreads];
}

void write_out_of_bounds() { reinterpret_cast<unsigned*>(shared)[threadIdx.x + 1] = 0; }

void sync_divergently() {
  if (threadIdx.x % 2 == 0) __syncthreads();
  if (threadIdx.x == 1) __syncwarp();
}

void copy_misaligned() {
  if (threadIdx.x == 0) convswap::cp_async_16(shared, input + 1);
}

void store_misaligned() {
  if (threadIdx.x == 0) convswap::store_shared(shared + 4, uint2{1, 2});
}

void tma_store_misaligned() {
  if (threadIdx.x == 0) convswap::tma_store_1d(output + 4, shared + 4, 16, false);
}

void end_without_waiting_for_store() {
  if (threadIdx.x == 0) convswap::tma_store_1d(output, shared, 16, false);
}

// The mbarrier is in the first 16 bytes of shared memory, the loaded data in the next 16.
void tma_load(const unsigned* source) {
  convswap::TmaMbarrier* const barrier = reinterpret_cast<convswap::TmaMbarrier*>(shared);
  if (threadIdx.x != 0) return;
  convswap::tma_mbarrier_init(barrier);
  convswap::tma_load_1d_expect_tx(shared + 16, source, 16, barrier);
  convswap::mbarrier_arrive(barrier);
}

void tma_load_misaligned() { tma_load(input + 1); }

void end_without_waiting_for_load() { tma_load(input); }

// The first block of a cluster writes to the second one, which has not begun.
void store_too_early() {
  convswap::TmaMbarrier* const barrier = reinterpret_cast<convswap::TmaMbarrier*>(shared);
  if (threadIdx.x != 0) return;
  if (convswap::cluster_rank() == 0) {
    return convswap::store_to_block(1, shared + 16, {1, 2, 3, 4}, barrier);
  }
  convswap::tma_mbarrier_init(barrier);
}

// Thread 1 overwrites the source of thread 0's TMA store, which may still be reading it.
void change_source() {
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  words[threadIdx.x] = input[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) convswap::tma_store_1d(output, shared, 16, false);
  if (threadIdx.x == 1) words[1] = 0;
  __syncthreads();
  convswap::tma_store_commit_group();
  convswap::tma_store_wait_group_read();
}

}  // namespace

int main(int count, char** arguments) {
  const std::pair<const char*, void (*)()> kernels[] = {
      {"none", read_neighbour},
      {"missing barrier", read_neighbour_without_barrier},
      {"beyond shared memory", write_out_of_bounds},
      {"divergent barrier", sync_divergently},
      {"misaligned copy", copy_misaligned},
      {"misaligned store", store_misaligned},
      {"misaligned TMA store", tma_store_misaligned},
      {"changing source", change_source},
      {"missing wait", end_without_waiting_for_store},
      {"misaligned TMA load", tma_load_misaligned},
      {"missing wait for loads", end_without_waiting_for_load},
      {"missing wait for a cluster", store_too_early},
  };
  for (unsigned i = 0; i < kWords; ++i) input[i] = 100 + i;
  for (const auto& [name, kernel] : kernels) {
    if (count != 2 || std::strcmp(arguments[1], name) != 0) continue;
    emulation::run_grid(dim3(2), dim3(kThreads), shared, kWords * sizeof(unsigned), kernel,
                        kernel == store_too_early ? 2 : 1);
    for (int i = 0; i < kThreads; ++i) std::printf("%u ", output[i]);
    return 0;
  }
  return 2;
}
