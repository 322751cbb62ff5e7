#pragma once

namespace convswap {

inline void store_shared(unsigned* target, unsigned a, unsigned b) { target[0] = a, target[1] = b; }
template <typename Word>
void store_shared(Word* target, Word a, Word b, Word c, Word d) {
  target[0] = a, target[1] = b, target[2] = c, target[3] = d;
}

}  // namespace convswap
