#pragma once

#include <algorithm>
#include <cstdint>

#include "conv/arithmetic.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap {

// Gives the parts of a block's shared memory their places, one behind the other, each at a multiple of
// `alignment` bytes. They may come to more than a block can have, as end() tells; places beyond `most` bytes
// then mean nothing.
class SharedLayout {
 public:
  SharedLayout(int64_t alignment, int64_t most) : alignment_(alignment), most_(most) {}

  // Room for so many T.
  template <typename T>
  Offset<T> place(int64_t count) {
    const Offset<T> offset{static_cast<int>(std::min(end_, most_))};
    end_ += round_up(count * static_cast<int64_t>(sizeof(T)), alignment_);
    return offset;
  }

  int64_t end() const { return end_; }

 private:
  int64_t alignment_, most_;
  int64_t end_ = 0;
};

}  // namespace convswap
