#pragma once

#include "onnx/api.h"

// The override mode: our op in the place of ONNX Runtime's own Conv, for unmodified models. A program asks
// for it with session config entries, set before it registers the library:
//
//   convswap.override = 1      the override mode; 0 or absent: only the op convswap.Conv
//   convswap.precision = ieee  of Conv nodes in the override mode, which have no such attribute; tf32 or
//                              absent: ONNX Runtime's own default on CUDA
//   convswap.kernels = record  begins to note the node of each kernel that is made by this thread
//   convswap.kernels = read    ends that, and sets convswap.kernels.count and, to the names of the nodes, cut
//                              to 1000 bytes, convswap.kernels.0, .1, ...
//
// A session makes its kernels in the thread that creates it. So a program that records, creates a session and
// reads learns which Conv nodes really are ours, which ONNX Runtime does not tell.

namespace convswap {

// Whether `options` ask for the override mode. Throws OnnxRuntimeError where the value is neither 0 nor 1.
bool override_requested(const OrtApi& api, const OrtSessionOptions* options);

// The precision that `options` ask for in the override mode. Throws OnnxRuntimeError where the value is no
// precision.
Precision override_precision(const OrtApi& api, const OrtSessionOptions* options);

// Has sessions of `options` do without the optimisers that take Conv nodes before a kernel is looked for.
// Throws where this ONNX Runtime, below 1.18, knows no such setting.
void keep_conv_nodes(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options);

// Does what the entry convswap.kernels of `options` asks for. Throws.
void answer_kernels(const OrtApi& api, OrtSessionOptions* options);

// Notes that this thread made a kernel for the node of this name.
void note_kernel(const std::string& node);

}  // namespace convswap
