#pragma once

// The arguments of requantise.cuh, beside those of NaiveQuantisedConv.

namespace convswap {

// What codes of y can be, in steps from its zero point.
struct StepLimits {
  float least, most;    // of the codes, and of an activation that clamps
  bool are_narrower;    // the activation allows fewer codes than there are
  float most_products;  // bound of the sums, without the bias
};

// Kinds of results of sums in accumulators, each with a code path of its own: branches between the values of
// a thread would keep their instructions from overlapping. In all but the last two the activation only
// clamps.
enum class CodeResults {
  scaled,    // the scale; y has no other scale
  shifted,   // the same, with an offset
  residual,  // scale, offset and a residual
  rounded,   // the same, with a rounding in front of the residual
  tabled,    // scale and offset; a code of the sum has a code of y
  any,
};

struct Requantisation {
  bool is_plain;     // y has the codes of the scaled sums, without offset, residual and any activation but a
                     // clamp
  bool only_clamps;  // the activation is in the limits
  StepLimits limits;
  bool has_y_vectors,
      has_z_vectors;  // a thread's filters are adjacent and aligned codes of y, and of the residual
};

}  // namespace convswap
