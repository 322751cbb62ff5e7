#pragma once

#include "cuda/primitives/shared_memory.cuh"
#include "cuda_emulation.h"

namespace convswap {

template <int kMatrices>
void ldmatrix(unsigned (&matrices)[kMatrices], SharedAddress row) {
  if (row % 16 != 0) emulation::fail("a misaligned ldmatrix");
  emulation::Warp& warp = emulation::warp();
  const int lane = emulation::lane();
  std::memcpy(warp.a[lane], &row, sizeof(row));
  emulation::sync_warp();
  for (int i = 0; i < kMatrices; ++i) {
    SharedAddress address;
    std::memcpy(&address, warp.a[i * 8 + lane / 4], sizeof(address));
    std::memcpy(&matrices[i], reinterpret_cast<const unsigned char*>(address) + lane % 4 * 4, 4);
  }
  emulation::sync_warp();
}

}  // namespace convswap
