#pragma once

// Where a tile lies, in the convolution's output and in y, which a pool makes smaller.

#include "cuda/toeplitz/arguments.h"

namespace convswap::toeplitz {

struct Tile {
  long long n;  // its first image
  int images;
  int first_row, rows;        // of the convolution's output; with a pool the first may lie in its padding
  int y_row, y_rows;          // of y
  int first_column, columns;  // of both; with a pool all columns of y
  int y_columns;

  // kFinishes: something follows the convolution. Else both are one, which the compiler shall know.
  template <bool kFinishes, typename Element>
  static __device__ Tile of(const Arguments<Element>& problem, int index) {
    Tile tile;
    const int band = problem.column_tiles.quotient_of_any(index);
    const int column = index - band * static_cast<int>(problem.column_tiles.divisor);
    const int group = problem.bands.quotient_of_any(band);
    const int row = band - group * static_cast<int>(problem.bands.divisor);
    tile.n = static_cast<long long>(group) * problem.images;
    tile.images = min(problem.images, problem.batch - static_cast<int>(tile.n));
    tile.first_row = row * problem.row_advance - (kFinishes ? problem.pool_pad_height : 0);
    tile.rows = min(problem.rows << problem.log2_folds, problem.output_height - tile.first_row);
    tile.y_row = kFinishes ? row * problem.y_rows : tile.first_row;
    tile.y_rows = kFinishes ? min(problem.y_rows, problem.y_height - tile.y_row) : tile.rows;
    const int outputs = problem.cores << problem.log2_outputs;
    tile.first_column = column * outputs;
    tile.columns = min(outputs, problem.output_width - tile.first_column);
    tile.y_columns = kFinishes && problem.pools ? problem.y_width : tile.columns;
    return tile;
  }
};

}  // namespace convswap::toeplitz
