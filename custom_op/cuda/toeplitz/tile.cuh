#pragma once

// Where a tile of the output lies.

#include "cuda/toeplitz/arguments.h"

namespace convswap::toeplitz {

struct Tile {
  long long n;  // its first image
  int images;
  int first_row, rows;  // of the output
  int first_column, columns;

  template <typename Element>
  __device__ Tile(const Arguments<Element>& problem, int index) {
    const int band = problem.column_tiles.quotient_of_any(index);
    const int column = index - band * static_cast<int>(problem.column_tiles.divisor);
    const int group = problem.bands.quotient_of_any(band);
    n = static_cast<long long>(group) * problem.images;
    images = min(problem.images, problem.batch - static_cast<int>(n));
    first_row = (band - group * static_cast<int>(problem.bands.divisor)) * problem.rows * problem.folds;
    rows = min(problem.rows * problem.folds, problem.output_height - first_row);
    const int outputs = problem.cores << problem.log2_outputs;
    first_column = column * outputs;
    columns = min(outputs, problem.output_width - first_column);
  }
};

}  // namespace convswap::toeplitz
