#include "cpu/processor.h"

#include <cpuid.h>

#include <cstring>

namespace convswap {

std::string processor_name() {
  // The brand string: 48 bytes in three leaves of CPUID, by the manuals of Intel and AMD.
  constexpr unsigned kFirstLeaf = 0x80000002;
  constexpr unsigned kLeaves = 3;
  unsigned registers[4 * kLeaves]{};
  for (unsigned leaf = 0; leaf < kLeaves; ++leaf) {
    unsigned* part = registers + 4 * leaf;
    if (__get_cpuid(kFirstLeaf + leaf, part, part + 1, part + 2, part + 3) == 0) return "x86-64";
  }
  char name[sizeof registers + 1]{};
  std::memcpy(name, registers, sizeof registers);
  return name;
}

}  // namespace convswap
