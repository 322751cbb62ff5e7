#pragma once

#include "cuda/activations.cuh"
#include "cuda/definition.cuh"
#include "cuda/primitives/global_store.cuh"
#include "cuda/row_windows/numbers.cuh"
#include "cuda/row_windows/tile.cuh"

namespace convswap::row_windows {

// Finds the outputs of a band's columns, by the consumers. A column that is a multiple of the pitch begins a
// group of output rows; behind the last column of a row are places that no output has.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, int thread, int* outputs) {
  for (int i = thread; i < problem.column_chunks * kColumns; i += kConsumers) {
    const int group = i / problem.pitch;
    const int column = i - group * problem.pitch;
    outputs[i] = group < problem.groups && column < problem.output_width
                     ? group * problem.folds * problem.output_width + column
                     : -1;
  }
}

// An output as the definition says: an infinity is multiplied with the zeros that fill the depth, too.
template <typename Element>
__device__ __noinline__ void store_as_defined(const Arguments<Element>& problem, int image, int filter,
                                              int row, int column, long long at) {
  problem.y[at] = static_cast<Element>(
      defined_value<Element, float>(problem, problem.definition, image, filter, 0, row, column));
}

// What a thread has of the products of all bands: of two rows, of every eight columns two neighbours.
template <typename Element>
class Results {
 public:
  __device__ Results(const Arguments<Element>& problem, const Share& share, const float* bias)
      : problem_(problem) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + 8 * i;
      fold_[i] = row / problem.block_filters;
      const int filter = row - fold_[i] * problem.block_filters;
      exists_[i] = fold_[i] < problem.folds && filter < share.filters;
      filter_[i] = share.first_filter + (exists_[i] ? filter : 0);
      bias_[i] = bias[exists_[i] ? filter : 0];
      row_[i] =
          global_address(problem.y + (static_cast<long long>(filter_[i]) * problem.output_height + fold_[i]) *
                                         problem.output_width);
    }
  }

  // Goes on to the next band.
  __device__ void take(const Band& band) {
    image_ = band.image;
    first_row_ = band.first_row;
    const long long further =
        (static_cast<long long>(band.image) * problem_.out_channels * problem_.output_height +
         band.first_row) *
        problem_.output_width * static_cast<int>(sizeof(Element));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to_[i] = row_[i] + further;
      // Outputs of the image from this row's first on.
      left_[i] =
          exists_[i] ? (problem_.output_height - band.first_row - fold_[i]) * problem_.output_width : 0;
    }
  }

  // Sums begin with the bias.
  __device__ void begin(float (&sums)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][i] = bias_[i / 2];
    }
  }

  // `outputs`: of the first column.
  __device__ void store(float (&sums)[kTiles][4], const int* outputs) const {
    const int* const own = outputs + static_cast<int>(threadIdx.x) % 4 * 2;
    const unsigned long long undefined = not_finite(sums);
    if (problem_.z != nullptr) add_residual(sums, own);
    if (problem_.following.epilogue.activation != Activation::none) {
      finish_many(problem_.following, [&](auto finish) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) finish(sums[t]);
      });
    }
    if (problem_.stored_together == kFour) {
      store_fours(sums, own);
    } else if (problem_.stored_together == 2) {
      store_pairs(sums, own);
    } else {
      store_each(sums, own);
    }
    // Behind the lane beside this one, which may have stored it.
    __syncwarp();
    if (undefined != 0) store_again(undefined, own);
  }

 private:
  using Of = Numbers<Element>;

  __device__ bool is_output(int i, int output) const {
    return output >= 0 && output < (i == 0 ? left_[0] : left_[1]);
  }
  __device__ unsigned long long address_of(int i, int output) const {
    return (i == 0 ? to_[0] : to_[1]) + static_cast<long long>(output) * static_cast<int>(sizeof(Element));
  }
  // Of all outputs.
  __device__ long long number_of(int i, int output) const {
    return static_cast<long long>(address_of(i, output) - global_address(problem_.y)) /
           static_cast<int>(sizeof(Element));
  }

  __device__ void add_residual(float (&sums)[kTiles][4], const int* own) const {
    const unsigned long long further = global_address(problem_.z) - global_address(problem_.y);
    if (problem_.stored_together == kFour) {
      add_fours(sums, own, further);
      return;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = own[t * kTileColumns + i % 2];
        unsigned number = 0;
        Of::load_one(is_output(i / 2, output), address_of(i / 2, output) + further, number);
        sums[t][i] += Of::float_of(number);
      }
    }
  }

  // As store_fours has them: what belongs to the lane beside this one is given to it.
  __device__ void add_fours(float (&sums)[kTiles][4], const int* own, unsigned long long further) const {
    const bool is_odd = threadIdx.x % 2 == 1;
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int output = own[is_odd ? (t + 1) * kTileColumns - 2 : t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        typename Of::Four four{};
        load_global_if(is_output(i, output), address_of(i, output) + further, four);
        const auto given = Of::beside(is_odd ? Of::first_of(four) : Of::second_of(four));
        const float2 first = Of::floats_of(is_odd ? given : Of::first_of(four));
        const float2 second = Of::floats_of(is_odd ? Of::second_of(four) : given);
        sums[t][2 * i] += first.x, sums[t][2 * i + 1] += first.y;
        sums[t + 1][2 * i] += second.x, sums[t + 1][2 * i + 1] += second.y;
      }
    }
  }

  // Neighbouring lanes have neighbouring columns: of every two tiles the even lane takes the four of the
  // first, the other those of the second.
  __device__ void store_fours(const float (&sums)[kTiles][4], const int* own) const {
    const bool is_odd = threadIdx.x % 2 == 1;
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int output = own[is_odd ? (t + 1) * kTileColumns - 2 : t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto first = Of::pair_of(sums[t][2 * i], sums[t][2 * i + 1]);
        const auto second = Of::pair_of(sums[t + 1][2 * i], sums[t + 1][2 * i + 1]);
        const auto given = Of::beside(is_odd ? first : second);
        store_global_if(is_output(i, output), address_of(i, output),
                        Of::four_of(is_odd ? given : first, is_odd ? second : given));
      }
    }
  }

  __device__ void store_pairs(const float (&sums)[kTiles][4], const int* own) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int output = own[t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_global_if(is_output(i, output), address_of(i, output),
                        Of::pair_of(sums[t][2 * i], sums[t][2 * i + 1]));
      }
    }
  }

  __device__ void store_each(const float (&sums)[kTiles][4], const int* own) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = own[t * kTileColumns + i % 2];
        store_global_if(is_output(i / 2, output), address_of(i / 2, output), Of::one_of(sums[t][i]));
      }
    }
  }

  // A bit for each sum that is not finite.
  static __device__ unsigned long long not_finite(const float (&sums)[kTiles][4]) {
    float sick[4] = {};  // what is finite adds nothing
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sick[i] = fmaf(sums[t][i], 0.0f, sick[i]);
    }
    unsigned long long found = 0;
    if (sick[0] + sick[1] + (sick[2] + sick[3]) == 0.0f) return found;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        found |= static_cast<unsigned long long>(!(fabsf(sums[t][i]) < infinity())) << (t * 4 + i);
      }
    }
    return found;
  }

  __device__ void store_again(unsigned long long which, const int* own) const {
#pragma unroll 1
    for (int number = 0; number < kTiles * 4; ++number) {
      const int i = number / 2 % 2, output = own[number / 4 * kTileColumns + number % 2];
      if ((which >> number & 1) == 0 || !is_output(i, output)) continue;
      const int row = output / problem_.output_width;
      // Of an index that is not known the compiler would keep both in memory.
      const int filter = i == 0 ? filter_[0] : filter_[1], fold = i == 0 ? fold_[0] : fold_[1];
      store_as_defined(problem_, image_, filter, first_row_ + fold + row,
                       output - row * problem_.output_width, number_of(i, output));
    }
  }

  const Arguments<Element>& problem_;
  int fold_[2], filter_[2];
  bool exists_[2];
  float bias_[2];
  unsigned long long row_[2];  // of the first image's first band
  // Of a band; the addresses are of a row's first output.
  int image_ = 0, first_row_ = 0, left_[2] = {};
  unsigned long long to_[2] = {};
};

}  // namespace convswap::row_windows
