#pragma once

namespace convswap {

// How far a role has come in a ring of stages, which all roles go round in the same order. The barriers of a
// stage have phases, 0 and 1 in turns, and that of its first use is 0.
template <int kStages>
struct PipelineState {
  int uses = 0;

  __device__ int stage() const { return uses % kStages; }
  __device__ unsigned phase() const { return uses / kStages & 1; }
  __device__ void advance() { ++uses; }
};

// The same of as many stages as the kernel is told.
struct DynamicPipelineState {
  int stage = 0;
  unsigned phase = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

}  // namespace convswap
