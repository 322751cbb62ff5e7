#pragma once

namespace convswap {

// Stage and phase of one producer or consumer in a pipeline. All roles visit the stages in the same circular
// order. Barrier phases alternate between 0 and 1; a stage's first use has phase 0.
template <int kStages>
struct PipelineState {
  int uses = 0;

  __device__ int stage() const { return uses % kStages; }
  __device__ unsigned phase() const { return uses / kStages & 1; }
  __device__ void advance() { ++uses; }
};

// PipelineState with a number of stages known at run time.
struct DynamicPipelineState {
  int stage = 0;
  unsigned phase = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

}  // namespace convswap
