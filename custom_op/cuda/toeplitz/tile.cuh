#pragma once

// Where a tile lies, in the convolution's output and in y, which a pool makes smaller.

#include "cuda/toeplitz/arguments.h"

namespace convswap::toeplitz {

struct Tile {
  long long n;  // its first image
  int images;
  int first_row, rows;  // of the convolution's output; with a pool the first may lie in its padding
  int y_row, y_rows;    // of y
  int first_column, columns;  // of both; with a pool all columns of y
  int y_columns;

  template <typename Element>
  __device__ Tile(const Arguments<Element>& problem, int index) {
    const int band = problem.column_tiles.quotient_of_any(index);
    const int column = index - band * static_cast<int>(problem.column_tiles.divisor);
    const int group = problem.bands.quotient_of_any(band);
    const int row = band - group * static_cast<int>(problem.bands.divisor);
    n = static_cast<long long>(group) * problem.images;
    images = min(problem.images, problem.batch - static_cast<int>(n));
    first_row = row * problem.row_advance - problem.pool_pad_height;
    rows = min(problem.rows << problem.log2_folds, problem.output_height - first_row);
    y_row = row * problem.y_rows;
    y_rows = min(problem.y_rows, problem.y_height - y_row);
    const int outputs = problem.cores << problem.log2_outputs;
    first_column = column * outputs;
    columns = min(outputs, problem.output_width - first_column);
    y_columns = problem.pools ? problem.y_width : columns;
  }
};

}  // namespace convswap::toeplitz
