// Rung 16. Fused with what follows
//
// Idea: A convolution is seldom alone. In every network of the course, the first convolution is followed by
// tanh or ReLU, and then by a pooling that keeps the largest of 2×2 outputs. Each of these ops is cheap to
// compute, but reads and writes the entire large tensor again. So the kernel of rung 15 computes them too,
// while its sums are still on the chip, and writes only the pooled result. `convswap swap --fuse` finds what
// can be fused, and makes one `FusedConv` of it.
//
// Gain: With a pooling of 2×2 the result is a quarter in size. The convolution's own output, by far the
// largest tensor of these networks, is neither written nor read: the floor itself is lower. The time of this
// rung includes tanh and pooling. For the other rungs, separate kernels compute them, which take as long as
// rung 15 again, or longer.
//
// Slower: This rung does more work than rung 15: its time includes tanh and pooling, which the time of a
// convolution alone does not.
//
// Counter: `dram__bytes_write.sum`, the bytes written to memory: a quarter of rung 15's.
//
// Precision: tf32
//
// Fuses: yes
//
// Code: `custom_op/cuda/toeplitz`, whose `epilogue.cuh` computes the fused ops
//
// No copy: it is a folder of files, custom_op/cuda/toeplitz

#include "cuda/tutorial/ladder/library_rung.h"

namespace convswap {
namespace {

class Fused final : public ladder::LibraryRung {
 public:
  std::string_view name() const override { return "ladder_16_fused"; }

 protected:
  // Supports the problems of the ladder with any epilogue.
  std::string why_unsupported(const ConvProblem& problem) const override {
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
