#pragma once

#include <algorithm>
#include <cstdint>

#include "conv/arithmetic.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap {

// Assigns offsets in a block's shared memory, one part after the other, each aligned to `alignment` bytes.
// The total may exceed the available memory; end() tells. Offsets beyond `capacity` bytes are then invalid.
class SharedLayout {
 public:
  SharedLayout(int64_t alignment, int64_t capacity) : alignment_(alignment), capacity_(capacity) {}

  // The offset of `count` T.
  template <typename T>
  Offset<T> place(int64_t count) {
    const Offset<T> offset{static_cast<int>(std::min(end_, capacity_))};
    end_ += round_up(count * static_cast<int64_t>(sizeof(T)), alignment_);
    return offset;
  }

  int64_t end() const { return end_; }

 private:
  int64_t alignment_, capacity_;
  int64_t end_ = 0;
};

}  // namespace convswap
