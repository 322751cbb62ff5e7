// Rung 15. Tensor cores that are fed
//
// Idea: This rung has no kernel of its own. It is what the library has for these layers: `toeplitz`
// (`custom_op/cuda/toeplitz`) on a card of compute capability 9.0, else `few_channels`
// (`custom_op/cuda/few_channels`), each a folder instead of a page. What rung 14 lacks is a way to bring the
// tensor cores their numbers. Here the image lies in shared memory once, converted once, to float16 scaled by
// a power of two, which keeps as many bits as TF32; and the tensor cores read their operand straight from it.
// Eight neighbouring pixels are part of a row of one factor, a row for each group of neighbouring outputs,
// and the other factor holds each filter several times, shifted by a pixel from one output to the next, which
// mathematicians call a Toeplitz matrix. No division, no copy per tap, no barrier per 8 taps. Threads work in
// warpgroups, of four warps each: while one multiplies, another fetches the next image, and a third writes
// its results.
//
// Gain: The time for all that stood between the multiplications. What bounds it is memory: the results have
// to be written.
//
// Counter: `dram__throughput.avg.pct_of_peak_sustained_elapsed`, the share of the memory's speed that is
// used: the more, the nearer the floor. (The name of the kernel is `kernel`.)
//
// Precision: tf32
//
// Code: `custom_op/cuda/toeplitz`, which begins with `toeplitz.cc`
//
// No copy: it is a folder of files, custom_op/cuda/toeplitz

#include <memory>

#include "cuda/tutorial/ladder/stand_in.h"

namespace convswap {
namespace {

class Automatic final : public ladder::StandIn {
 public:
  std::string_view name() const override { return "ladder_15_automatic"; }

 protected:
  std::string why_not_here(const ConvProblem& problem) const override { return ladder::why_not(problem); }
};

}  // namespace

const Algorithm& cuda_ladder_15_automatic() {
  static const Automatic rung;
  return rung;
}

}  // namespace convswap
