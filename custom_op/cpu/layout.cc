// Changes of a tensor's layout on the CPU, in blocks that stay in the first-level cache.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "plan/layout_stage.h"

namespace convswap {
namespace {

constexpr int64_t kBlock = 32;  // rows and columns

// `Bits` is an integer of the elements' size: a copy keeps every NaN.
template <typename Bits>
class TransposePlan final : public Plan {
 public:
  explicit TransposePlan(const Transposition& transposition) : transposition_(transposition) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const int64_t strips = ceil_divide(transposition_.rows, kBlock);
    execution.parallel_for(transposition_.images * strips, [&](std::ptrdiff_t task) {
      transpose_strip(static_cast<const Bits*>(tensors.x), static_cast<Bits*>(tensors.y), task / strips,
                      task % strips * kBlock);
    });
  }

  std::string describe() const override { return "transposed block by block"; }

 private:
  // Transposes up to kBlock rows of an image.
  void transpose_strip(const Bits* x, Bits* y, int64_t image, int64_t first_row) const {
    const int64_t rows = transposition_.rows, columns = transposition_.columns;
    x += image * rows * columns;
    y += image * rows * columns;
    const int64_t end_row = std::min(first_row + kBlock, rows);
    for (int64_t first_column = 0; first_column < columns; first_column += kBlock) {
      const int64_t end_column = std::min(first_column + kBlock, columns);
      for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t column = first_column; column < end_column; ++column) {
          y[column * rows + row] = x[row * columns + column];
        }
      }
    }
  }

  const Transposition transposition_;
};

class Stage final : public LayoutStage {
 public:
  double estimate(const Transposition&, const Device&) const override { return 0; }

  std::unique_ptr<Plan> make(const Transposition& transposition, const Device&) const override {
    switch (bytes_per_element(transposition.type)) {
      case 1:
        return std::make_unique<TransposePlan<uint8_t>>(transposition);
      case 2:
        return std::make_unique<TransposePlan<uint16_t>>(transposition);
      case 4:
        return std::make_unique<TransposePlan<uint32_t>>(transposition);
      default:
        return std::make_unique<TransposePlan<uint64_t>>(transposition);
    }
  }

  std::vector<std::string> kernels(const Transposition&) const override { return {}; }
};

}  // namespace

const LayoutStage& cpu_layout_stage() {
  static const Stage stage;
  return stage;
}

}  // namespace convswap
