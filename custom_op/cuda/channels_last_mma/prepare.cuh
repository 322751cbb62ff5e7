#pragma once

// Kernels of the algorithm `channels_last_mma` without tensor cores.

#include "cuda/channels_last_mma/common.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_quantised_conv.cuh"
#include "cuda/primitives/nhwc_conv.cuh"

namespace convswap::channels_last_mma {

// A weight as an operand of an mma. Rounds float32 as round_to_tf32 does, which needs compute capability 8.0.
template <typename Element>
__device__ inline Element operand_of(Element weight) {
  return weight;
}
template <>
__device__ inline float operand_of(float weight) {
  if (weight != weight) return __uint_as_float(0x7fffffffu);  // NaN
  // A carry out of the mantissa correctly raises the exponent, and an infinity stays one.
  return __uint_as_float((__float_as_uint(weight) + 0x1000u) & ~0x1fffu);
}

// The filter, of a conv group, in a row of the prepared weights. Codes have, in two tiles of filters of the
// mmas, four neighbouring filters for each thread.
template <typename Element>
__device__ inline int filter_of_row(int row) {
  return kIsCode<Element> ? row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2 : row;
}

// Writes the weights in the order of the K chunks, with zeros behind the last tap and behind the last row. A
// thread writes a piece.
template <typename Element>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int piece = static_cast<int>(blockIdx.x) * kPrepareThreads + static_cast<int>(threadIdx.x);
  const int unit = piece % kRowPieces, row = piece / kRowPieces;
  const int chunk = row / problem.filters_per_group;
  const int filter = filter_of_row<Element>(row - chunk * problem.filters_per_group);
  const int group = chunk / problem.chunks;
  const int rows = problem.chunks * problem.out_channels;
  if (row >= rows + kPaddingRows) return;
  const int k_chunk = chunk - group * problem.chunks, span = k_chunk / problem.taps;
  KPiece k{k_chunk - span * problem.taps, span * kRowPieces + unit};
  if (span >= problem.whole_spans) {
    k = first_of_tail(problem, (k_chunk - problem.whole_spans * problem.taps) * kRowPieces + unit);
  }
  constexpr int kElements = kPieceBytes / static_cast<int>(sizeof(Element));
  const long long first_channel =
      static_cast<long long>(group * problem.filters_per_group + filter) * problem.group_pieces + k.piece;
  const Element* const from = problem.w + first_channel * kElements * problem.taps + k.tap;
  Element* const to =
      reinterpret_cast<Element*>(problem.prepared_weights + static_cast<long long>(piece) * kPieceBytes);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    to[i] = row < rows && k.tap < problem.taps ? operand_of(from[static_cast<long long>(i) * problem.taps])
                                               : static_cast<Element>(0.0f);
  }
}

// Writes what codes need besides the weights; see Arguments. A thread takes a filter.
template <typename Element>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_codes(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int filter = static_cast<int>(blockIdx.x) * kPrepareThreads + static_cast<int>(threadIdx.x);
  const int zero_point = problem.conv.quantization.x_zero_point;
  if (filter < kPieceBytes) problem.zero_point_piece[filter] = static_cast<unsigned char>(zero_point);
  if (filter >= problem.out_channels) return;
  const int count = problem.group_pieces * kPieceBytes * problem.taps;
  const Int8* const weights = problem.conv.w + static_cast<long long>(filter) * count;
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += weights[i];
  problem.corrections[filter] = -zero_point * sum;
}

// Computes one output per thread from tensors at any addresses; `kernel` needs multiples of 16 bytes.
template <typename Element>
__global__ void __launch_bounds__(kUnalignedThreads)
    unaligned(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long at = static_cast<long long>(blockIdx.x) * kUnalignedThreads + threadIdx.x;
  if (at >= problem.unaligned.y_elements) return;
  if constexpr (kIsCode<Element>) {
    naive_quantised_output<Element>(problem.conv, at);
  } else {
    compute_nhwc_output(problem, problem.unaligned, at);
  }
}

}  // namespace convswap::channels_last_mma
