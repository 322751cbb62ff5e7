#pragma once

#include <cstdint>

#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda_emulation.h"
#include "emulated_tensor_map.h"

namespace convswap {

struct TensorCoordinates {
  int channel, column, row, depth, image;
};

// Calls visit(global, shared) for each element of a box in shared memory. `global` is null outside the
// tensor. TMA's swizzle of 128 or 64 bytes combines bits of the addresses in shared memory.
template <typename Visit>
void for_each_element(const EmulatedTensorMap& map, const void* shared, TensorCoordinates at, Visit visit) {
  const int first[] = {at.channel, at.column, at.row, at.depth, at.image};
  uintptr_t address = reinterpret_cast<uintptr_t>(shared);
  if (address % 1024 != 0) emulation::fail("a misaligned TMA copy of a tensor");
  int index[5] = {};
  for (index[4] = 0; index[4] < map.box[4]; ++index[4]) {
    for (index[3] = 0; index[3] < map.box[3]; ++index[3]) {
      for (index[2] = 0; index[2] < map.box[2]; ++index[2]) {
        for (index[1] = 0; index[1] < map.box[1]; ++index[1]) {
          for (index[0] = 0; index[0] < map.box[0]; ++index[0]) {
            const char* global = map.base;
            for (int axis = 0; axis < 5; ++axis) {
              const int64_t place = first[axis] + int64_t{index[axis]} * map.steps[axis];
              if (place < 0 || place >= map.extents[axis]) {
                global = nullptr;
                break;
              }
              global += place * map.strides[axis];
            }
            const unsigned span = map.has_short_rows ? 3 : 7;
            visit(global, reinterpret_cast<char*>(address ^ (address >> 7 & span) << 4));
            address += map.element_bytes;
          }
        }
      }
    }
  }
}

inline void tma_load_tensor(void* shared, const TensorMap& map, TensorCoordinates at, TmaMbarrier* barrier) {
  const EmulatedTensorMap& tensor = emulated(map);
  issue_load(shared, tensor.box_bytes(), barrier, [=] {
    for_each_element(tensor, shared, at, [&](const char* global, char* to) {
      if (global == nullptr) {
        std::memset(to, 0, tensor.element_bytes);
      } else {
        std::memcpy(to, global, tensor.element_bytes);
        if (!tensor.rounds_to_tf32) return;
        float& number = *reinterpret_cast<float*>(to);
        number = round_to_tf32(number);
      }
    });
  });
}

inline void tma_store_tensor(const void* shared, const TensorMap& map, TensorCoordinates at) {
  const EmulatedTensorMap& tensor = emulated(map);
  const char* const source = static_cast<const char*>(shared);
  tma_stores[emulation::current].push_back({source, {source, source + tensor.box_bytes()}});
  for_each_element(tensor, shared, at, [&](const char* global, const char* from) {
    if (global != nullptr) std::memcpy(const_cast<char*>(global), from, tensor.element_bytes);
  });
}

}  // namespace convswap
