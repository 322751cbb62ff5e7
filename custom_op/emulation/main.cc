// Checks an algorithm's kernels on the CPU: `FAMILY FIRST END [every-tiling|plans]`, see problems.cc.

#include "problems.h"

namespace convswap {
const Algorithm& ALGORITHM();
}

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::ALGORITHM(), count, arguments);
}
