// Rung 16. Fused with what follows
//
// Idea: A convolution seldom comes alone: after the first convolution of every network of the course comes
// tanh or ReLU, and then a pooling that keeps the largest of 2×2 outputs. Each is cheap to compute and reads
// and writes the whole large tensor again. So the kernel of rung 15 computes them too, while its sums are
// still on the chip, and writes the pooled result alone. `convswap swap --fuse` finds what can be fused, and
// makes one `FusedConv` of it.
//
// Gain: With a pooling of 2×2 the result is a quarter, and the convolution's own output, by far the largest
// tensor of these networks, is never written nor read: the floor itself is lower. The time of this rung
// includes tanh and pooling; for the other rungs kernels of their own do that, which take as long as rung 15
// again, or longer.
//
// Slower: Taken for itself it does more than rung 15, and its threads compute what a convolution alone does
// not need.
//
// Counter: `dram__bytes_write.sum`, the bytes written to memory: a quarter of rung 15's.
//
// Precision: tf32
//
// Fuses: yes
//
// Code: `custom_op/cuda/toeplitz`, whose `epilogue.cuh` computes what follows
//
// No copy: it is a folder of files, custom_op/cuda/toeplitz

#include <memory>

#include "cuda/tutorial/ladder/stand_in.h"

namespace convswap {
namespace {

class Fused final : public ladder::StandIn {
 public:
  std::string_view name() const override { return "ladder_16_fused"; }

 protected:
  // The ladder's problems, whatever follows them.
  std::string why_not_here(const ConvProblem& problem) const override {
    ConvProblem alone = problem;
    alone.epilogue = {};
    alone.result = problem.output;
    return ladder::why_not(alone);
  }
};

}  // namespace

const Algorithm& cuda_ladder_16_fused() {
  static const Fused rung;
  return rung;
}

}  // namespace convswap
