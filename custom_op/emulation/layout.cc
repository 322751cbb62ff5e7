// Checks the kernel of the layout stage on the CPU: `layout FIRST END` transposes random matrices of each
// element size, one per seed, and compares every bit.

#include <cstdio>
#include <cstring>

#include "compiled.h"
#include "cuda/layout/arguments.h"
#include "cuda_emulation.h"
#include "plan/layout_stage.h"
#include "seeded.h"
//
#include "cuda/layout/kernel.cuh"
#include "host.h"

namespace convswap {

namespace layout {
alignas(128) unsigned char shared[emulation::kSharedBytes];
}

static const CompiledKernels kernels({CompiledKernel("layout::kernel<Float16>", layout::kernel<Float16>),
                                      CompiledKernel("layout::kernel<float>", layout::kernel<float>),
                                      CompiledKernel("layout::kernel<double>", layout::kernel<double>)});

void enqueue(const Launch& launch, void*, void** arguments) {
  run_kernel<layout::Arguments<float>>(launch, arguments, layout::shared);
}

const LayoutStage& cuda_layout_stage();

namespace {

bool transposes(const Transposition& transposition, int64_t x_shift, int64_t y_shift, Random& random) {
  const int64_t size = bytes_per_element(transposition.type), bytes = transposition.bytes();
  const ShiftedTensor<unsigned char> x(bytes, x_shift * size), y(bytes, y_shift * size);
  for (int64_t i = 0; i < bytes; ++i) x.elements[i] = static_cast<unsigned char>(random());
  cuda_layout_stage().make(transposition, {})->run({.x = x.elements, .y = y.elements}, {});
  for (int64_t image = 0; image < transposition.images; ++image) {
    for (int64_t row = 0; row < transposition.rows; ++row) {
      for (int64_t column = 0; column < transposition.columns; ++column) {
        const int64_t first = image * transposition.rows * transposition.columns;
        const int64_t from = (first + row * transposition.columns + column) * size;
        const int64_t to = (first + column * transposition.rows + row) * size;
        if (std::memcmp(x.elements + from, y.elements + to, size) == 0) continue;
        std::printf("image %ld row %ld column %ld is wrong\n", image, row, column);
        return false;
      }
    }
  }
  return y.is_intact_around(bytes);
}

bool check_seed(int seed) {
  Random random(seed);
  constexpr ElementType kTypes[] = {ElementType::float16, ElementType::float32, ElementType::float64};
  Transposition transposition{kTypes[seed % 3], between(random, 1, 3), between(random, 1, 200),
                              between(random, 1, 200)};
  // Extents whose rows begin at multiples of 16 bytes, on either side.
  if (one_in(random, 2)) transposition.rows = 8 * ((transposition.rows + 7) / 8);
  if (one_in(random, 2)) transposition.columns = 8 * ((transposition.columns + 7) / 8);
  const int64_t x_shift = one_in(random, 4) ? between(random, 1, 7) : 0;
  const int64_t y_shift = one_in(random, 4) ? between(random, 1, 7) : 0;
  return transposes(transposition, x_shift, y_shift, random);
}

}  // namespace
}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::check_seed, count, arguments);
}
