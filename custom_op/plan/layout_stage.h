#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// A change of a tensor's layout: in each image a matrix of rows x columns becomes one of columns x rows. To
// NCHW, rows are positions and columns are channels; from NCHW, rows are channels.
struct Transposition {
  ElementType type;
  int64_t images, rows, columns;

  int64_t bytes() const { return images * rows * columns * bytes_per_element(type); }
};

// A change of a tensor's layout in a separate kernel, for algorithms that do not take the layout.
class LayoutStage {
 public:
  virtual ~LayoutStage() = default;

  // The estimated time in milliseconds; 0 on the CPU, whose algorithms have no estimates.
  virtual double estimate(const Transposition& transposition, const Device& device) const = 0;

  // Makes a plan that reads `x` of its tensors and writes `y`.
  virtual std::unique_ptr<Plan> make(const Transposition& transposition, const Device& device) const = 0;

  // The kernel instances that its plan launches, as in Offer::kernels.
  virtual std::vector<std::string> kernels(const Transposition& transposition) const = 0;
};

// The layout stage of a kind of device.
const LayoutStage& layout_stage(DeviceKind kind);

// Returns the layouts with which the algorithm computes the problem: NHWC if it changes to that, otherwise
// for the least bytes to transpose those of the problem or, for tensors whose layout it does not take, NCHW.
Layouts layouts_for(const Algorithm& algorithm, const ConvProblem& problem, const Device& device);

// Adds the layout stage to `inner`, the algorithm's offer for `problem` with the layouts `taken`. Transposed
// tensors go through scratch memory.
Offer with_layout_stage(Offer inner, const ConvProblem& problem, const Layouts& taken, const Device& device);

}  // namespace convswap
