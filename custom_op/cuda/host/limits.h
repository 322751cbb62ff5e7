#pragma once

#include <initializer_list>
#include <string>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

inline constexpr int64_t kMaxGridRows = 65'535;

// The number of tensor-core products that one accumulator may take in precision ieee. Each product truncates
// the accumulator to float32, so the error grows with their number: on an H200, with random data, 42 products
// left a relative L2 error of 8.9e-7 and 50 of 1.07e-6. Older cards are said to truncate twice in a product
// of this depth, so they take half. Neither older nor newer cards have been measured.
int64_t max_ieee_products(const Device& device);

// Why a kernel whose grid has a row per group cannot compute the problem, whatever its element type and rank;
// empty if it can.
std::string why_not_sizes(const ConvProblem& problem);

// why_not_sizes for kernels that take float32, float16 and bfloat16 data.
std::string why_not_float(const ConvProblem& problem);

// why_not_float for kernels whose filters see one channel each.
std::string why_not_depthwise(const ConvProblem& problem);

// why_not_float for kernels that take one or two spatial axes.
std::string why_not_1d_or_2d(const ConvProblem& problem);

// Why the device cannot run kernels that need this compute capability (80 for 8.0) or a newer one; empty if
// it can.
std::string why_not_capability(int compute_capability, const Device& device);

// Why the device cannot run kernels with wgmma, which need compute capability 9.0 and no other; empty if it
// can.
std::string why_not_hopper(const Device& device);

// The reason that no tiling fits: `subject` ("its tiles do") not fit into the shared memory of a block of the
// device.
std::string why_not_shared_memory(const std::string& subject, const Device& device);

// True if x, y and the residual, if there is one, are NHWC.
bool has_nhwc_tensors(const ConvProblem& problem);

// The extent of the input along an axis, padding included.
int64_t padded_input(const ConvProblem& problem, int axis);

// Why a kernel with 32-bit indices cannot address `indices`; empty if it can.
std::string why_not_32_bit_indices(std::initializer_list<int64_t> indices);

}  // namespace convswap
