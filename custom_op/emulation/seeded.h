#pragma once

// Programs that check one random problem per seed, with tensors at any address.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "draws.h"

namespace convswap {

// Bytes before and after y, which must stay as they are. A multiple of the alignment of device memory.
constexpr int64_t kGuardBytes = 64;
constexpr unsigned char kGuard = 0xa5;

// A tensor whose elements begin `shift` elements behind an aligned address. vector<double> is aligned to 16
// bytes.
template <typename T>
struct ShiftedTensor {
  std::vector<double> memory;
  T* elements;

  ShiftedTensor(int64_t count, int64_t shift)
      : memory(((count + shift) * int64_t{sizeof(T)} + 2 * kGuardBytes) / 8 + 1),
        elements(reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(memory.data()) + kGuardBytes) +
                 shift) {
    std::memset(memory.data(), kGuard, memory.size() * sizeof(double));
  }

  // True if no byte outside the first `count` elements was written; otherwise prints a line.
  bool is_intact_around(int64_t count) const {
    const auto* const begin = reinterpret_cast<const unsigned char*>(memory.data());
    const auto* const first = reinterpret_cast<const unsigned char*>(elements);
    const auto* const last = reinterpret_cast<const unsigned char*>(elements + count);
    for (const unsigned char* byte = begin; byte < begin + memory.size() * sizeof(double); ++byte) {
      if ((byte >= first && byte < last) || *byte == kGuard) continue;
      std::printf("a write outside y\n");
      return false;
    }
    return true;
  }
};

template <typename T>
double number_of(T element) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(element);
  } else {
    return static_cast<double>(element);
  }
}

// A normally distributed number, or any integer; `has_nan`: one in 40 is NaN.
template <typename T>
T random_element(Random& random, bool has_nan, double mean = 0) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    if (has_nan && one_in(random, 40)) return T(NAN);
    return T(static_cast<float>(mean + std::normal_distribution<double>()(random)));
  }
}

// Calls `check_seed` for the seeds from the first to before the second argument of main; prints the seeds for
// which it is false, and the number of problems. Returns main's exit status.
inline int check_seeds(bool (&check_seed)(int), int count, char** arguments) {
  if (count != 3) {
    std::printf("usage: %s FIRST END\n", arguments[0]);
    return 2;
  }
  const int first = std::atoi(arguments[1]), end = std::atoi(arguments[2]);
  int wrong = 0;
  for (int seed = first; seed < end; ++seed) {
    if (check_seed(seed)) continue;
    std::printf("seed %d\n", seed);
    ++wrong;
  }
  std::printf("%d problems computed, %d wrong\n", end - first, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace convswap
