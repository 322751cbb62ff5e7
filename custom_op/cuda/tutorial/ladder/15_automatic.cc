// Rung 15. Tensor cores that are fed
//
// Idea: This rung has no kernel of its own. It runs the algorithm that the library has for these layers:
// `toeplitz` (`custom_op/cuda/toeplitz`) on a GPU of compute capability 9.0, else `few_channels`
// (`custom_op/cuda/few_channels`). Each is a folder instead of a page. They have what rung 14 lacks: a way to
// supply the tensor cores with numbers. The image is in shared memory once, converted once, to float16 scaled
// by a power of two, which keeps as many bits as TF32. The tensor cores read it directly from there. Eight
// neighbouring pixels are part of a row of one factor, a row for each group of neighbouring outputs. The
// other factor holds each filter several times, shifted by a pixel from one output to the next: a *Toeplitz
// matrix*. There is no division, no copy for each tap, and no barrier every 8 taps. Threads work in
// *warpgroups* of four warps: while one multiplies, another loads the next image, and a third writes its
// results.
//
// Gain: The time of everything between the multiplications. Now the bound is memory: the results have to be
// written.
//
// Counter: `dram__throughput.avg.pct_of_peak_sustained_elapsed`, the share of the memory bandwidth that is
// used: the higher, the nearer to the floor. (The name of the kernel is `kernel`.)
//
// Precision: tf32
//
// Code: `custom_op/cuda/toeplitz`, beginning with `toeplitz.cc`
//
// No copy: it is a folder of files, custom_op/cuda/toeplitz

#include "cuda/tutorial/ladder/library_rung.h"

namespace convswap {
namespace {

class Automatic final : public ladder::LibraryRung {
 public:
  std::string_view name() const override { return "ladder_15_automatic"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem) const override { return ladder::why_not(problem); }
};

}  // namespace

const Algorithm& cuda_ladder_15_automatic() {
  static const Automatic rung;
  return rung;
}

}  // namespace convswap
