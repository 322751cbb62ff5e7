#pragma once

// Where a thread's chunks wait until they are multiplied: one in registers, or a few in shared memory.

#include "cuda/pointwise/layout.h"
#include "cuda/pointwise/numbers.cuh"
#include "cuda/primitives/async_copy.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::pointwise {

// The channels of a chunk of a thread's pixels, product after product.
template <int kSteps>
using Chunk = Words[kSteps];

// A chunk in registers, as ChunkLoader loads it.
template <typename Element, int kSteps>
struct InRegisters {
  using Of = Numbers<Element>;
  using Pair = typename Of::Pair;

  __device__ explicit InRegisters(Chunk<kSteps>& chunk) : to(chunk) {}
  // Zeros where it is not there.
  __device__ void load_pair(int step, int load, const Element* from, bool is_there) const {
    Of::put(to[step], load, is_there ? *reinterpret_cast<const Pair*>(from) : Pair{});
  }
  __device__ void load_each(int step, int load, const Element* first, const Element* second,
                            bool is_there) const {
    Of::put(to[step], load, is_there ? Of::pair_at(first, second) : Pair{});
  }

  Chunk<kSteps>& to;
};

// A chunk in shared memory, of which a thread has its own pairs alone, so that nothing but the thread itself
// has to wait for them.
template <typename Element, int kSteps>
class InSlot {
 public:
  using Of = Numbers<Element>;
  using Pair = typename Of::Pair;
  static_assert(kSteps * Of::kLoads * kWarpgroupThreads * sizeof(Pair) == kSteps * kSlotStepBytes);

  __device__ explicit InSlot(unsigned char* slot)
      : own_(reinterpret_cast<Pair*>(slot) + thread_of_warpgroup()) {}

  __device__ void load_pair(int step, int load, const Element* from, bool is_there) const {
    copy_async<sizeof(Pair)>(place(step, load), from, is_there);
  }
  // Where a tensor turns out not to be aligned, which is not known when the tiling is chosen.
  __device__ void load_each(int step, int load, const Element* first, const Element* second,
                            bool is_there) const {
    *place(step, load) = is_there ? Of::pair_at(first, second) : Pair{};
  }

  __device__ void take(Chunk<kSteps>& to) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int load = 0; load < Of::kLoads; ++load) Of::put(to[step], load, *place(step, load));
    }
  }

 private:
  __device__ Pair* place(int step, int load) const {
    return own_ + (step * Of::kLoads + load) * kWarpgroupThreads;
  }

  Pair* own_;
};

// The slots of a warpgroup, which its chunks take in turns.
template <typename Element, int kSteps, int kSlots>
class Slots {
 public:
  __device__ explicit Slots(unsigned char* all)
      : first_(all + warpgroup_of_block() * (kSlots * kSteps * kSlotStepBytes)) {}

  // Starts the copies of all slots but one.
  template <typename Loader>
  __device__ void fill(Loader& loader) {
    for (int slot = 0; slot < kSlots - 1; ++slot) start(loader, slot);
  }

  // Starts the copies of the chunk that is kSlots - 1 further on, into the slot whose chunk was taken last
  // and has been multiplied, so that nobody reads it any more; then takes the next chunk.
  template <typename Loader>
  __device__ void take_next(Loader& loader, Chunk<kSteps>& to) {
    start(loader, next_ == 0 ? kSlots - 1 : next_ - 1);
    wait_for_copies<kSlots - 1>();
    slot(next_).take(to);
    if (++next_ == kSlots) next_ = 0;
  }

 private:
  __device__ InSlot<Element, kSteps> slot(int number) const {
    return InSlot<Element, kSteps>(first_ + number * (kSteps * kSlotStepBytes));
  }

  template <typename Loader>
  __device__ void start(Loader& loader, int number) const {
    loader.load_next(slot(number));
    commit_copies();
  }

  unsigned char* first_;
  int next_ = 0;
};

}  // namespace convswap::pointwise
