#pragma once

#include "cuda/primitives/dp4a.cuh"
#include "cuda_emulation.h"

namespace convswap {

// The numbers of all 16-bit patterns, because conversions would take most of the time.
template <typename Operand>
inline const std::vector<float> number_of_bits = [] {
  std::vector<float> numbers(1 << 16);
  for (unsigned bits = 0; bits < numbers.size(); ++bits) {
    numbers[bits] = static_cast<float>(std::bit_cast<Operand>(static_cast<unsigned short>(bits)));
  }
  return numbers;
}();

// One half of a 32-bit word, as a number.
template <typename Operand>
[[gnu::always_inline]] inline double number_at(unsigned word, int half) {
  return number_of_bits<Operand>.data()[word >> 16 * half & 0xffffu];
}

// accumulators (16x8) += a (16 x 8 kWords) * b (8 kWords x 8), with the register layouts of
// custom_op/cuda/primitives/mma.cuh.
template <typename Operand, int kWords>
EMULATION_HOT void emulate_mma(float (&accumulators)[4], const unsigned* a, const unsigned* b) {
  emulation::Warp& warp = emulation::warp();
  const int lane = emulation::lane();
  std::copy_n(a, 2 * kWords, warp.a[lane]);
  std::copy_n(b, kWords, warp.b[lane]);
  emulation::sync_warp();
  for (int j = 0; j < 4; ++j) {
    const int row = lane / 4 + j / 2 * 8;
    const int column = lane % 4 * 2 + j % 2;
    double sum = accumulators[j];
    for (int word = 0; word < kWords; ++word) {
      for (int t = 0; t < 4; ++t) {
        const unsigned x = warp.a[row % 8 * 4 + t][word * 2 + row / 8];
        const unsigned y = warp.b[column * 4 + t][word];
        for (int half = 0; half < 2; ++half) sum += number_at<Operand>(x, half) * number_at<Operand>(y, half);
      }
    }
    accumulators[j] = static_cast<float>(sum);
  }
  emulation::sync_warp();
}

template <typename Code>
EMULATION_HOT void mma_m16n8k32(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulation::Warp& warp = emulation::warp();
  const int lane = emulation::lane();
  std::copy_n(a, 4, warp.a[lane]);
  std::copy_n(b, 2, warp.b[lane]);
  emulation::sync_warp();
  for (int j = 0; j < 4; ++j) {
    const int row = lane / 4 + j / 2 * 8, column = lane % 4 * 2 + j % 2;
    for (int word = 0; word < 2; ++word) {
      for (int t = 0; t < 4; ++t) {
        sums[j] =
            dp4a<Code>(warp.a[row % 8 * 4 + t][word * 2 + row / 8], warp.b[column * 4 + t][word], sums[j]);
      }
    }
  }
  emulation::sync_warp();
}

template <typename Code>
EMULATION_HOT void mma_m8n8k16(int& first, int& second, unsigned a, unsigned b) {
  emulation::Warp& warp = emulation::warp();
  const int lane = emulation::lane();
  warp.a[lane][0] = a, warp.b[lane][0] = b;
  emulation::sync_warp();
  for (int t = 0; t < 4; ++t) {
    const unsigned x = warp.a[lane / 4 * 4 + t][0];
    first = dp4a<Code>(x, warp.b[lane % 4 * 8 + t][0], first);
    second = dp4a<Code>(x, warp.b[lane % 4 * 8 + 4 + t][0], second);
  }
  emulation::sync_warp();
}

template <typename Operand>
void mma_m16n8k16(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                  unsigned b1) {
  const unsigned a[] = {a0, a1, a2, a3};
  const unsigned b[] = {b0, b1};
  emulate_mma<Operand, 2>(accumulators, a, b);
}

template <typename Operand>
void mma_m16n8k8(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned b0) {
  const unsigned a[] = {a0, a1};
  emulate_mma<Operand, 1>(accumulators, a, &b0);
}

// Rounds to nearest, ties away from zero.
inline float round_to_tf32(float value) {
  const unsigned bits = std::bit_cast<unsigned>(value);
  return std::isfinite(value) ? std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu) : value;
}

// The hardware truncates operands that are not rounded to TF32, which biases the results.
[[gnu::always_inline]] inline double checked_tf32(unsigned word) {
  const float value = std::bit_cast<float>(word);
  if (std::isfinite(value) && (word & 0x1fffu) != 0) {
    emulation::fail("an operand that is not rounded to TF32");
  }
  return value;
}

EMULATION_HOT inline void mma_m16n8k8_tf32(float (&accumulators)[4], const float (&a)[4],
                                           const float (&b)[2]) {
  emulation::Warp& warp = emulation::warp();
  const int lane = emulation::lane();
  for (int i = 0; i < 4; ++i) warp.a[lane][i] = std::bit_cast<unsigned>(a[i]);
  for (int i = 0; i < 2; ++i) warp.b[lane][i] = std::bit_cast<unsigned>(b[i]);
  emulation::sync_warp();
  for (int j = 0; j < 4; ++j) {
    const int row = lane / 4 + j / 2 * 8;
    const int column = lane % 4 * 2 + j % 2;
    double sum = accumulators[j];
    for (int depth = 0; depth < 8; ++depth) {
      const unsigned x = warp.a[row % 8 * 4 + depth % 4][depth / 4 * 2 + row / 8];
      const unsigned y = warp.b[column * 4 + depth % 4][depth / 4];
      sum += checked_tf32(x) * checked_tf32(y);
    }
    accumulators[j] = static_cast<float>(sum);
  }
  emulation::sync_warp();
}

}  // namespace convswap
