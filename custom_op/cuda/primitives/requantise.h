#pragma once

// The arguments of requantise.cuh, beside those of NaiveQuantisedConv.

namespace convswap {

struct Requantisation {
  bool is_plain;     // y has the codes of the scaled sums, without offset, residual and any activation but a
                     // clamp
  bool only_clamps;  // the activation is in the bounds below
  // The least and the most steps from the zero point of y: the range of its codes, and of an activation that
  // clamps.
  float least_steps, most_steps;
  bool has_y_vectors,
      has_z_vectors;  // a thread's filters are adjacent and aligned codes of y, and of the residual
};

}  // namespace convswap
