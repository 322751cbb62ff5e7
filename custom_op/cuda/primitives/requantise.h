#pragma once

// The arguments of requantise.cuh, beside those of NaiveQuantisedConv.

namespace convswap {

// What codes of y can be, in steps from its zero point.
struct StepLimits {
  float least, most;    // of the codes, and of an activation that clamps
  bool are_narrower;    // the activation allows fewer codes than there are
  float most_products;  // bound of the sums, without the bias
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
